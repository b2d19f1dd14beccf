"""The tables of the outbox, as of migration 0010_divided_consumers."""

from aftercommit.contrib.alembic.branch import steps_of

revision = "aftercommit_0010"
down_revision = "aftercommit_0009"
upgrade, downgrade = steps_of(10)
