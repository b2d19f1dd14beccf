"""Lives of the log: a new one begins after a restore or a promotion of the server.

A restored log may end before the place of its readers. A new life starts above every position that the log can have
given before, so that no reader skips new events. A change of server shows by its identifiers. A copied data folder
looks the same; it shows when a reader has seen a higher position, or when an operator says so.
docs/decisions/0020-lives-of-the-log.md
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from aftercommit.errors import SchemaDrift
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.log")

Ask = Callable[[bytes, dict[str, Any]], Awaitable[list[tuple[Any, ...]]]]

# Managed services may not allow these functions, or have no write-ahead log of this kind.
NOT_TOLD = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
# The server's control file may be read while it is being written. That error passes.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Life:
    """A new life: its first event has the position `base` + 1; the last event before it has `previous_last`."""

    number: int
    base: int
    previous_last: int
    began_at: datetime
    reason: str


class Server(NamedTuple):
    """What identifies the server, database and table of a log; None for what the server does not tell."""

    system_identifier: int | None
    timeline: int | None
    database_oid: int | None
    head_oid: int | None


async def recognise(
    connection: psycopg.AsyncConnection[Any], shape: Shape, *, seen: int = 0
) -> tuple[Life | None, int]:
    """Begin a new life if the log was restored.

    `seen` is the highest position that the caller has seen. Returns the life, if a new one has begun, and the end of
    the log. Cheap if nothing has changed; several programs may call it at the same time.
    """
    row = await (await connection.execute(Statements(shape)["server_is_known"])).fetchone()
    if row is not None and row[0] and row[1] >= seen:
        return None, row[1]
    return await _look(connection, shape, seen, None)


async def begin(connection: psycopg.AsyncConnection[Any], shape: Shape, reason: str, *, above: int = 0) -> Life:
    """Begin a new life above this position, because an operator says that the log was restored."""
    life, _ = await _look(connection, shape, above, reason)
    assert life is not None, "there was a reason"
    return life


async def is_due(ask: Ask, shape: Shape) -> bool:
    """Whether a new life may be due: the log was restored, or this server is a standby, which may lag."""
    if (await ask(Statements(shape)["in_recovery"], {}))[0][0]:
        return True
    _, known, present = await _compared(ask, Statements(shape))
    return difference(known, present) is not None


async def _look(
    connection: psycopg.AsyncConnection[Any], shape: Shape, seen: int, reason: str | None
) -> tuple[Life | None, int]:
    statements = Statements(shape)
    async with connection.transaction():
        row = await (await connection.execute(statements["lock_head"])).fetchone()
        if row is None:
            raise SchemaDrift(f"table head of outbox {shape.schema!r} is empty: see `aftercommit doctor`")
        number, known, present = await _compared(_asking(connection), statements)
        reason = reason or difference(known, present)
        if row[0] < seen:
            reason = reason or f"the log ends at {row[0]}, but had reached {seen} before: it was restored from a copy"
        parameters = {**present._asdict(), "number": number}
        if reason is None:
            await connection.execute(statements["go_on_with_server"], parameters)
            return None, row[0]
        parameters |= {"seen": seen, "reason": reason, "channel": shape.log_channel}
        begun = await (await connection.execute(statements["begin_life"], parameters)).fetchone()
        assert begun is not None, "head has its row, which is locked"
        life = Life(*begun[:5])
    # Before the first append, which would otherwise make them.
    await connection.execute(statements["make_partitions"])
    fields = {"outbox": shape.schema, "life": life.number, "position": life.previous_last, "goes_on_after": life.base}
    log_event(logger, logging.WARNING, "log_life_began", reason=life.reason, **fields)
    return life, life.base


def _asking(connection: psycopg.AsyncConnection[Any]) -> Ask:
    """Runs queries in savepoints, so that the transaction survives one that fails."""

    async def ask(question: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        async with connection.transaction():
            return await (await connection.execute(question, parameters)).fetchall()

    return ask


async def _compared(ask: Ask, statements: Statements) -> tuple[int, Server, Server]:
    """The number of the current life, the server it began on, and the present server."""
    row = next(iter(await ask(statements["present_life"], {})), None)
    if row is None:
        raise SchemaDrift(f"table life of outbox {statements.shape.schema!r} is empty: restore it from a backup")
    number, *rest = row
    known = Server(*rest[:4])
    identifier = await _told(ask, statements["server_identifier"])
    timeline = await _told(ask, statements["server_timeline"])
    return number, known, Server(identifier, timeline, *rest[4:])


async def _told(ask: Ask, question: bytes) -> int | None:
    """A value that identifies the server; None if the server does not tell it."""
    for _ in range(_TRIES):
        try:
            return next((int(row[0]) for row in await ask(question, {})), None)
        except NOT_TOLD:
            return None
        except psycopg.errors.InternalError_:
            continue
    return None


def difference(known: Server, present: Server) -> str | None:
    """Why a log of the known server must begin a new life on the present one, or None. None values do not differ."""
    said = {
        "system_identifier": "the database is on another server: it was restored, upgraded or loaded from a dump",
        "timeline": "the server was promoted, or recovered to a point in time",
        "database_oid": "the database was copied",
        "head_oid": "the tables were loaded from a dump",
    }
    for name, words in said.items():
        before, now = getattr(known, name), getattr(present, name)
        if before is not None and now is not None and before != now:
            return f"{words} ({name.replace('_', ' ')} {now}, was {before})"
    return None
