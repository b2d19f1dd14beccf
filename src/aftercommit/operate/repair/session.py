"""The connection, the outbox as the database has it, and its statements: what all parts of repair use."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg import sql

from aftercommit.consumer.lease import CONSUMER_CHANGED
from aftercommit.operate.repair.selection import Selection
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.database import privilege
from aftercommit.postgres.shape import AUDIENCE, Shape
from aftercommit.postgres.statements import Statements, scope_list
from aftercommit.schema.declared import OUTBOX_COLUMNS
from aftercommit.schema.requirement import require_schema

_PYTHON_TYPES: Mapping[str, type[Any]] = {"bigint": int, "uuid": UUID}


@dataclass(frozen=True, slots=True)
class RepairSession:
    """One outbox on one connection. `outbox` is the declaration, if the caller has it."""

    connection: psycopg.AsyncConnection[Any]
    shape: Shape
    statements: Statements
    outbox: Outbox | None

    @classmethod
    async def find(cls, connection: psycopg.AsyncConnection[Any], declared: Outbox | Shape) -> Self:
        """Check the schema, and look up scope and audience, which a caller without the declaration does not know."""
        outbox = declared if isinstance(declared, Outbox) else None
        shape = declared.shape if isinstance(declared, Outbox) else declared
        parameters = {"schema": shape.schema, "tables": ["outbox"]}
        rows = await (await connection.execute(Statements(shape)["catalog_columns"], parameters)).fetchall()
        columns = {name: kind for _table, name, kind, *_ in rows if name not in OUTBOX_COLUMNS}
        has_audience = columns.pop(AUDIENCE, None) is not None
        scope = {name: _PYTHON_TYPES.get(kind, str) for name, kind in columns.items()}
        found = replace(shape, scope=scope, audience=has_audience, indexed=())
        await require_schema(connection, found if outbox is None else shape)
        return cls(connection, found, Statements(found), outbox)

    async def rows(self, name: str, parameters: Mapping[str, Any], **parts: sql.Composable) -> list[Any]:
        """All rows of a statement; `parts` fill the placeholders in its text."""
        try:
            cursor = await self.connection.execute(self.render(name, **parts), parameters)
            return await cursor.fetchall() if cursor.description is not None else []
        except psycopg.errors.InsufficientPrivilege as problem:
            raise privilege(self.connection.info.user, self.shape, problem) from problem

    async def row(self, name: str, parameters: Mapping[str, Any], **parts: sql.Composable) -> Any:
        """The first row, or None."""
        found = await self.rows(name, parameters, **parts)
        return found[0] if found else None

    def render(self, name: str, **parts: sql.Composable) -> bytes:
        """The text of a statement, with the scope columns of events and of letters."""
        scope = {"event_scope": scope_list(self.shape, "event"), "letter_scope": scope_list(self.shape, "letter")}
        return self.statements.render(name, **scope, **parts).encode()

    def which_events(
        self, selection: Selection, event_id: str = "event.id", position: str = "event.position"
    ) -> sql.SQL:
        """The conditions of a selection on a table of events with the alias `event`."""
        scope = [
            sql.SQL(" and {} = {}").format(sql.Identifier("event", name), sql.Placeholder(f"scope_{name}"))
            for name in selection.scope_values(self.shape)
        ]
        where = [_in_payload(self.statements, path, f"where_{n}") for n, path in enumerate(selection.where)]
        places = {"event_id": sql.SQL(event_id), "position": sql.SQL(position)}
        conditions = {"scope": sql.Composed(scope), "where": sql.SQL(" ").join(where)}
        return self.statements.part("which_events", **conditions, **places)

    def which_letters(self, selection: Selection) -> sql.SQL:
        """The conditions of a selection on dead letters."""
        return self.statements.part("which_letters", events=self.which_events(selection, "event.event_id"))

    def parameters(self, selection: Selection) -> dict[str, Any]:
        """The parameters of those conditions."""
        scope = {f"scope_{name}": value for name, value in selection.scope_values(self.shape).items()}
        scope |= {f"where_{n}": value for n, value in enumerate(selection.where.values())}
        lists = {name: list(getattr(selection, name)) or None for name in ("event_ids", "types", "statuses")}
        single = (each.name for each in fields(selection) if each.name not in ("scope", "where", *lists))
        return {**scope, **lists, **{name: getattr(selection, name) for name in single}}

    async def wake_everybody(self) -> None:
        """Notify workers and relays, so that they look for work at once."""
        parameters = {
            "log_channel": self.shape.log_channel,
            "publish_channel": self.shape.publish_channel,
            "changed": CONSUMER_CHANGED,
        }
        await self.rows("wake_everybody", parameters)


def _in_payload(statements: Statements, path: str, parameter: str) -> sql.SQL:
    return statements.part("which_payload", path=sql.Literal(path.split(".")), value=sql.Placeholder(parameter))
