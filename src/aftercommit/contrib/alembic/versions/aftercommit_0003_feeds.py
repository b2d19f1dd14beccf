"""The tables of the outbox, as of migration 0003_feeds."""

from aftercommit.contrib.alembic.branch import downgrade_below, upgrade_to

revision = "aftercommit_0003"
down_revision = "aftercommit_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it, where it is missing."""
    upgrade_to(3)


def downgrade() -> None:
    """Tables stay, unless all events may be dropped."""
    downgrade_below(3)
