"""The outbox inside your Alembic migrations: the same statements as `aftercommit migrate up`, in Alembic's transaction.

    import aftercommit.contrib.alembic  # in env.py: registers op.migrate_outbox() and op.drop_outbox()

    def upgrade() -> None:
        op.migrate_outbox("shop.events:outbox")

Or as a branch of its own beside yours: `version_locations` gets `aftercommit.contrib.alembic:versions`, the option
`aftercommit_outboxes` names your outboxes, and `alembic upgrade aftercommit@head` does the rest.

Every statement goes through `op.execute`, so any driver and `alembic upgrade --sql` work alike. Needs the extra
`alembic`; nothing here decides when to migrate.
"""

from aftercommit.errors import MissingExtra

try:
    from aftercommit.contrib.alembic.autogenerate import include_object
    from aftercommit.contrib.alembic.operations import downgrade, upgrade
except ImportError as missing:
    if missing.name is None or missing.name.partition(".")[0] not in ("alembic", "sqlalchemy"):
        raise
    raise MissingExtra("alembic", missing.name) from missing

__all__ = ["downgrade", "include_object", "upgrade"]
