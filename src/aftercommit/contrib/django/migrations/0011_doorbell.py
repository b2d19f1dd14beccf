"""The tables of the outbox, as of migration 0011_doorbell."""

from django.db import migrations

from aftercommit.contrib.django.operations import ApplyMigration


class Migration(migrations.Migration):  # type: ignore[misc]
    """Applied to every outbox of AFTERCOMMIT_OUTBOXES."""

    dependencies = (("aftercommit", "0010_divided_consumers"),)
    operations = (ApplyMigration(11),)
