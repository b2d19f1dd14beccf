"""The tables of the outbox, as of migration 0007_rate_log."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0007"
down_revision = "aftercommit_0006"
upgrade, downgrade = steps_of(7)
