"""The outbox inside your Alembic migrations: the same statements as `aftercommit migrate up`, in Alembic's transaction.

    from alembic import op
    from aftercommit.postgres import alembic as outbox_tables
    from shop.events import outbox

    def upgrade() -> None:
        outbox_tables.upgrade(op, outbox)

Every statement goes through `op.execute`, so any driver and `alembic upgrade --sql` work alike. Needs the extra
`alembic`; nothing here decides when to migrate.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aftercommit.errors import DatabaseError, MissingExtra
from aftercommit.postgres import migrate
from aftercommit.postgres.blocks import without_purpose
from aftercommit.postgres.shape import ENGINE_TABLES, PARTITION_NAME, HasShape, Shape, shape_of
from aftercommit.postgres.statements import Statements

if TYPE_CHECKING:
    from alembic.operations import Operations

IncludeObject = Callable[[Any, str | None, str, bool, Any], bool]


def upgrade(op: "Operations", outbox: HasShape | Shape, *, after: int = 0) -> None:
    """Bring the tables of an outbox up to this version of aftercommit and to its declaration.

    Call it in a new revision after an upgrade of aftercommit and after a change of the outbox's scope, indexes or
    views: each statement acts only where something is missing. `after` leaves out migrations that the schema has had.
    """
    for statement in migrate.statements(shape_of(outbox), after):
        op.execute(_verbatim(statement))


def downgrade(op: "Operations", outbox: HasShape | Shape, *, drop_all_events: bool = False) -> None:
    """Drop the schema of the outbox with everything in it, if `drop_all_events=True` says so; refuse otherwise."""
    shape = shape_of(outbox)
    if not drop_all_events:
        raise DatabaseError(
            f"a downgrade would drop schema {shape.schema!r} with all its events: say "
            "downgrade(op, outbox, drop_all_events=True) if that is meant, or leave the tables where they are"
        )
    op.execute(_verbatim(without_purpose(Statements(shape).render("drop_everything"))))


def include_object(outbox: HasShape | Shape, also: IncludeObject | None = None) -> IncludeObject:
    """A filter for `context.configure(include_object=…)`, so that autogenerate does not propose to drop our tables.

    `also` is a filter of your own, asked about everything else.
    """
    shape = shape_of(outbox)
    ours = ENGINE_TABLES | {view.name for view in shape.views} | {"event_outbox", "event_log"}

    def is_ours(table: str) -> bool:
        return table in ours or PARTITION_NAME.fullmatch(table) is not None

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        table = thing if kind == "table" else getattr(thing, "table", None)
        if table is not None and _is_here(table, shape) and is_ours(table.name):
            return False
        return True if also is None else also(thing, name, kind, reflected, compare_to)

    return include


def _is_here(table: Any, shape: Shape) -> bool:
    # Alembic leaves the schema out where it is the default one of the search path.
    return (table.schema or "public") == shape.schema


def _verbatim(statement: str) -> Any:
    try:
        from sqlalchemy import DDL
    except ImportError as missing:
        raise MissingExtra("alembic", "sqlalchemy") from missing
    # Text would take `:word` in a name for a parameter; DDL goes out as it is, and none of our statements has a %.
    return DDL(statement)  # type: ignore[no-untyped-call]
