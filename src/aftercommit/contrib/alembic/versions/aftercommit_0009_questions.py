"""The tables of the outbox, as of migration 0009_questions."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0009"
down_revision = "aftercommit_0008"
upgrade, downgrade = steps_of(9)
