"""The tables of the outbox, as of migration 0006_waits."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0006"
down_revision = "aftercommit_0005"
upgrade, downgrade = steps_of(6)
