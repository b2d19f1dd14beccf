"""The tables of the outbox, as of migration 0006_waits."""

from aftercommit.contrib.alembic.branch import downgrade_below, upgrade_to

revision = "aftercommit_0006"
down_revision = "aftercommit_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it, where it is missing."""
    upgrade_to(6)


def downgrade() -> None:
    """Tables stay, unless all events may be dropped."""
    downgrade_below(6)
