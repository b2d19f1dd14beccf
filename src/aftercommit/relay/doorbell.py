"""When to sleep and when publishers must ring: a NOTIFY in every transaction would cost them half their throughput.

Publishers ring only while a relay says that it listens. The relay says so when it has run out of work, and takes it
back when work comes in bulk. A transaction that published before the relay said so will not ring; it is found by its
lock on the outbox table, and while such a transaction is open the relay looks for itself at short intervals.

While nobody rings and events stream in, looking without a pause would find a few at a time, and each look costs the
server as much as one that finds fifty: so some may gather between two looks.
"""

import time
from typing import Any

import psycopg
from psycopg import sql

from aftercommit.errors import DatabaseUnavailable
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.shape import LANES, Shape
from aftercommit.postgres.statements import Statements
from aftercommit.relay.lanes import Lanes
from aftercommit.service import Waker

FOR_ALL = ""
POLL = 1.0
POLL_WITHOUT_LISTENER = 0.05
SHORTEST_LOOK = 0.01
LONGEST_LOOK = 0.1
# Work comes in bulk: so many at once, or several times in a row more than a single publisher could have made.
BUSY_BATCH = 64
BUSY_STREAK = 4
CROWD = 4
IN_A_ROW_SECONDS = 0.1
GATHER_SECONDS = 0.01


class Doorbell:
    """One carrier's bell: decides how long the carrier may wait for it. Also rings when the relay's lanes change."""

    def __init__(self, shape: Shape, lanes: Lanes, listener: Listener | None, number: int = 0, of: int = 1) -> None:
        """Awake. One of several carriers hears what is meant for its lanes, and what is meant for all."""
        self._statements = Statements(shape)
        self._outbox = sql.Identifier(shape.schema, "outbox").as_string()
        self._lanes = lanes
        self._listener = listener
        self._unheard: set[str] = set()
        self._look = SHORTEST_LOOK
        self._streak = 0
        self._worked_at = 0.0
        self._seen: tuple[object, int] | None = None
        mine = None if of == 1 else {FOR_ALL, *(str(lane) for lane in range(LANES) if lane % of == number)}
        self.rung = listener.subscribe(shape.publish_channel, mine) if listener is not None else Waker()
        lanes.watch(self.rung)

    async def worked(self, connection: psycopg.AsyncConnection[Any], count: int, *, full: bool) -> None:
        """A batch was carried, which may have been `full`: when work comes in bulk, publishers need not ring for us."""
        now = time.monotonic()
        in_a_row = self._streak if now - self._worked_at < IN_A_ROW_SECONDS else 0
        self._streak = in_a_row + 1 if full or count >= CROWD else 0
        self._worked_at = now
        if self._lanes.is_listening(self) and (count >= BUSY_BATCH or self._streak >= BUSY_STREAK):
            await self._lanes.listen(connection, self, False)

    def gathering(self, count: int) -> float:
        """Seconds to let events come together, after a look that found so many and left none."""
        return GATHER_SECONDS if count > 1 and not self._lanes.is_listening(self) else 0.0

    @property
    def hears(self) -> bool:
        """Whether every publisher rings for this carrier, and has done so for a while."""
        working = self._listener is not None and self._listener.working
        return working and self._lanes.is_listening(self) and not self._unheard

    async def ran_dry(self, connection: psycopg.AsyncConnection[Any]) -> float:
        """Nothing was due. Seconds to wait for the bell; 0 means to look once more at once."""
        self._streak = 0
        if self._listener is None or not self._listener.working:
            return POLL_WITHOUT_LISTENER
        if not self._lanes.is_listening(self):
            await self._lanes.listen(connection, self, True)
            self._unheard = await self.open_writers(connection)
            self._look = SHORTEST_LOOK
            return 0.0
        if self._unheard:
            self._unheard &= await self.open_writers(connection)
            self._look = min(LONGEST_LOOK, self._look * 1.5)
            return self._look if self._unheard else 0.0
        return POLL

    async def open_writers(self, connection: psycopg.AsyncConnection[Any]) -> set[str]:
        """Transactions that have published and have not ended."""
        cursor = await connection.execute(self._statements["open_writers"], {"outbox": self._outbox})
        row = await cursor.fetchone()
        return set(row[0]) if row else set()

    async def last_seq(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """The last seq that anybody drew; DatabaseUnavailable when this is not the server that it was."""
        row = await (await connection.execute(self._statements["last_seq"])).fetchone()
        last_seq, started_at = row or (0, None)
        if self._seen is not None and (self._seen[0] != started_at or self._seen[1] > last_seq):
            raise DatabaseUnavailable(
                "the server behind this connection was restarted, restored or replaced by another"
            )
        self._seen = (started_at, last_seq)
        return int(last_seq)

    def forget(self) -> None:
        """After a reconnect: whatever server there is now is the one that counts."""
        self._seen = None
