"""Rate limits over a sliding window that all processes share. Most requests cost no round trip.

**Sliding window.** A limit of 100 in 60 seconds lets at most 100 requests through in any 60 seconds, and refuses no
request within that: `sliding_log` keeps the time of each request that passed.

**Across processes.** All processes share one log for each key, in a table. A process may let through a small share of
the limit (a hundredth, at least one request) without asking. Twice a second, one statement for all active keys writes
what it let through and reads what the others did. Requests beyond the share wait for that exchange, and the database
decides: it lets no more through than the limit. A request that arrives during an exchange waits for its answer. So with
P processes at most `limit + (P - 1) * share` pass. A request that finds the log full is refused from memory.

**Without the database** each process keeps the limit by itself, so at most `P * limit` pass. A request that was waiting
is decided within `ASK_SECONDS`.

Times are those of the database's clock, which a process estimates to within a round trip.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import psycopg

from aftercommit.access.key_count import Allowance, Key, KeyCount, Rate
from aftercommit.access.sliding_log import SECOND, SlidingLog, added_up
from aftercommit.errors import DeclarationError
from aftercommit.postgres.database import Database
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.postgres.shape import HasShape, Shape, shape_of
from aftercommit.postgres.statements import Statements
from aftercommit.schema.requirement import require_schema
from aftercommit.service import Probe, Waker
from aftercommit.text import text_or_hash

INTERVAL = 0.5
# The least time between two exchanges; requests that wait meanwhile share the next one.
SHORTEST = 0.005
# A request waits so long for the database. Then this process decides alone, until the database answers again.
ASK_SECONDS = 0.5
# A clock that jumps by more than this between two exchanges was set.
STEP_SECONDS = 1.0
MOST_KEYS = 100_000
FORGET_SECONDS = 60.0
# How often an idle limiter checks the database, so that an outage is known before a request needs it.
LOOK_SECONDS = 5.0
# The widths of the table's columns.
LONGEST_NAME = 100
LONGEST_KEY = 255


class RateLimiter(DatabaseService):
    """The rate limits of one process. Without a database, or during its outage, they hold for this process only."""

    name = "rate limiter"
    # The other processes do not count requests that were not sent yet; when a process ends, those are few.
    may_be_cut = True

    def __init__(
        self,
        database: Database | None = None,
        outbox: HasShape | Shape | None = None,
        *,
        interval_seconds: float = INTERVAL,
        max_keys: int = MOST_KEYS,
        probe: Probe | None = None,
    ) -> None:
        """`max_keys` bounds the memory: one more key removes the oldest."""
        super().__init__(probe)
        if not SHORTEST <= interval_seconds <= 60 or max_keys < 1:
            raise DeclarationError(f"{interval_seconds=}, {max_keys=}: use {SHORTEST} to 60 seconds and at least 1 key")
        self._database = database
        self._statements = Statements(shape_of(outbox) if outbox is not None else Shape())
        self._interval, self._most_keys = interval_seconds, max_keys
        self._counts: dict[Key, KeyCount] = {}
        # The keys of the next exchange.
        self._active: dict[Key, KeyCount] = {}
        self._is_away = False
        self._hurry = Waker()
        self._offset = time.time() - time.monotonic()
        self._forgot_at = time.monotonic()

    async def take(self, name: str, key: str, rate: Rate) -> Allowance:
        """Count one request if it may pass. Without a round trip, unless this process has used up its share."""
        count = self._counts.get(counted := (name, key, rate.seconds)) or self._begin(counted, rate)
        count.use(rate)
        while (exchange := count.exchange) is not None and not self._decides_alone():
            if not (await asyncio.wait([exchange], timeout=ASK_SECONDS))[0]:
                self._is_away = True
        if not count.has_room(now := self._now()):
            return count.allowance(now, allowed=False)
        if count.has_to_ask and not self._decides_alone():
            is_granted = await self._asked(counted, count)
            has_room = count.has_room(now := self._now())
            if is_granted is not None or not has_room:
                return count.allowance(now, allowed=bool(is_granted))
        self._active[counted] = count
        count.passed(now)
        return count.allowance(now, allowed=True)

    def passing(self, counters: Iterable[tuple[tuple[str, str, int], Rate]]) -> Callable[[], list[int]] | None:
        """What counts a request that may pass these limits without a round trip, if called at once; None if it may not.

        A counter has a name, a key and seconds. For each limit it returns the remaining requests and the reset.
        """
        now, found = self._now(), []
        for key, rate in counters:
            count = self._counts.get(key) or self._begin(key, rate)
            if count.rate is not rate:
                count.use(rate)
            if not count.has_room(now) or (count.has_to_ask and not self._decides_alone()):
                return None
            found.append((key, count))
        return partial(self._count_all, found, now)

    def give_back(self, name: str, key: str, rate: Rate) -> Allowance:
        """Take back the last request, because another limit has refused it; returns what remains."""
        count = self._counts.get((name, key, rate.seconds))
        if count is None:
            # The key was dropped to make room.
            return Allowance(True, rate.requests, rate.requests, rate.seconds, 0)
        moment = count.log.take_back()
        if moment is not None:
            count.note(moment, -1)
            self._active[name, key, rate.seconds] = count
        return count.allowance(self._now(), allowed=True)

    async def run(self) -> None:
        """Exchange counts with the other processes until stopped."""
        if self._database is None:
            while not self.stopping.is_set():
                self._drop_old()
                await self.pause(FORGET_SECONDS)
        else:
            await super().run()

    async def session(self) -> None:
        """Exchange counts on one connection."""
        assert self._database is not None
        connection = await self._database.connect(bounded=True)
        try:
            await require_schema(connection, self._statements.shape)
            await self._set_clock(connection)
            self._is_away = False
            looked_at = -math.inf
            while not self.stopping.is_set():
                if self._active or time.monotonic() - looked_at >= LOOK_SECONDS:
                    await self._exchange(connection)
                    self.session_is_up()
                    looked_at = time.monotonic()
                await self._forget(connection)
                await self.pause(SHORTEST)
                await self.pause(self._interval - SHORTEST, self._hurry)
            await self._exchange(connection)
        finally:
            self._is_away = True
            for count in self._active.values():
                _answer(count.waiting, None)
            await close_quietly(connection)

    def _count_all(self, passing: list[tuple[Key, KeyCount]], now: int) -> list[int]:
        figures: list[int] = []
        for key, count in passing:
            self._active[key] = count
            count.passed(now)
            figures += (count.remaining(), count.reset(now))
        return figures

    def _now(self) -> int:
        return int((time.monotonic() + self._offset) * SECOND)

    def _decides_alone(self) -> bool:
        return self._is_away or self._database is None or self._task is None or self._task.done()

    async def _asked(self, key: Key, count: KeyCount) -> bool | None:
        """Whether the database lets one more request through; None if it does not answer in time."""
        answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        count.waiting.append(answer)
        self._active[key] = count
        self._hurry.set()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await answer
        except TimeoutError:
            self._is_away = True
            return None

    async def _set_clock(self, connection: psycopg.AsyncConnection[Any]) -> None:
        asked_at = time.monotonic()
        row = await (await connection.execute(self._statements["guard_clock"])).fetchone()
        assert row is not None
        self._hear_clock(row[0], asked_at)

    def _hear_clock(self, moment: float, asked_at: float) -> None:
        """Correct our estimate: the database has read its clock between `asked_at` and now."""
        least, most = moment - time.monotonic(), moment - asked_at
        before = self._offset
        self._offset = min(max(before, least), most)
        if abs(self._offset - before) > STEP_SECONDS:
            for count in self._counts.values():
                count.log.shift(int((self._offset - before) * SECOND))

    async def _exchange(self, connection: psycopg.AsyncConnection[Any]) -> None:
        active, self._active = self._active, {}
        if not active:
            return await self._set_clock(connection)
        sent = {key: _Sent(count) for key, count in active.items()}
        by_text = {(text_or_hash(key[0], LONGEST_NAME), text_or_hash(key[1], LONGEST_KEY), key[2]): key for key in sent}
        asked_at = time.monotonic()
        try:
            cursor = await connection.execute(self._statements["exchange_rates"], _columns(by_text, sent), binary=True)
            rows = await cursor.fetchall()
        except BaseException:
            # Whether the database has counted them is not known: counting twice is better than not at all.
            for key, each in sent.items():
                each.take_back()
                self._active[key] = each.count
            raise
        self._is_away = False
        self._hear_clock(rows[0][-1], asked_at)
        for name, key, seconds, moments, taken, granted, is_new, _clock in rows:
            known = by_text[name, key, seconds]
            told = sent[known]
            told.hear(dict(zip(moments, taken, strict=True)), granted, self._now(), is_new=is_new)
            if told.count.unsent:
                self._active[known] = told.count
        await self.reach("rates.exchanged", count=sum(sum(each.taken.values()) for each in sent.values()))

    async def _forget(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if time.monotonic() - self._forgot_at < FORGET_SECONDS:
            return
        self._drop_old()
        await connection.execute(self._statements["forget_rates"])

    def _drop_old(self) -> None:
        self._forgot_at = time.monotonic()
        now = self._now()
        if self._database is None:
            self._active.clear()
        for key, count in list(self._counts.items()):
            count.slide(now)
            if not count.log.total and key not in self._active:
                del self._counts[key]

    def _begin(self, key: Key, rate: Rate) -> KeyCount:
        if len(self._counts) >= self._most_keys:
            oldest = next(iter(self._counts))
            del self._counts[oldest]
            self._active.pop(oldest, None)
        count = self._counts[key] = KeyCount(rate)
        return count


class _Sent:
    """What one exchange sends for a key, and the requests that wait for its answer."""

    def __init__(self, count: KeyCount) -> None:
        self.count = count
        self.taken, count.unsent = count.unsent, {}
        self.waiting, count.waiting = [each for each in count.waiting if not each.done()], []
        self.pending = count.pending
        self.exchange = count.exchange = asyncio.get_running_loop().create_future()

    def take_back(self) -> None:
        """The exchange failed: send it again next time, and let this process decide about waiting requests."""
        self._end()
        for moment, taken in self.taken.items():
            self.count.note(moment, taken)
        _answer(self.waiting, None)

    def hear(self, entries: dict[int, int], granted: int, now: int, *, is_new: bool) -> None:
        """Take over the log of all processes, and add what this process has let through meanwhile.

        If the table is new, as after a crash of the server, this process keeps its own log for one window.
        """
        self._end()
        count = self.count
        count.pending -= self.pending
        count.slide(now)
        heard = SlidingLog(added_up(entries.items(), count.unsent.items()))
        if is_new:
            count.remembers_until = now + count.rate.seconds * SECOND
        if now < count.remembers_until and heard.total - granted < count.log.total:
            room = max(0, min(granted, count.rate.requests - count.log.total))
            if granted > room:
                count.note(max(entries), room - granted)
            if room:
                count.log.add(max(entries), room)
            granted = room
        else:
            count.log = heard
        for answer in self.waiting:
            if not answer.done():
                answer.set_result(granted > 0)
                granted -= granted > 0
        for _ in range(granted):
            # The request that waited was cancelled, or decided without the database.
            moment = count.log.take_back()
            if moment is not None:
                count.note(moment, -1)

    def _end(self) -> None:
        self.count.exchange = None
        self.exchange.set_result(None)


def _answer(waiting: "list[asyncio.Future[bool | None]]", answer: bool | None) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(answer)


def _columns(by_text: dict[Key, Key], sent: dict[Key, _Sent]) -> dict[str, list[Any]]:
    names, keys, seconds = zip(*by_text, strict=True)
    each = [sent[key] for key in by_text.values()]
    entries = [(place, *entry) for place, one in enumerate(each, 1) for entry in one.taken.items()]
    return {
        "names": list(names),
        "keys": list(keys),
        "seconds": list(seconds),
        "most": [one.count.rate.requests for one in each],
        "asked": [len(one.waiting) for one in each],
        "places": [place for place, _, _ in entries],
        "moments": [moment for _, moment, _ in entries],
        "taken": [taken for _, _, taken in entries],
    }
