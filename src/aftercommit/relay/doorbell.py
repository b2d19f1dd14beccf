"""Decides when a carrier sleeps and when publishers ring (NOTIFY), which in every transaction would halve their rate.

Publishers ring only while a relay says that it listens: from when it has run out of work until work comes in bulk. A
transaction that published before the relay said so does not ring. The relay finds such a transaction by its lock on
the outbox table, and polls at short intervals while it is open.

While nobody rings, a carrier that looked without a pause would find a few events at a time, and each look costs the
server as much as one that finds fifty. So it lets some gather between two looks.
"""

import time

from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.shape import LANES, Shape
from aftercommit.relay.lanes import Lanes
from aftercommit.relay.writers import Writers
from aftercommit.service import Waker

FOR_ALL = ""
# A safety net beside the control loop, which also finds what nobody rings for.
POLL = 5.0
POLL_WITHOUT_LISTENER = 0.05
SHORTEST_LOOK = 0.01
LONGEST_LOOK = 0.1
# Work comes in bulk when all carriers of a relay together take so many events in so short a time.
BUSY_EVENTS = 64
BUSY_SECONDS = 0.1
GATHER_SECONDS = 0.01


class Doorbell:
    """The bell of one carrier. It rings for events of the carrier's lanes, and when the lanes of the relay change.

    `rung`: work is there. `look`: look whether there is any.
    """

    def __init__(self, shape: Shape, lanes: Lanes, listener: Listener | None, number: int = 0, of: int = 1) -> None:
        self._writers = Writers(shape)
        self._flag = lanes.flag
        self._listener = listener
        self._unheard: set[str] = set()
        self._look = SHORTEST_LOOK
        self._share = max(1, BUSY_EVENTS // of)
        self._recently, self._since = 0, 0.0
        mine = None if of == 1 else {FOR_ALL, *(str(lane) for lane in range(LANES) if lane % of == number)}
        self.rung = listener.subscribe(shape.publish_channel, mine) if listener is not None else Waker()
        self.look = Waker()
        lanes.watch(self.rung)

    async def worked(self, connection: AsyncConnection, count: int) -> None:
        """The carrier took so many events: when work comes in bulk, publishers need not ring for it."""
        now = time.monotonic()
        if now - self._since > BUSY_SECONDS:
            self._recently, self._since = 0, now
        self._recently += count
        if self._recently >= self._share and self._flag.is_listening(self):
            # After it has run dry, it takes as many events again to silence the bell.
            self._recently = 0
            await self._flag.listen(connection, self, False)

    def gathering(self, count: int) -> float:
        """Seconds to let events gather, after a look that found so many and reached no limit.

        After a single one it does not wait: its publisher may wait for it before publishing the next.
        """
        is_silent = self._listener is not None and not self._flag.is_listening(self)
        return GATHER_SECONDS if is_silent and count > 1 else 0.0

    @property
    def hears(self) -> bool:
        """Whether every publisher rings for this carrier."""
        working = self._listener is not None and self._listener.working
        return working and self._flag.is_listening(self) and not self._unheard

    async def ran_dry(self, connection: AsyncConnection) -> float:
        """Nothing was due: seconds to wait for the bell; 0 means look again at once."""
        if self._listener is None or not self._listener.working:
            return POLL_WITHOUT_LISTENER
        if not self._flag.is_listening(self):
            await self._flag.listen(connection, self, True)
            self._unheard = await self._writers.open(connection)
            self._look = SHORTEST_LOOK
            return 0.0
        if self._unheard:
            self._unheard &= await self._writers.open(connection)
            self._look = min(LONGEST_LOOK, self._look * 1.5)
            return self._look if self._unheard else 0.0
        return POLL
