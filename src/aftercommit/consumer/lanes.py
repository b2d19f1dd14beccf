"""Divides a consumer into lanes, each with a checkpoint and a lease of its own, so that several workers share it.

The outbox hashes each aggregate to one of 64 lanes. A consumer with n lanes takes these modulo n.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from aftercommit.consumer.lease import CONSUMER_CHANGED
from aftercommit.errors import DeclarationError
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection, committed_async
from aftercommit.postgres.shape import LANES, Shape
from aftercommit.postgres.shared import exclusive
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")


class LaneRow(NamedTuple):
    """A row of a consumer: the whole one, or one of its lanes."""

    lane: int | None
    lanes: int
    position: int
    inbox: bool
    is_held: bool


class Division(NamedTuple):
    """The checkpoints of new lanes. `is_exact`: no event after one of them was read by an old lane."""

    positions: list[int]
    is_exact: bool


def redivide(old: Sequence[int], lanes: int) -> Division:
    """Each new lane begins at the lowest checkpoint of the old lanes that had one of its aggregates."""
    sources = [{old[hashed % len(old)] for hashed in range(lane, LANES, lanes)} for lane in range(lanes)]
    return Division([min(source) for source in sources], all(len(source) == 1 for source in sources))


async def divide(connection: AsyncConnection, shape: Shape, consumer: Consumer) -> bool:
    """Give a consumer that nobody works for the lanes that this code declares; returns whether it has them now."""
    statements = Statements(shape)
    async with exclusive(connection) as own, committed_async(own):
        cursor = await own.execute(statements["lanes_of_consumer"], {"consumer": consumer.name})
        rows = [LaneRow(*row) for row in await cursor.fetchall()]
        whole = next((row for row in rows if row.lane is None), None)
        if whole is None or whole.lanes == consumer.lanes:
            return whole is not None
        old = [whole] if whole.lanes == 1 else sorted(row for row in rows if row.lane is not None)
        if len(old) < whole.lanes or any(row.is_held for row in old):
            # A worker has it, or a slice locks a lane.
            return False
        division = redivide([row.position for row in old], consumer.lanes)
        if not division.is_exact and not (consumer.inbox and all(row.inbox for row in old)):
            raise _would_repeat(consumer, old)
        asked: dict[str, Any] = {
            "consumer": consumer.name,
            "lanes": consumer.lanes,
            "positions": division.positions,
            "channel": shape.log_channel,
            "changed": CONSUMER_CHANGED,
        }
        await own.execute(statements["divide_consumer"], asked)
        await own.execute(statements["add_lanes"], asked)
    fields = {"consumer": consumer.name, "lanes": consumer.lanes, "before": whole.lanes}
    log_event(logger, logging.INFO, "consumer_divided", **fields, position=min(division.positions))
    return True


def _would_repeat(consumer: Consumer, old: Sequence[LaneRow]) -> DeclarationError:
    positions = [row.position for row in old]
    return DeclarationError(
        f"consumer {consumer.name!r} cannot change from {len(old)} to {consumer.lanes} lanes now: it has no inbox, its "
        f"lanes are at positions {min(positions)} to {max(positions)}, and it would handle events in between again. "
        f"Declare lanes={len(old)} or a multiple, let its workers come to the end of the log, or move it to one "
        f"position: `aftercommit consumers seek {consumer.name} --to …`"
    )
