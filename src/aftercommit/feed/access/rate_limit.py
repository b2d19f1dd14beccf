"""Rate limits that hold across processes, and cost a request no round trip.

Each process counts in memory and decides at once. About twice a second, and sooner for a key that is used hard, it adds
what it let through to a table and takes back the sum of all processes, in one statement for all keys that were active.

**Windows slide.** What counts is what was let through in this window, and of the window before the share that is still
within the last `seconds`: `before * (1 - elapsed / seconds) + now`. So nobody gets twice the limit at the turn of a
minute. Windows are told by the database's clock.

**Overshoot.** A process sees what the others let through when it hears of their exchanges. With P processes at most
`limit + (P - 1) * a` requests pass in a window, where `a` is the most that one process lets through from the moment it
sends an exchange until the answer to its next one is there: what reaches it within `interval` and two round trips, and
never more than the limit. A key that has used a tenth of its limit since the last exchange asks for one at once: then
`a` is `limit / 10` and what arrives within 50 ms and two round trips.
Without the database each process keeps the limit by itself, and the bound is `P * limit`.
"""

import hashlib
import math
import time
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import psycopg

from aftercommit.errors import DeclarationError
from aftercommit.postgres.database import Database, require_schema
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.postgres.shape import HasShape, Shape, shape_of
from aftercommit.postgres.statements import Statements
from aftercommit.service import Probe, Waker

INTERVAL = 0.5
# Two exchanges are never closer than this, however hard a key is used.
SHORTEST = 0.05
# The share of a limit after which a key does not wait for the next exchange.
HASTE = 10
MOST_KEYS = 100_000
FORGET_SECONDS = 60.0
# What the table has room for.
LONGEST_NAME = 100
LONGEST_KEY = 255


class Rate(msgspec.Struct, frozen=True):
    """So many requests in so many seconds, of each user or of each resource."""

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


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """Whether a request may pass, and what is left: `reset` seconds to the end of the window.

    `retry_after` is 0 for a request that passed, otherwise whole seconds after which one would pass.
    """

    allowed: bool
    limit: int
    remaining: int
    reset: int
    retry_after: int


class _Counter:
    """What is known of one key: this window and the one before, of all processes as far as they were heard."""

    __slots__ = ("before", "now", "number", "seconds", "sent")

    def __init__(self, number: int, seconds: int) -> None:
        self.number, self.seconds = number, seconds
        self.now = self.before = 0
        # What of `now` the others can know: it was in the last exchange.
        self.sent = 0

    def turn(self, number: int) -> int:
        """Go on to another window; the number of the one that counts.

        Clocks are compared at every exchange and may step back a little, also over the turn of a window: that does
        not bring the former one back, in which nothing would be counted any more.
        """
        if number != self.number - 1:
            self.before = self.now if number == self.number + 1 else 0
            self.number, self.now, self.sent = number, 0, 0
        return self.number


