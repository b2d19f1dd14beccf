"""Consumer names: registers them, and finds a name that was changed, or that two programs use."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from aftercommit.consumer.lanes import divide
from aftercommit.consumer.lease import CONSUMER_CHANGED
from aftercommit.errors import AftercommitError, ConsumerNameTaken, ConsumerRenamed, OperationBusy
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import ANY_TYPE, Consumer
from aftercommit.postgres.commits import AsyncConnection, committed_async
from aftercommit.postgres.deadlocks import past_deadlocks
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# A step of a replay is short. A longer wait means that the replay's driver stopped in the middle of one.
PATIENCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class KnownConsumer:
    """A consumer as the database knows it."""

    name: str
    position: int
    paused: bool
    declared_by: str
    worker: str | None
    alive: bool
    lanes: int


async def known_consumers(connection: AsyncConnection, shape: Shape) -> list[KnownConsumer]:
    """All consumers that have a checkpoint."""
    rows = await (await connection.execute(Statements(shape)["consumers"])).fetchall()
    return [KnownConsumer(*row) for row in rows]


async def register(connection: AsyncConnection, outbox: Outbox, consumers: Sequence[Consumer]) -> None:
    """Make sure that each consumer has a checkpoint, and that no other consumer uses it."""
    known = {each.name: each for each in await known_consumers(connection, outbox.shape)}
    for consumer in consumers:
        _require_free(known, outbox, consumer)
    for consumer in consumers:
        mine = known.get(consumer.name)
        if mine is None:
            parameters = {
                "name": consumer.name,
                "latest": consumer.start == "latest",
                "declared_by": consumer.declared_by,
                "inbox": consumer.inbox,
            }
            await connection.execute(Statements(outbox.shape)["register_consumer"], parameters)
        if consumer.lanes != (1 if mine is None else mine.lanes):
            await divide(connection, outbox.shape, consumer)


def require_all_free(connection: psycopg.Connection[Any], outbox: Outbox) -> None:
    """For a program that will run every consumer: raise what `register` would raise, but change nothing."""
    rows = connection.execute(Statements(outbox.shape)["consumers"]).fetchall()
    known = {each.name: each for each in (KnownConsumer(*row) for row in rows)}
    for consumer in outbox.consumers.values():
        _require_free(known, outbox, consumer)


class Standby:
    """What a worker does about consumers that other workers have."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._holders: dict[str, str | None] = {}

    async def look(self, connection: AsyncConnection, consumers: Sequence[Consumer]) -> None:
        """Raise unless their checkpoints are still there and their workers run the same consumers; log who has them."""
        known = {each.name: each for each in await known_consumers(connection, self._shape)}
        for consumer in consumers:
            if consumer.name not in known:
                raise ConsumerRenamed(
                    f"the checkpoint of consumer {consumer.name!r} is gone: it was renamed or forgotten while this "
                    "worker ran. Start the worker again with the consumer's new name"
                )
            _refuse_double(known[consumer.name], consumer)
            holder, lanes = known[consumer.name].worker, known[consumer.name].lanes
            if lanes != consumer.lanes and holder is None:
                await divide(connection, self._shape, consumer)
            # Without a worker, it is being handed over.
            if holder is not None and holder != self._holders.get(consumer.name):
                self._holders[consumer.name] = holder
                log_event(logger, logging.INFO, "consumer_standing_by", consumer=consumer.name, holder=holder)
                if lanes != consumer.lanes:
                    _warn_of_lanes(known[consumer.name], consumer)

    def over(self, name: str) -> None:
        """The worker has the consumer now."""
        self._holders.pop(name, None)


async def set_paused(connection: AsyncConnection, shape: Shape, name: str, paused: bool) -> None:
    """Pause or resume a consumer."""
    parameters = {"name": name, "paused": paused, "channel": shape.log_channel, "changed": CONSUMER_CHANGED}
    row = await (await connection.execute(Statements(shape)["pause"], parameters)).fetchone()
    if row is None:
        raise await _unknown(connection, shape, name)


async def rename(
    connection: AsyncConnection, shape: Shape, old: str, new: str, *, max_wait_seconds: float = PATIENCE
) -> None:
    """Rename a consumer: its checkpoint, inbox, dead letters and part in replays under way.

    Waits up to `max_wait_seconds` for a replay to finish its current step.
    """
    try:
        cursor = await _change(connection, shape, "rename_consumer", {"old": old, "new": new}, max_wait_seconds)
    except psycopg.errors.UniqueViolation as problem:
        raise ConsumerNameTaken(
            f"consumer {new!r} already exists: forget it first with `aftercommit consumers forget {new}`"
        ) from problem
    await _require_done(cursor, connection, shape, old)


