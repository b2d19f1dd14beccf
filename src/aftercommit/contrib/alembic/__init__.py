"""The outbox in your Alembic migrations: the same statements as `aftercommit migrate up`, in Alembic's transaction.

    import aftercommit.contrib.alembic  # in env.py: registers op.migrate_outbox() and op.drop_outbox()

    def upgrade() -> None:
        op.migrate_outbox("shop.events:outbox")

Or as a separate branch: add `aftercommit.contrib.alembic:versions` to `version_locations`, name your outboxes in the
option `aftercommit_outboxes`, and run `alembic upgrade aftercommit@head`.

All statements go through `op.execute`, so every driver works, and `alembic upgrade --sql`, too. Needs the extra
`alembic`.
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
