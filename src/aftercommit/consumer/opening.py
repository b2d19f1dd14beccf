"""Opens a slice in one message: BEGIN and the first statement, whose plan the session keeps.

Each message between two processes costs more than most statements. Behind a pooler, sessions keep no statements, and a
slice is opened by two messages.
"""

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.postgres import register_default_adapters, register_default_types
from psycopg.pq import Escaping
from psycopg.types.array import register_all_arrays

from aftercommit.consumer.slices import Query, SliceItem
from aftercommit.postgres.commits import AnyConnection, AsyncConnection
from aftercommit.postgres.resilience import close_quietly
from aftercommit.postgres.statements import Statements

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
# The names of statements in sessions, and the statements that each session has.
_names: dict[bytes, bytes] = {}
_prepared: "WeakKeyDictionary[AnyConnection, set[bytes]]" = WeakKeyDictionary()


class Opening:
    """A statement that opens slices, with these parameters, on a direct connection."""

    def __init__(self, connection: AnyConnection, statements: Statements, query: Query) -> None:
        self._connection = connection
        self._statement = statements[query.name]
        self._parameters = query.parameters
        # Statements of several outboxes may be in one session.
        self._name = _names.setdefault(self._statement, f"aftercommit_{query.name}_{len(_names)}".encode())

    @property
    def preparation(self) -> bytes | None:
        """What to send first, once per session; None if the session has the statement."""
        prepared = _prepared.setdefault(self._connection, set())
        if self._name in prepared:
            return None
        prepared.add(self._name)
        numbers = {name: f"${number}" for number, name in enumerate(self._used, 1)}
        text = self._statement.decode() % numbers
        return b"prepare %b as %b" % (self._name, text.encode())

    @property
    def message(self) -> bytes:
        """BEGIN and the statement; its row is in the second result."""
        escape = Escaping(self._connection.pgconn).escape_literal
        values = (self._parameters[name] for name in self._used)
        literals = [b"null" if value is None else bytes(escape(str(value).encode())) for value in values]
        return b"begin; execute %b (%b)" % (self._name, b", ".join(literals))

    def forget(self) -> None:
        """The session has lost its statements: the driver drops them after a rollback, and a handler may, too."""
        _prepared.pop(self._connection, None)

    @property
    def _used(self) -> list[str]:
        return _parameters_of(self._statement)


@dataclass(frozen=True, slots=True)
class OpenedSlice:
    """An open transaction, the first row that its script expects, and what it was opened for.

    `events`: the rows of these events, and of others in their batch, if they were read by the same statement.
    """

    connection: AsyncConnection
    row: Sequence[Any]
    ids: frozenset[Any]
    position: int | None
    replaces: str
    resources: AsyncExitStack
    events: Sequence[Sequence[Any]]

    def fits(self, items: Sequence[SliceItem], begin: Query) -> bool:
        """Whether it was opened just for these events, as this statement would open it."""
        return (
            begin.name == self.replaces
            and begin.parameters.get("position") == self.position
            and len(items) == len(self.ids)
            and self.ids == {item.record.event_id for item in items}
        )

    async def undo(self) -> None:
        """Roll back, and give the connection back."""
        async with self.resources:
            try:
                await self.connection.rollback()
            except psycopg.Error:
                await close_quietly(self.connection)


class _Defaults:
    """The loaders that psycopg comes with. A program may register others, which are for its handlers."""

    adapters = AdaptersMap()

    def __init__(self, connection: AnyConnection | None = None) -> None:
        self.connection = connection


register_default_types(_Defaults.adapters.types)
register_default_adapters(_Defaults())
register_all_arrays(_Defaults())


def rows_of(cursor: psycopg.AsyncCursor[Any] | psycopg.Cursor[Any]) -> list[Any]:
    """The rows of a statement of ours on a handler's connection."""
    if (result := cursor.pgresult) is None:
        return []
    loading = Transformer(_Defaults(cursor.connection))
    loading.set_pgresult(result)
    return list(loading.load_rows(0, result.ntuples, tuple))


@cache
def _parameters_of(statement: bytes) -> list[str]:
    return list(dict.fromkeys(_PARAMETER.findall(statement.decode())))