async def forget(connection: AsyncConnection, shape: Shape, name: str, *, max_wait_seconds: float = PATIENCE) -> None:
    """Remove a checkpoint that no program uses any more, with its inbox, and discard its open dead letters.

    Waits up to `max_wait_seconds` for a replay to finish its current step.
    """
    cursor = await _change(connection, shape, "forget_consumer", {"name": name}, max_wait_seconds)
    await _require_done(cursor, connection, shape, name)


async def _change(
    connection: AsyncConnection, shape: Shape, statement: str, names: dict[str, str], max_wait_seconds: float
) -> psycopg.AsyncCursor[Any]:
    """Run the statement between two steps of replays, so that it also changes what a replay has just fed."""
    statements = Statements(shape)

    async def change() -> psycopg.AsyncCursor[Any]:
        async with committed_async(connection):
            await connection.execute(statements["wait_briefly"], {"patience": f"{max_wait_seconds * 1000:.0f}ms"})
            await connection.execute(statements["lock_operations"])
            return await connection.execute(statements[statement], names)

    try:
        return await past_deadlocks(change)
    except psycopg.errors.LockNotAvailable as problem:
        rows = await (await connection.execute(statements["operations_under_way"])).fetchall()
        replays = ", ".join(str(row[0]) for row in rows) or "none"
        raise OperationBusy(
            f"a lock blocked the change for {max_wait_seconds:g} s, and nothing was changed. Replays under way: "
            f"{replays}. Try again when they are stopped or have ended: Ctrl-C stops one, `aftercommit replay "
            "abort ID` ends it"
        ) from problem


async def _require_done(cursor: psycopg.AsyncCursor[Any], connection: AsyncConnection, shape: Shape, name: str) -> None:
    row = await cursor.fetchone()
    if row and row[0]:
        return
    for each in await known_consumers(connection, shape):
        if each.name == name:
            raise ConsumerNameTaken(f"consumer {name!r} is running ({each.worker}): stop that worker first")
    raise await _unknown(connection, shape, name)


async def _unknown(connection: AsyncConnection, shape: Shape, name: str) -> AftercommitError:
    names = ", ".join(each.name for each in await known_consumers(connection, shape)) or "none"
    return AftercommitError(f"consumer {name!r} has no checkpoint: known consumers are {names}")


def _require_free(known: dict[str, KnownConsumer], outbox: Outbox, consumer: Consumer) -> None:
    mine = known.get(consumer.name)
    if mine is not None:
        _refuse_double(mine, consumer)
    elif consumer.start is None:
        _refuse_rename(known, outbox, consumer)


def _refuse_double(mine: KnownConsumer, consumer: Consumer) -> None:
    theirs, ours = set(mine.declared_by.split()), set(consumer.declared_by.split())
    if mine.alive and theirs.isdisjoint(ours) and ANY_TYPE not in theirs | ours:
        raise ConsumerNameTaken(
            f"consumer {consumer.name!r} is running elsewhere ({mine.worker}) and takes {mine.declared_by}, but this "
            f"program's takes {consumer.declared_by}: these are two consumers, and each would miss the events that the "
            "other handles. Choose another name for one of them"
        )


def _warn_of_lanes(running: KnownConsumer, consumer: Consumer) -> None:
    remedy = "stop the workers that run the other number: then this one divides the consumer anew and takes it"
    fields = {"consumer": consumer.name, "declared": consumer.lanes, "running": running.lanes, "remedy": remedy}
    log_event(logger, logging.WARNING, "consumer_lanes_differ", **fields)


def _refuse_rename(known: dict[str, KnownConsumer], outbox: Outbox, consumer: Consumer) -> None:
    orphans = [each for each in known.values() if each.name not in outbox.consumers and not each.alive]
    if orphans:
        orphan = orphans[0]
        raise ConsumerRenamed(
            f"consumer {consumer.name!r} has no checkpoint, while {orphan.name!r} (position {orphan.position}) is no "
            f"longer declared here. If you renamed it: `aftercommit consumers rename {orphan.name} {consumer.name}`. "
            f"If it is new, or the other one belongs to another program: declare outbox.consumer({consumer.name!r}, "
            f"start='earliest') or start='latest'. If the old one is not needed: `aftercommit consumers forget "
            f"{orphan.name}`"
        )
