"""The tables of the outbox, as of migration 0001_engine."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0001"
down_revision = None
branch_labels = ("aftercommit",)
upgrade, downgrade = steps_of(1)
