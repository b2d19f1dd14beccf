"""Events that a consumer's code does not know yet: for how long it waits for newer code, and who is told.

The wait stands in the database, so that it survives a restart, `status` shows it, and a worker that knows the version
may take the consumer over at once.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import psycopg

from aftercommit.consumer.lease import CONSUMER_CHANGED
from aftercommit.consumer.slices import SliceItem
from aftercommit.errors import NewerVersion
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# A delivery or dead letter that waits for newer code is looked at again after so many seconds.
LOOK_AGAIN: Final = 5.0

Ask = Callable[[str, dict[str, Any]], Awaitable[list[Any]]]
Kind = tuple[str, int]


class VersionWaits:
    """What one consumer waits for."""

    def __init__(self, outbox: Outbox, consumer: Consumer, token: Any = None) -> None:
        """With a `token` only its holder may begin or prolong a wait."""
        self._meter = outbox.meter
        self._consumer = consumer
        self._parameters = {
            "consumer": consumer.name,
            "token": token,
            "seconds": consumer.version_wait_seconds,
            "channel": outbox.shape.log_channel,
            "changed": CONSUMER_CHANGED,
        }
        self._statements = Statements(outbox.shape)
        self._told: set[Kind] = set()
        self._noted_at: float | None = None

    async def seconds_left(self, ask: Ask, newer: NewerVersion) -> float | None:
        """For how long this version is still waited for (0: no longer); None when the consumer is not ours any more."""
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

    def asking(self, connection: psycopg.AsyncConnection[Any]) -> Ask:
        """How to ask on a connection of one's own."""

        async def ask(name: str, parameters: dict[str, Any]) -> list[Any]:
            return await (await connection.execute(self._statements[name], parameters)).fetchall()

        return ask

    def over(self) -> None:
        """Nothing is waited for now."""
        self._noted_at = None
        self._meter.on_version_wait(self._consumer.name, 0.0)

    def lapse(self) -> None:
        """Nothing of the kind was met this time; when it is not met for a while, nothing is waited for."""
        if self._noted_at is not None and time.monotonic() - self._noted_at > 2 * LOOK_AGAIN:
            self.over()

    def _tell(self, newer: NewerVersion, until: Any) -> None:
        log_event(
            logger,
            logging.WARNING,
            "consumer_waiting_for_version",
            consumer=self._consumer.name,
            event_type=newer.event_type,
            version=newer.version,
            known=newer.known,
            until=until.isoformat(),
            remedy="start a worker with the newer code: it takes over at once. Events that are left by then are parked",
        )


def look_again_in(left: dict[Kind, float | None]) -> float:
    """After how many seconds what is waited for is looked at again: not later than the first wait is over."""
    return min([LOOK_AGAIN, *(seconds for seconds in left.values() if seconds)])


def waits(item: SliceItem, left: dict[Kind, float | None]) -> bool:
    """Whether this event is one that is still waited for."""
    return item.newer is not None and left[item.newer.kind] != 0.0
