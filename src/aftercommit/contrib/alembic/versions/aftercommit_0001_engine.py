"""The tables of the outbox, as of migration 0001_engine."""

from aftercommit.contrib.alembic.branch import downgrade_below, upgrade_to

revision = "aftercommit_0001"
down_revision = None
branch_labels = ("aftercommit",)
depends_on = None


def upgrade() -> None:
    """Apply it, where it is missing."""
    upgrade_to(1)


def downgrade() -> None:
    """Tables stay, unless all events may be dropped."""
    downgrade_below(1)
