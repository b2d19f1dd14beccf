"""The Alembic operations `op.migrate_outbox()` and `op.drop_outbox()`."""

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
        """`is_new` if the outbox did not exist, so that the reverse operation drops it."""
        self.outbox = outbox
        self.after = after
        self.to = to
        self.is_new = is_new

    @classmethod
    def migrate_outbox(cls, operations: Operations, outbox: Declared, *, after: int = 0, to: int | None = None) -> None:
        """Bring the tables of an outbox up to this version of aftercommit and to its declaration.

        Call it in a new revision after an upgrade of aftercommit, and after a change of the outbox's scope, indexes or
        views. Statements change nothing that is up to date. `after` skips migrations up to that number, `to` is the
        last one to apply.
        """
        operations.invoke(cls(outbox, after=after, to=to))

    def reverse(self) -> MigrateOperation:
        """Drop an outbox that was new; leave another as it is, because older code can work with it."""
        return DropOutbox(self.outbox) if self.is_new else KeepOutbox(self.outbox)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """The form that `alembic check` prints."""
        return ("migrate_outbox", self.outbox)


@Operations.register_operation("drop_outbox")
class DropOutbox(MigrateOperation):
    """Drops the schema of an outbox with all its events, if that is allowed."""

    def __init__(self, outbox: Declared, *, drop_all_events: bool = False) -> None:
        self.outbox = outbox
        self.drop_all_events = drop_all_events

    @classmethod
    def drop_outbox(cls, operations: Operations, outbox: Declared, *, drop_all_events: bool = False) -> None:
        """Drop the schema of the outbox with everything in it. Refused without `drop_all_events=True`."""
        operations.invoke(cls(outbox, drop_all_events=drop_all_events))

    def reverse(self) -> MigrateOperation:
        """An empty outbox."""
        return MigrateOutbox(self.outbox, is_new=True)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """The form that `alembic check` prints."""
        return ("drop_outbox", self.outbox)


class KeepOutbox(MigrateOperation):
    """Leaves the tables as they are, because older code can work with them."""

    def __init__(self, outbox: Declared) -> None:
        self.outbox = outbox

    def reverse(self) -> MigrateOperation:
        """Migrate again."""
        return MigrateOutbox(self.outbox)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """The form that `alembic check` prints."""
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
            f"a downgrade would drop schema {shape.schema!r} with all its events: to do that, pass "
            "drop_all_events=True; otherwise leave the tables as they are"
        )
    operations.execute(_verbatim(without_purpose(Statements(shape).render("drop_everything"))))


def _verbatim(statement: str) -> DDL:
    # text() would take `:word` in a name for a parameter. DDL is sent unchanged, and our statements have no %.
    return DDL(statement)  # type: ignore[no-untyped-call]
