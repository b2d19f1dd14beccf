"""Lives of the log: one goes on for as long as nothing was lost, and another begins after a restore or a promotion.

A restored log ends before where readers may be. So that none of them skips what comes next, it goes on with a position
above all that it can have given before. Which server the log is on tells that by itself; a copy of the data folder does
not look any different, and is noticed by whoever has seen the log further on, or said by an operator.
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

# Managed services keep some of these functions to themselves, or have no write-ahead log of this kind.
NOT_TOLD = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
# The file that says who the server is can be read while it is being written. That passes.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Life:
    """A life that has just begun: its first event has the position `base` + 1, the last one before `previous_last`."""

    number: int
    base: int
    previous_last: int
    began_at: datetime
    reason: str


class Server(NamedTuple):
    """Where a log is kept: the server, as far as it says who it is, and the tables."""

    system_identifier: int | None
    timeline: int | None
    database_oid: int | None
    head_oid: int | None


async def recognise(
    connection: psycopg.AsyncConnection[Any], shape: Shape, *, seen: int = 0
) -> tuple[Life | None, int]:
    """Make sure that the log goes on on this server: with a new life, where it was restored.

    `seen` is how far the caller has seen the log come. Returns the life if one has begun, and where the log ends now.
    Cheap while nothing has changed, and safe from several programs at once.
    """
    row = await (await connection.execute(Statements(shape)["server_is_known"])).fetchone()
    if row is not None and row[0] and row[1] >= seen:
        return None, row[1]
    return await _look(connection, shape, seen, None)


async def begin(connection: psycopg.AsyncConnection[Any], shape: Shape, reason: str, *, above: int = 0) -> Life:
    """Begin a new life in any case, above this position at least: an operator says that the log was restored."""
    life, _ = await _look(connection, shape, above, reason)
    assert life is not None, "there was a reason"
    return life


async def is_due(ask: Ask, shape: Shape) -> bool:
    """Whether the log will go on: it was restored for certain and its next life has not begun, or this server follows
    another and may lag behind it. Changes nothing."""
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
    # An append makes those that are missing, too.
    await connection.execute(statements["make_partitions"])
    fields = {"outbox": shape.schema, "life": life.number, "position": life.previous_last, "goes_on_after": life.base}
    log_event(logger, logging.WARNING, "log_life_began", reason=life.reason, **fields)
    return life, life.base


def _asking(connection: psycopg.AsyncConnection[Any]) -> Ask:
    """Questions in a transaction that goes on when one is refused."""

    async def ask(question: bytes, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        async with connection.transaction():
            return await (await connection.execute(question, parameters)).fetchall()

    return ask


async def _compared(ask: Ask, statements: Statements) -> tuple[int, Server, Server]:
    """The number of the present life, the server that it began on, and the server that there is."""
    row = next(iter(await ask(statements["present_life"], {})), None)
    if row is None:
        raise SchemaDrift(f"table life of outbox {statements.shape.schema!r} is empty: restore it from a backup")
    number, *rest = row
    known = Server(*rest[:4])
    identifier = await _told(ask, statements["server_identifier"])
    timeline = await _told(ask, statements["server_timeline"])
    return number, known, Server(identifier, timeline, *rest[4:])


async def _told(ask: Ask, question: bytes) -> int | None:
    """What the server says about itself; None when it does not, and only who remembers notices a restore."""
    for _ in range(_TRIES):
        try:
            return next((int(row[0]) for row in await ask(question, {})), None)
        except NOT_TOLD:
            return None
        except psycopg.errors.InternalError_:
            continue
    return None


def difference(known: Server, present: Server) -> str | None:
    """Why a log on the one cannot simply go on on the other; None when it can. What is not told does not differ."""
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
