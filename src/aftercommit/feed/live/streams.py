"""All open streams of a process: how many may be open, and one timer that looks after all of them.

The timer sends heartbeats, ends streams whose reader may no longer read or whose time is up, and cuts readers that do
not take what they are sent. A drain says goodbye to all readers, spread over a window, so that they do not all come
back at once.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from aftercommit.errors import DeclarationError
from aftercommit.feed.declaration.filters import Chosen
from aftercommit.feed.live.blocks import Blocks
from aftercommit.feed.live.crowd import Crowd
from aftercommit.feed.strands.strand import Strand
from aftercommit.feed.strands.time_slice import TimeSlice
from aftercommit.http.asgi import DRAIN_SECONDS
from aftercommit.http.errors import too_many, unavailable
from aftercommit.service import Probe, Service, Waker
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

# How long streams that were cut may take to notice it.
END_SECONDS: Final = 1.0


class StreamCaps(msgspec.Struct, frozen=True):
    """How many may be open in one process: streams in all and per user, and polls that wait for news."""

    max_streams: int = 10_000
    max_streams_per_user: int = 20
    max_waiting_polls: int = 10_000

    def __post_init__(self) -> None:
        """Refuse a cap below 1."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise DeclarationError(f"StreamCaps({name}={getattr(self, name)}) must be at least 1")


class StreamTimes(msgspec.Struct, frozen=True):
    """The intervals and time limits of streams.

    A quiet stream sends a heartbeat every `heartbeat_seconds` and announces that in its headers. Readers count it as
    lost after twice that plus a second; above 7, a page may show "Live" for over 15 seconds after its server has hung.

    A reader is cut if it takes nothing for `stall_seconds`, or less than `min_bytes_per_second` over `slow_seconds`
    while the server waits for it. A stream is rotated after a random time between `rotate_min_seconds` and
    `rotate_max_seconds`. A reader whose filters let nothing through is told its place after `progress_seconds`. A
    stream at an event that this process is too old to read ends after `hold_seconds`: another process may know it.
    `drain_seconds` bounds a shutdown. Readers come back after about `retry_seconds`. The timer runs every
    `tick_seconds`.
    """

    heartbeat_seconds: float = 5.0
    progress_seconds: float = 2.0
    stall_seconds: float = 5.0
    min_bytes_per_second: float = 1024.0
    slow_seconds: float = 15.0
    rotate_min_seconds: float = 600.0
    rotate_max_seconds: float = 900.0
    drain_seconds: float = DRAIN_SECONDS
    retry_seconds: float = 3.0
    hold_seconds: float = 40.0
    tick_seconds: float = 0.5

    def __post_init__(self) -> None:
        """Refuse negative times, a timer without pauses, and a rotation whose minimum is above its maximum."""
        least = min(msgspec.structs.astuple(self))
        if least < 0 or self.tick_seconds <= 0 or self.rotate_min_seconds > self.rotate_max_seconds:
            raise DeclarationError(
                f"{self!r}: no time may be negative, tick_seconds > 0, rotate_min_seconds <= rotate_max_seconds"
            )


class TimedStream(Protocol):
    """A stream as the timer sees it."""

    def look(self, now: float) -> None:
        """Do what is due."""

    def end(self, reason: str) -> None:
        """Say goodbye and end as soon as possible."""

    def cut(self, reason: str) -> None:
        """End now, without a goodbye."""


