"""The tables of the outbox, as of migration 0003_feeds."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0003"
down_revision = "aftercommit_0002"
upgrade, downgrade = steps_of(3)
