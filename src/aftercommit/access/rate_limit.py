"""Rate limits that hold for any stretch of time, across processes, and cost most requests no round trip.

**Any stretch of time.** A limit of 100 in 60 seconds lets no more than 100 through in any 60 seconds, and refuses
nobody who stays within that: each request that passed is remembered with its moment (`sliding_log`).

**Across processes.** All processes share one log for each key, in a table. A process may let through a small share of
the limit (a hundredth, at least one request) on what it knows by itself. It then tells the others, twice a second, and
hears what they let through: one statement for all keys that were active. Whatever comes beyond that share before the
answer is there waits for it, and the database decides: it lets no more through than the limit. So with P processes at
most `limit + (P - 1) * share` pass. A request that finds the log full is refused from memory.

**Without the database** each process keeps the limit by itself, and the bound is `P * limit`. Requests that were
waiting are decided by then, within `ASK_SECONDS`.

Moments are those of the database's clock, which a process estimates to within a round trip.
"""

import asyncio
import hashlib
import math
import time
from typing import Any, Literal

import msgspec
import psycopg

from aftercommit.access.sliding_log import SECOND, SlidingLog, added_up, stamp
from aftercommit.errors import DeclarationError
from aftercommit.postgres.database import Database
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.postgres.shape import HasShape, Shape, shape_of
from aftercommit.postgres.statements import Statements
from aftercommit.schema.requirement import require_schema
from aftercommit.service import Probe, Waker

INTERVAL = 0.5
# Two exchanges are never closer than this: those who wait meanwhile are asked for together.
SHORTEST = 0.005
# A process lets through this part of a limit, and at least one request, before it has to ask.
SHARE = 100
# Who waits for the database waits so long; then this process decides alone, until the database answers again.
ASK_SECONDS = 0.5
# A clock that moves by more than this between two exchanges was set.
STEP_SECONDS = 1.0
MOST_KEYS = 100_000
FORGET_SECONDS = 60.0
# While nobody asks, the database is looked at so often: that it is gone is known before a request needs it.
LOOK_SECONDS = 5.0
# What the table has room for.
LONGEST_NAME = 100
LONGEST_KEY = 255