_Key = tuple[str, str, int]
_Window = tuple[str, str, int, int]


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
        interval: float = INTERVAL,
        most_keys: int = MOST_KEYS,
        probe: Probe | None = None,
    ) -> None:
        """Nothing counted. `most_keys` bounds the memory: beyond it the key that was first seen longest ago goes."""
        super().__init__(probe)
        if not SHORTEST <= interval <= 60 or most_keys < 1:
            raise DeclarationError(f"{interval=}, {most_keys=}: needs {SHORTEST} to 60 seconds and 1 key or more")
        self._database = database
        self._statements = Statements(shape_of(outbox) if outbox is not None else Shape())
        self._interval, self._most_keys = interval, most_keys
        self._counters: dict[_Key, _Counter] = {}
        self._unsent: dict[_Window, int] = {}
        self._hurry = Waker()
        self._offset = time.time() - time.monotonic()
        self._forgot_at = time.monotonic()

    def take(self, name: str, key: str, rate: Rate) -> Allowance:
        """Ask for one request; it is counted if it may pass. In memory, never waits."""
        seconds, limit = rate.seconds, rate.requests
        moment = time.monotonic() + self._offset
        number = int(moment // seconds)
        counter = self._counters.get((name, key, seconds)) or self._begin((name, key, seconds), number)
        if number != counter.number:
            number = counter.turn(number)
        elapsed = max(0.0, moment - number * seconds)
        used = counter.before * (1 - elapsed / seconds) + counter.now
        reset = math.ceil(seconds - elapsed)
        if used + 1 > limit:
            return Allowance(False, limit, 0, reset, _retry_after(counter, limit, elapsed))
        counter.now += 1
        window = (name, key, seconds, number)
        self._unsent[window] = self._unsent.get(window, 0) + 1
        if len(self._unsent) > self._most_keys:
            # The database has been away for long: others will not hear of what is over.
            self._unsent.clear()
        if (counter.now - counter.sent) * HASTE >= limit:
            self._hurry.set()
        return Allowance(True, limit, int(limit - used - 1), reset, 0)

    def give_back(self, name: str, key: str, rate: Rate) -> Allowance:
        """One that has just passed is not to count: another limit has refused the request. What is left now."""
        seconds, limit = rate.seconds, rate.requests
        counter = self._counters.get((name, key, seconds))
        if counter is None:
            # Dropped to make room: it begins anew.
            return Allowance(True, limit, limit, seconds, 0)
        window = (name, key, seconds, counter.number)
        if (unsent := self._unsent.pop(window, 0)) > 0:
            counter.now -= 1
        if unsent > 1:
            self._unsent[window] = unsent - 1
        elapsed = min(max(0.0, time.monotonic() + self._offset - counter.number * seconds), seconds)
        used = counter.before * (1 - elapsed / seconds) + counter.now
        return Allowance(True, limit, max(0, int(limit - used)), math.ceil(seconds - elapsed), 0)

    async def run(self) -> None:
        """Exchange counts with other processes until stopped."""
        if self._database is None:
            while not self.stopping.is_set():
                self._unsent.clear()
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
            while not self.stopping.is_set():
                await self._exchange(connection)
                self.session_is_up()
                await self._forget(connection)
                await self.pause(SHORTEST)
                await self.pause(self._interval - SHORTEST, self._hurry)
            await self._exchange(connection)
        finally:
            await close_quietly(connection)

    async def _set_clock(self, connection: psycopg.AsyncConnection[Any]) -> None:
        asked_at = time.monotonic()
        row = await (await connection.execute(self._statements["guard_clock"])).fetchone()
        assert row is not None
        self._hear_clock(row[0], asked_at)

    def _hear_clock(self, moment: float, asked_at: float) -> None:
        self._offset = moment - (asked_at + time.monotonic()) / 2

    async def _exchange(self, connection: psycopg.AsyncConnection[Any]) -> None:
        sent, self._unsent = self._unsent, {}
        if not sent:
            return
        for window in sent:
            self._note_sent(window)
        by_text = {_storable(window): window for window in sent}
        asked_at = time.monotonic()
        try:
            cursor = await connection.execute(self._statements["exchange_rates"], _columns(by_text, sent))
            rows = await cursor.fetchall()
        except BaseException:
            # Whether it was counted nobody knows: once too often is better than not at all.
            for window, taken in sent.items():
                self._unsent[window] = self._unsent.get(window, 0) + taken
            raise
        self._hear_clock(rows[0][6], asked_at)
        for name, key, seconds, number, taken, before, _ in sorted(rows, key=lambda row: row[3]):
            self._hear(by_text[name, key, seconds, number], taken, before)
        await self.reach("rates.exchanged", count=sum(sent.values()))

    def _note_sent(self, window: _Window) -> None:
        counter = self._counters.get(window[:3])
        if counter is not None and counter.number == window[3]:
            counter.sent = counter.now

    def _hear(self, window: _Window, taken: int, before: int) -> None:
        """The sum of all processes; what was let through here meanwhile comes on top.

        Never less than was known: after a crash of the server its table is empty.
        """
        counter = self._counters.get(window[:3])
        if counter is None:
            return
        total = taken + self._unsent.get(window, 0)
        if counter.number == window[3]:
            counter.now = max(counter.now, total)
            counter.before = max(counter.before, before)
            counter.sent = counter.now - self._unsent.get(window, 0)
        elif counter.number == window[3] + 1:
            counter.before = max(counter.before, total)

    async def _forget(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if time.monotonic() - self._forgot_at < FORGET_SECONDS:
            return
        self._drop_old()
        await connection.execute(self._statements["forget_windows"])

    def _drop_old(self) -> None:
        self._forgot_at = time.monotonic()
        moment = self._forgot_at + self._offset
        old = [key for key, counter in self._counters.items() if (counter.number + 2) * counter.seconds <= moment]
        for key in old:
            del self._counters[key]

    def _begin(self, key: _Key, number: int) -> _Counter:
        if len(self._counters) >= self._most_keys:
            del self._counters[next(iter(self._counters))]
        counter = self._counters[key] = _Counter(number, key[2])
        return counter


def _retry_after(counter: _Counter, limit: int, elapsed: float) -> int:
    """Seconds until one more would pass if nobody else came: in this window, or in the next."""
    seconds = counter.seconds
    room = limit - 1 - counter.now
    if room >= 0:
        # Only so much of the window before may still count.
        wait = seconds * (1 - room / counter.before) - elapsed
    else:
        wait = seconds - elapsed + seconds * (1 - (limit - 1) / counter.now)
    return max(1, math.ceil(wait))


def _columns(by_text: dict[_Window, _Window], sent: dict[_Window, int]) -> dict[str, list[Any]]:
    names: Iterable[Any]
    names, keys, seconds, numbers = zip(*by_text, strict=True)
    taken = [sent[window] for window in by_text.values()]
    return {
        "names": list(names),
        "keys": list(keys),
        "seconds": list(seconds),
        "numbers": list(numbers),
        "taken": taken,
    }


def _storable(window: _Window) -> _Window:
    """The same as PostgreSQL can hold it: a name or key that is too long or no text is known by its hash."""
    name, key, seconds, number = window
    return _text(name, LONGEST_NAME), _text(key, LONGEST_KEY), seconds, number


def _text(value: str, longest: int) -> str:
    plain = value.encode("utf-8", "replace").decode()
    if plain == value and len(value) <= longest and "\x00" not in value:
        return value
    return "sha256:" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
