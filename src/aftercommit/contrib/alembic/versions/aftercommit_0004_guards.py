"""The tables of the outbox, as of migration 0004_guards."""

from aftercommit.contrib.alembic.branch import downgrade_below, upgrade_to

revision = "aftercommit_0004"
down_revision = "aftercommit_0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply it, where it is missing."""
    upgrade_to(4)


def downgrade() -> None:
    """Tables stay, unless all events may be dropped."""
    downgrade_below(4)
