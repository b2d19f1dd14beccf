"""Keeps the lease of a relay, and watches which publishers have ended: what they wrote can no longer change.

It is also the safety net of the doorbell. When publishers have ended, the carriers look once for what nobody rang for:
an event from a plain INSERT, or from an older release's REPEATABLE READ transaction that began before the relay slept.
"""

import time
from collections.abc import Callable, Sequence

from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.shared import exclusive
from aftercommit.relay.lanes import Lanes
from aftercommit.relay.plan import Marks
from aftercommit.relay.writers import Writers
from aftercommit.service import Waker, wait_for_any

MARK_INTERVAL = 0.25
# Between two looks at the last seq while nothing is published.
REST_INTERVAL = 2.0


class ControlLoop:
    """Runs on one connection beside the carriers. `worked` wakes it: the watermark has to follow the carriers."""

    def __init__(self, lanes: Lanes, marks: Marks, writers: Writers, looks: Sequence[Waker]) -> None:
        """`looks` are set when the carriers should look for events without a ring."""
        self.worked = Waker()
        self._lanes = lanes
        self._marks = marks
        self._writers = writers
        self._looks = looks
        self._open: set[str] = set()

    async def keep(self, connection: AsyncConnection, answered: Callable[[], None]) -> None:
        """Work until cancelled; calls `answered` whenever the database has answered."""
        while True:
            resting = await self.observe(connection)
            answered()
            await self._ticking(connection, MARK_INTERVAL)
            if resting and not self.worked.is_set():
                await self._ticking(connection, REST_INTERVAL - MARK_INTERVAL, self.worked)
            self.worked.clear()

    async def observe(self, connection: AsyncConnection) -> bool:
        """Learn which writers have ended; returns whether all of them have."""
        before, were_open = self._marks.resolved, self._open
        # Both questions go to the same server.
        async with exclusive(connection) as own:
            last_seq = await self._writers.last_seq(own)
            if last_seq > before or were_open:
                self._open = await self._writers.open(own)
                self._marks.observe(last_seq, self._open)
        if self._marks.resolved > before or were_open - self._open:
            for look in self._looks:
                look.set()
        return self._marks.resolved >= last_seq

    async def _ticking(self, connection: AsyncConnection, seconds: float, *wakers: Waker) -> None:
        """Wait so long, or for one of the wakers, and renew the lease meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(waker.is_set() for waker in wakers):
            if self._lanes.seconds_to_tick == 0:
                await self._lanes.tick(connection)
            await wait_for_any(min(end - time.monotonic(), self._lanes.seconds_to_tick), self._lanes.tick_now, *wakers)
