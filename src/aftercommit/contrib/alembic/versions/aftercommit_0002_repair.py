"""The tables of the outbox, as of migration 0002_repair."""

from aftercommit.contrib.alembic.branch import downgrade_below, upgrade_to

revision = "aftercommit_0002"
down_revision = "aftercommit_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it, where it is missing."""
    upgrade_to(2)


def downgrade() -> None:
    """Tables stay, unless all events may be dropped."""
    downgrade_below(2)