class Room:
    """One stream of a user, as the caps count it: until the block ends, or until `leave` if the stream keeps it."""

    __slots__ = ("_streams", "_user")

    def __init__(self, streams: "Streams", user: str) -> None:
        self._streams: Streams | None = streams
        self._user = user

    def leave(self) -> None:
        """Not counted any more."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams.give_back(self._user)


class Streams(Service):
    """The open streams of this process and the timer that looks after them."""

    name = "streams"

    def __init__(
        self, caps: StreamCaps | None = None, times: StreamTimes | None = None, probe: Probe | None = None
    ) -> None:
        super().__init__(probe)
        self.caps = caps or StreamCaps()
        self.times = times or StreamTimes()
        self.draining = Waker()
        self.now = 0.0
        self.waiting = 0
        self.opened = 0
        self.ended: Counter[str] = Counter()
        self.answers: Counter[tuple[str, int]] = Counter()
        self._open: set[TimedStream] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # Includes streams that are about to open: their strand may have to be loaded first.
        self._places = 0
        self._per_user: Counter[str] = Counter()
        self._crowds: WeakValueDictionary[tuple[int, Chosen], Crowd] = WeakValueDictionary()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def crowd(self, strand: Strand, chosen: Chosen) -> Crowd:
        """The readers that follow a strand with the same filters, and the bytes that they share."""
        key = (id(strand), chosen)
        found = self._crowds.get(key)
        if found is None or found.blocks.strand is not strand:
            found = self._crowds[key] = Crowd(Blocks(strand, chosen), self)
        return found

    def room(self, user: str) -> "Room":
        """Count one more stream of a user. Above a limit it is refused with 429 or 503."""
        self._check_room(user)
        self._per_user[user] += 1
        self._places += 1
        return Room(self, user)

    def give_back(self, user: str) -> None:
        """Count one stream of a user less."""
        self._places -= 1
        self._per_user[user] -= 1
        if not self._per_user[user]:
            del self._per_user[user]

    @contextmanager
    def waits(self) -> Iterator[bool]:
        """Count one more poll that waits for news; False if too many do, and it should be answered at once."""
        self.waiting += 1
        try:
            yield self.waiting <= self.caps.max_waiting_polls
        finally:
            self.waiting -= 1

    def look_after(self, stream: TimedStream) -> None:
        """Let the timer look after a stream."""
        self._open.add(stream)
        self.opened += 1
        if self.draining.is_set():
            # It was admitted just before the drain.
            stream.end("shutdown")

    def forget(self, stream: TimedStream, reason: str) -> None:
        """A stream is over, for this reason."""
        self._open.discard(stream)
        self.ended[reason] += 1

    def run_task(self, work: Coroutine[None, None, None]) -> None:
        """Run what a stream has to do that had no task."""
        task = asyncio.create_task(work, name="stream")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def retry(self) -> int:
        """After how many milliseconds a reader should come back; random, so that not all come at once."""
        return int(1000 * self.times.retry_seconds * random.uniform(0.5, 1.5))

    def rotation(self) -> float:
        """How many seconds one stream lasts; random, so that streams that began together do not end together."""
        return random.uniform(self.times.rotate_min_seconds, self.times.rotate_max_seconds)

    def drain(self) -> None:
        """Say goodbye to everybody within the window and admit nobody. May be called again."""
        if self.draining.is_set():
            return
        self.draining.set()
        log_event(logger, logging.INFO, "streams_draining", streams=len(self._open), seconds=self.times.drain_seconds)
        loop = asyncio.get_running_loop()
        for stream in self._open:
            # The last part of the window is for readers that are slow to take their goodbye.
            loop.call_later(random.uniform(0, self.times.drain_seconds * 0.7), stream.end, "shutdown")
        loop.call_later(self.times.drain_seconds, self._cut_all)

    async def run(self) -> None:
        """Run the timer until stopped."""
        self.draining.clear()
        looked = time.monotonic()
        while not self.stopping.is_set():
            await self.pause(self.times.tick_seconds)
            passed, looked = time.monotonic() - looked, time.monotonic()
            # Time during which this process itself was stuck must not make its readers look slow.
            self.now += min(passed, 2 * self.times.tick_seconds)
            await self._look_in_slices()
        self._cut_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_SECONDS)

    def look(self) -> None:
        """Let every stream do what is due, at once: a reader whose access was withdrawn gets nothing more."""
        for stream in tuple(self._open):
            self._look_at(stream)

    async def _look_in_slices(self) -> None:
        time_slice = TimeSlice()
        for stream in tuple(self._open):
            self._look_at(stream)
            if time_slice.is_over():
                await time_slice.give()

    def _look_at(self, stream: TimedStream) -> None:
        if stream not in self._open:
            return
        try:
            stream.look(self.now)
        except Exception as problem:  # noqa: BLE001 - an error in users' access code must end one stream, not all
            log_event(logger, logging.ERROR, "stream_failed", problem, error=repr(problem)[:300])
            stream.cut("failed")

    def _cut_all(self) -> None:
        for stream in tuple(self._open):
            stream.cut("shutdown")

    def _check_room(self, user: str) -> None:
        if self.draining.is_set():
            raise unavailable("The server is shutting down: connect again", retry_after=1)
        if self._per_user[user] >= self.caps.max_streams_per_user:
            raise too_many(
                f"Too many open streams. Limit: {self.caps.max_streams_per_user} per user",
                retry_after=round(self.times.retry_seconds) or 1,
            )
        if self._places >= self.caps.max_streams:
            # Random: readers that are refused together should not come back together.
            retry_after = 1 + int(random.uniform(1, 4) * self.times.retry_seconds)
            raise unavailable("The server has as many open streams as it may have", retry_after=retry_after)
