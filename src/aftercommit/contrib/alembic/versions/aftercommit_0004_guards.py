"""The tables of the outbox, as of migration 0004_guards."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0004"
down_revision = "aftercommit_0003"
upgrade, downgrade = steps_of(4)