class Rate(msgspec.Struct, frozen=True):
    """So many requests in any so many seconds, of each user or of each resource."""

    of: Literal["user", "resource"]
    requests: int
    seconds: int

    def __post_init__(self) -> None:
        """Refuse limits that let nobody through or never end."""
        if self.of not in ("user", "resource"):
            raise DeclarationError(f"a rate of {self.of!r:.40} is not known: use 'user' or 'resource'")
        if not (1 <= self.requests <= 1_000_000_000 and 1 <= self.seconds <= 86_400):
            raise DeclarationError(
                f"a rate of {self.requests} requests in {self.seconds} seconds cannot be kept: allow at least one, "
                "within a second to a day"
            )

    @property
    def share(self) -> int:
        """What one process may let through before the others have heard of it."""
        return max(1, self.requests // SHARE)

    @property
    def enough(self) -> int:
        """How much is free when somebody who was refused is told to come back: for that request and the next ones."""
        return min(self.requests, max(2, self.requests // 50))


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """Whether a request may pass, and what is left: in `reset` seconds everything is free again, if nobody asks.

    `retry_after` is 0 for a request that passed, otherwise whole seconds after which it would pass and, unless the
    limit is 1, the next one too.
    """

    allowed: bool
    limit: int
    remaining: int
    reset: int
    retry_after: int


_Key = tuple[str, str, int]


class _KeyCount:
    """What is known of one key: the log of all processes as far as they were heard, and who waits for more."""

    __slots__ = ("log", "pending", "rate", "remembers_until", "unsent", "waiting")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.log = SlidingLog()
        # By moment, what the others cannot know yet; below zero what was given back.
        self.unsent: dict[int, int] = {}
        # What was let through without asking since the last exchange that was answered had been sent.
        self.pending = 0
        # Until then the table may know less than we do.
        self.remembers_until = 0
        self.waiting: list[asyncio.Future[bool | None]] = []

    def slide(self, now: int) -> None:
        since = now - self.rate.seconds * SECOND
        self.log.slide(since)
        if len(self.unsent) > 2 * len(self.log.moments) + 100:
            # The database has been away for long: others need not hear of what is over.
            self.unsent = {moment: count for moment, count in self.unsent.items() if moment > since}

    def note(self, moment: int, count: int) -> None:
        """The others are to hear of this."""
        total = self.unsent.pop(moment, 0) + count
        if total:
            self.unsent[moment] = total

    def allowance(self, now: int, *, allowed: bool) -> Allowance:
        limit, width, log = self.rate.requests, self.rate.seconds * SECOND, self.log
        reset = _seconds(log.moments[-1] + width - now, self.rate.seconds) if log.total else self.rate.seconds
        if allowed:
            return Allowance(True, limit, max(0, limit - log.total), reset, 0)
        free = log.has_room_from(limit - self.rate.enough) + width - now if log.total else SECOND
        return Allowance(False, limit, 0, reset, _seconds(free, self.rate.seconds))


class RateLimiter(DatabaseService):
    """The limits of one process. Without a database, or while it is away, they hold within this process alone."""

    name = "rate limiter"
    # What it has not told yet the others do not count; when a process ends, that is little.
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
        """Nothing counted. `max_keys` bounds the memory: beyond it the key that was first seen longest ago goes."""
        super().__init__(probe)
        if not SHORTEST <= interval_seconds <= 60 or max_keys < 1:
            raise DeclarationError(f"{interval_seconds=}, {max_keys=}: needs {SHORTEST} to 60 seconds and 1 key")
        self._database = database
        self._statements = Statements(shape_of(outbox) if outbox is not None else Shape())
        self._interval, self._most_keys = interval_seconds, max_keys
        self._counts: dict[_Key, _KeyCount] = {}
        # Those of whom the next exchange has something to tell or to ask.
        self._active: dict[_Key, _KeyCount] = {}
        self._is_away = False
        self._hurry = Waker()
        self._offset = time.time() - time.monotonic()
        self._forgot_at = time.monotonic()

    async def take(self, name: str, key: str, rate: Rate) -> Allowance:
        """Ask for one request; it is counted if it may pass. In memory, unless this process has used up its share."""
        count = self._counts.get((name, key, rate.seconds)) or self._begin((name, key, rate.seconds), rate)
        count.rate = rate
        now = self._now()
        count.slide(now)
        if count.log.total >= rate.requests:
            return count.allowance(now, allowed=False)
        if count.pending >= rate.share and not self._decides_alone():
            is_granted = await self._asked((name, key, rate.seconds), count)
            now = self._now()
            count.slide(now)
            if is_granted is not None:
                return count.allowance(now, allowed=is_granted)
            if count.log.total >= rate.requests:
                return count.allowance(now, allowed=False)
        count.note(count.log.add(stamp(now, rate.requests, rate.seconds)), 1)
        count.pending += 1
        self._active[name, key, rate.seconds] = count
        return count.allowance(now, allowed=True)

    def give_back(self, name: str, key: str, rate: Rate) -> Allowance:
        """One that has just passed is not to count: another limit has refused the request. What is left now."""
        count = self._counts.get((name, key, rate.seconds))
        if count is None:
            # Dropped to make room: it begins anew.
            return Allowance(True, rate.requests, rate.requests, rate.seconds, 0)
        moment = count.log.take_back()
        if moment is not None:
            count.note(moment, -1)
            self._active[name, key, rate.seconds] = count
        return count.allowance(self._now(), allowed=True)

    async def run(self) -> None:
        """Exchange logs with other processes until stopped."""
        if self._database is None:
            while not self.stopping.is_set():
                self._drop_old()
                await self.pause(FORGET_SECONDS)
        else:
            await super().run()

    async def session(self) -> None:
        """One connection, and an exchange on it now and then."""
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

    def _now(self) -> int:
        return int((time.monotonic() + self._offset) * SECOND)

    def _decides_alone(self) -> bool:
        return self._is_away or self._database is None or self._task is None or self._task.done()

    async def _asked(self, key: _Key, count: _KeyCount) -> bool | None:
        """Whether the database lets one more through; None where it does not say."""
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
        """The database has read its clock between these two moments of ours: what contradicts that is corrected."""
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
        by_text = {_storable(key): key for key in sent}
        asked_at = time.monotonic()
        try:
            cursor = await connection.execute(self._statements["exchange_rates"], _columns(by_text, sent), binary=True)
            rows = await cursor.fetchall()
        except BaseException:
            # Whether it was counted nobody knows: once too often is better than not at all.
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

    def _begin(self, key: _Key, rate: Rate) -> _KeyCount:
        if len(self._counts) >= self._most_keys:
            oldest = next(iter(self._counts))
            del self._counts[oldest]
            self._active.pop(oldest, None)
        count = self._counts[key] = _KeyCount(rate)
        return count


class _Sent:
    """What one exchange tells of a key, and who waits for its answer."""

    def __init__(self, count: _KeyCount) -> None:
        self.count = count
        self.taken, count.unsent = count.unsent, {}
        self.waiting, count.waiting = [each for each in count.waiting if not each.done()], []
        self.pending = count.pending

    def take_back(self) -> None:
        """It may not have arrived. Those who wait are decided here."""
        for moment, taken in self.taken.items():
            self.count.note(moment, taken)
        _answer(self.waiting, None)

    def hear(self, entries: dict[int, int], granted: int, now: int, *, is_new: bool) -> None:
        """The log of all processes; what was let through here meanwhile comes on top.

        A table that has lost what it knew, as after a crash of the server, does not make us forget, for one window.
        """
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
            # Who waited is gone, or was decided without.
            moment = count.log.take_back()
            if moment is not None:
                count.note(moment, -1)


def _answer(waiting: "list[asyncio.Future[bool | None]]", answer: bool | None) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(answer)


def _seconds(microseconds: int, most: int) -> int:
    return min(most, max(1, math.ceil(microseconds / SECOND)))


def _columns(by_text: dict[_Key, _Key], sent: dict[_Key, _Sent]) -> dict[str, list[Any]]:
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


def _storable(key: _Key) -> _Key:
    """The same as PostgreSQL can hold it: a name or key that is too long or no text is known by its hash."""
    return _text(key[0], LONGEST_NAME), _text(key[1], LONGEST_KEY), key[2]


def _text(value: str, longest: int) -> str:
    plain = value.encode("utf-8", "replace").decode()
    if plain == value and len(value) <= longest and "\x00" not in value:
        return value
    return "sha256:" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
