"""The tables of the outbox, as of migration 0008_relay_lease."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0008"
down_revision = "aftercommit_0007"
upgrade, downgrade = steps_of(8)
