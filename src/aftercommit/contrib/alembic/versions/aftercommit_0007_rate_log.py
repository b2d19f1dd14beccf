"""The tables of the outbox, as of migration 0007_rate_log."""

from aftercommit.contrib.alembic.branch import downgrade_below, upgrade_to

revision = "aftercommit_0007"
down_revision = "aftercommit_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it, where it is missing."""
    upgrade_to(7)


def downgrade() -> None:
    """Tables stay, unless all events may be dropped."""
    downgrade_below(7)
