"""The tables of the outbox, as of migration 0001_engine."""

from django.db import migrations

from aftercommit.contrib.django.operations import ApplyMigration


class Migration(migrations.Migration):  # type: ignore[misc]
    """Applied to every outbox of AFTERCOMMIT_OUTBOXES."""

    initial = True
    operations = (ApplyMigration(1),)
