"""The tables of the outbox, as of migration 0002_repair."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0002"
down_revision = "aftercommit_0001"
upgrade, downgrade = steps_of(2)
