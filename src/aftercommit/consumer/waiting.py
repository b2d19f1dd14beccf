"""Events of a version that a consumer's code does not know yet: how long it waits for newer code.

The database keeps the wait, so that it survives a restart, `status` shows it, and a worker that knows the version can
take the consumer over at once.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from aftercommit.consumer.host import Host
from aftercommit.consumer.lease import CONSUMER_CHANGED, Lease
from aftercommit.consumer.slices import SliceItem
from aftercommit.errors import LeaseLost, NewerVersion
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# Seconds until the next look at a delivery or dead letter that waits for newer code.
LOOK_AGAIN: Final = 5.0

Ask = Callable[[str, dict[str, Any]], Awaitable[list[Any]]]
Kind = tuple[str, int]


class VersionWaits:
    """The versions that one consumer waits for. With a `lease`, only its holder may begin or extend a wait."""

    def __init__(self, outbox: Outbox, consumer: Consumer, lease: Lease | None = None) -> None:
        self._meter = outbox.meter
        self._consumer = consumer
        self._parameters = {
            "consumer": consumer.name if lease is None else lease.name,
            "token": None if lease is None else lease.token,
            "seconds": consumer.version_wait_seconds,
            "channel": outbox.shape.log_channel,
            "changed": CONSUMER_CHANGED,
        }
        self._statements = Statements(outbox.shape)
        self._told: set[Kind] = set()
        self._noted_at: float | None = None

    async def seconds_left(self, ask: Ask, newer: NewerVersion) -> float | None:
        """How long to wait for this version (0: no longer); None when another worker has the consumer."""
        met = {"event_type": newer.event_type, "version": newer.version, "known": newer.known}
        rows = await ask("note_version_wait", {**self._parameters, **met})
        if not rows:
            return None
        left, waited, until = rows[0][:3]
        self._meter.on_version_wait(self._consumer.name, waited if left > 0 else 0.0)
        self._noted_at = time.monotonic()
        if left > 0 and newer.kind not in self._told:
            self._told.add(newer.kind)
            self._tell(newer, until)
        return max(0.0, float(left))

    async def of(self, ask: Ask, items: Iterable[SliceItem]) -> dict[Kind, float | None]:
        """The same for every version that these events have and this code does not know."""
        newer = {item.newer.kind: item.newer for item in items if item.failure is not None and item.newer is not None}
        return {kind: await self.seconds_left(ask, each) for kind, each in newer.items()}

    def asking(self, connection: AsyncConnection) -> Ask:
        """A function that asks on this connection."""

        async def ask(name: str, parameters: dict[str, Any]) -> list[Any]:
            return await (await connection.execute(self._statements[name], parameters)).fetchall()

        return ask

    def over(self) -> None:
        """The consumer waits for nothing now."""
        self._noted_at = None
        self._meter.on_version_wait(self._consumer.name, 0.0)

    def lapse(self) -> None:
        """No unknown version was met this time; after a while without one the wait is over."""
        if self._noted_at is not None and time.monotonic() - self._noted_at > 2 * LOOK_AGAIN:
            self.over()

    def _tell(self, newer: NewerVersion, until: Any) -> None:
        fields = {
            "consumer": self._consumer.name,
            "event_type": newer.event_type,
            "version": newer.version,
            "known": newer.known,
            "until": until.isoformat(),
            "remedy": "start a worker with the newer code: it takes over at once. Events left by then are parked",
        }
        log_event(logger, logging.WARNING, "consumer_waiting_for_version", **fields)


class CheckpointWait:
    """The event after a worker's checkpoint, while it waits for newer code."""

    def __init__(self, waits: VersionWaits, ask_seconds: float, host: Host) -> None:
        self._waits = waits
        self._ask_seconds = ask_seconds
        self._host = host
        self._awaited: tuple[int, NewerVersion] | None = None
        self._ask_at = 0.0

    def rests_at(self, position: int) -> bool:
        """Whether the event after this position waits, and it is too soon to ask again."""
        return self._awaited is not None and self._awaited[0] == position and time.monotonic() < self._ask_at

    def over(self) -> None:
        """The worker begins elsewhere and waits for nothing."""
        self._awaited = None
        self._waits.over()

    async def cut(
        self, connection: AsyncConnection, items: list[SliceItem], position: int, upto: int
    ) -> tuple[list[SliceItem], int]:
        """The part of a page before the first event that waits for newer code, and the position up to which it goes."""
        left = await self._waits.of(self._waits.asking(connection), items)
        for index, item in enumerate(items):
            if item.newer is not None and waits(item, left):
                before = item.position - 1
                self._awaited, self._ask_at = (before, item.newer), time.monotonic() + self._ask_seconds
                await self._look(left[item.newer.kind], item.newer, position)
                return items[:index], before
        return items, upto

    async def goes_on(self, connection: AsyncConnection, position: int) -> bool:
        """Whether the event after this position still waits."""
        if self._awaited is None or self._awaited[0] != position:
            return False
        newer = self._awaited[1]
        if time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + self._ask_seconds
            left = await self._waits.seconds_left(self._waits.asking(connection), newer)
            await self._look(left, newer, position)
        return self._awaited is not None

    async def _look(self, left: float | None, newer: NewerVersion, position: int) -> None:
        if left is None:
            raise LeaseLost(f"a worker that knows version {newer.version} of {newer.event_type} took over")
        if left == 0.0:
            self._awaited = None
        await self._host.reach("consumer.waiting", position=position, version=newer.version, left=left)


def look_again_in(left: dict[Kind, float | None]) -> float:
    """Seconds until the next look at waiting events: not later than the end of the first wait."""
    return min([LOOK_AGAIN, *(seconds for seconds in left.values() if seconds)])


def waits(item: SliceItem, left: dict[Kind, float | None]) -> bool:
    """Whether this event still waits for newer code."""
    return item.newer is not None and left[item.newer.kind] != 0.0
