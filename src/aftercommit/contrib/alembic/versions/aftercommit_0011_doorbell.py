"""The tables of the outbox, as of migration 0011_doorbell."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0011"
down_revision = "aftercommit_0010"
upgrade, downgrade = steps_of(11)
