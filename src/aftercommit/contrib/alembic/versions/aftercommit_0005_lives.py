"""The tables of the outbox, as of migration 0005_lives."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0005"
down_revision = "aftercommit_0004"
upgrade, downgrade = steps_of(5)
