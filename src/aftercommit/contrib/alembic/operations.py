"""`op.migrate_outbox()` and `op.drop_outbox()`: what a revision says, and the statements that it stands for."""

from typing import Any

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import DDL

from aftercommit.errors import DatabaseError
from aftercommit.postgres.blocks import without_purpose
from aftercommit.postgres.statements import Statements
from aftercommit.schema import migrate
from aftercommit.schema.references import Declared, shape_named


@Operations.register_operation("migrate_outbox")
class MigrateOutbox(MigrateOperation):
    """Brings the tables of an outbox up to this version of aftercommit and to its declaration."""

    def __init__(self, outbox: Declared, *, after: int = 0, to: int | None = None, is_new: bool = False) -> None:
        """`is_new` when nothing of it was there, so that its reverse is to drop it."""
        self.outbox = outbox
        self.after = after
        self.to = to
        self.is_new = is_new

    @classmethod
    def migrate_outbox(cls, operations: Operations, outbox: Declared, *, after: int = 0, to: int | None = None) -> None:
        """Bring the tables of an outbox up to this version of aftercommit and to its declaration.

        Call it in a new revision after an upgrade of aftercommit and after a change of the outbox's scope, indexes or
        views: each statement acts only where something is missing. `after` leaves out migrations that the schema has
        had, `to` stops at one of them.
        """
        operations.invoke(cls(outbox, after=after, to=to))

    def reverse(self) -> MigrateOperation:
        """What was new is dropped; what was there stays as it is, because the code before can work with it."""
        return DropOutbox(self.outbox) if self.is_new else KeepOutbox(self.outbox)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """As `alembic check` lists it."""
        return ("migrate_outbox", self.outbox)


@Operations.register_operation("drop_outbox")
class DropOutbox(MigrateOperation):
    """Drops the schema of an outbox with all its events, where that was allowed."""

    def __init__(self, outbox: Declared, *, drop_all_events: bool = False) -> None:
        self.outbox = outbox
        self.drop_all_events = drop_all_events

    @classmethod
    def drop_outbox(cls, operations: Operations, outbox: Declared, *, drop_all_events: bool = False) -> None:
        """Drop the schema of the outbox with everything in it, if `drop_all_events=True` says so; refuse otherwise."""
        operations.invoke(cls(outbox, drop_all_events=drop_all_events))

    def reverse(self) -> MigrateOperation:
        """An empty outbox."""
        return MigrateOutbox(self.outbox, is_new=True)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """As `alembic check` lists it."""
        return ("drop_outbox", self.outbox)


class KeepOutbox(MigrateOperation):
    """Leaves the tables as they are: the way back from a migration is to deploy the code before."""

    def __init__(self, outbox: Declared) -> None:
        self.outbox = outbox

    def reverse(self) -> MigrateOperation:
        """Forwards again."""
        return MigrateOutbox(self.outbox)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """As `alembic check` lists it."""
        return ("keep_outbox", self.outbox)


def upgrade(op: Any, outbox: Declared, *, after: int = 0) -> None:
    """The same as `op.migrate_outbox(outbox)`, as a function that type checkers know."""
    op.invoke(MigrateOutbox(outbox, after=after))


def downgrade(op: Any, outbox: Declared, *, drop_all_events: bool = False) -> None:
    """The same as `op.drop_outbox(outbox)`, as a function that type checkers know."""
    op.invoke(DropOutbox(outbox, drop_all_events=drop_all_events))


@Operations.implementation_for(MigrateOutbox)
def _migrate(operations: Operations, operation: MigrateOutbox) -> None:
    for statement in migrate.statements(shape_named(operation.outbox), operation.after, operation.to):
        operations.execute(_verbatim(statement))


@Operations.implementation_for(DropOutbox)
def _drop(operations: Operations, operation: DropOutbox) -> None:
    shape = shape_named(operation.outbox)
    if not operation.drop_all_events:
        raise DatabaseError(
            f"a downgrade would drop schema {shape.schema!r} with all its events: say "
            "drop_all_events=True if that is meant, or leave the tables where they are"
        )
    operations.execute(_verbatim(without_purpose(Statements(shape).render("drop_everything"))))


def _verbatim(statement: str) -> DDL:
    # Text would take `:word` in a name for a parameter; DDL goes out as it is, and none of our statements has a %.
    return DDL(statement)  # type: ignore[no-untyped-call]
