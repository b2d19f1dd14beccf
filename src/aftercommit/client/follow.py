"""Follow a feed: `async for event in follow(url, token=…, bookmark=FileBookmark(path))`.

The follower does what its machine says, hands over what arrives, and saves the place. It reads on only when everything
that arrived was taken: asking for the next event means that the one before is done.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeAlias, Unpack

from aftercommit.client import wire
from aftercommit.client.bookmark import MemoryBookmark
from aftercommit.client.bookmark_keeper import BookmarkKeeper
from aftercommit.client.connection import Lost, OpenStream
from aftercommit.client.machine import GONE, Do, FollowMachine, FollowStep, State
from aftercommit.client.options import Gap, Options, report, withheld
from aftercommit.client.read_position import ReadPosition
from aftercommit.client.requests import FeedRequests
from aftercommit.client.sse_decoder import BlockTooLarge, SseMessage, SsePlace, SseRetry
from aftercommit.client.wire import FeedEvent, FetchedPage, Reset, Unreadable
from aftercommit.errors import FeedRefused, FollowError
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.client")

_TOLD = 300
Arrived: TypeAlias = FeedEvent | SsePlace | Reset | FetchedPage


def follow(url: str, **options: Unpack[Options]) -> "Follower":
    """Follow the feed at `url` from the bookmark on, for ever: every event at least once, in order.

    Raises FeedRefused when the server refuses for good. See `Options` for the options.
    """
    return Follower(url, **options)


class Follower:
    """A reader of one feed. Iterate it, once at a time; `async with` or `aclose()` closes everything."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        """Sends no request before the first iteration."""
        stream = options.get("stream", True)
        self.url = url
        self._requests = FeedRequests(url, options, stream=stream if isinstance(stream, str) else None)
        bookmark = options.get("bookmark") or MemoryBookmark()
        self._keeper = BookmarkKeeper(bookmark, options.get("save_every_seconds", 1.0))
        self._start = options.get("start")
        self._gapless = options.get("gapless", False) and not options.get("filters")
        self._on_gap = options.get("on_gap")
        can_refresh = self._requests.credential.can_refresh
        self._machine = FollowMachine(
            self._requests.pace, random.random, streams=stream is not False, can_refresh=can_refresh
        )
        self._listeners: list[Callable[[State], None]] = []
        self._told = State.STOPPED
        self._turn = 0
        self._position: ReadPosition | None = None
        self._arrived: deque[Arrived] = deque()
        self._step = FollowStep(Do.STOP)
        self._stream: OpenStream | None = None
        self._refusal: FeedRefused | None = None

    @property
    def state(self) -> State:
        """Whether it is connecting, streaming, polling, waiting (to connect again) or stopped."""
        return self._machine.state

    @property
    def cursor(self) -> str | None:
        """The cursor of the last event that was handed over."""
        return self._position.cursor if self._position is not None else None

    @property
    def heard(self) -> float | None:
        """How many seconds ago the server last sent an event, a heartbeat or an answer; None if it never did."""
        heard_at = self._requests.heard_at
        return None if heard_at is None else time.monotonic() - heard_at

    def listen(self, listener: Callable[[State], None]) -> None:
        """Call this with every new state."""
        self._listeners.append(listener)

    async def __aiter__(self) -> AsyncGenerator[FeedEvent]:
        """The events; gaps are passed to `on_gap`, or logged."""
        async with aclosing(self.with_gaps()) as items:
            async for item in items:
                if isinstance(item, Gap):
                    report(item, self.url, self._on_gap)
                else:
                    yield item

    async def with_gaps(self) -> AsyncGenerator[FeedEvent | Gap]:
        """The events, with each gap in its place."""
        # An iteration that was left with `break` may be cleaned up late, and must not close the next one.
        self._turn = turn = self._turn + 1
        try:
            position = await self._begin()
            while True:
                while self._arrived:
                    for item in _admitted(position, self._arrived.popleft()):
                        yield item
                    await self._keeper.done(position.cursor)
                await self._advance()
        finally:
            if turn == self._turn:
                await self.aclose()

    async def aclose(self) -> None:
        """Close the connection and save the bookmark. It does not count the last event as done."""
        self._machine.stopped()
        self._tell()
        try:
            await self._let_go()
        finally:
            await self._keeper.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _begin(self) -> ReadPosition:
        await self._let_go()
        if self._position is None:
            self._position = ReadPosition(await self._keeper.load() or self._start, sequence=self._gapless)
        self._step = self._machine.start(time.monotonic())
        self._tell()
        return self._position

    async def _let_go(self) -> None:
        self._arrived.clear()
        await self._close_stream()
        await self._requests.aclose()

    async def _advance(self) -> None:
        """Take the next step; afterwards something may have arrived."""
        step = await self._perform(self._step)
        if step.do is not Do.READ:
            await self._close_stream()
        self._step = step
        self._tell()

    async def _perform(self, step: FollowStep) -> FollowStep:
        match step.do:
            case Do.STREAM:
                return await self._open()
            case Do.READ:
                assert self._stream is not None
                return await self._read(self._stream, self._stream.silence or self._requests.pace.silence)
            case Do.POLL:
                return await self._poll()
            case Do.WAIT:
                await self._keeper.save()
                await asyncio.sleep(step.seconds)
                return self._machine.elapsed(time.monotonic())
            case Do.REFRESH:
                await self._requests.credential.refresh()
                return self._machine.refreshed(time.monotonic())
            case Do.STOP:
                raise self._final_refusal() or FollowError(f"{self.url} cannot be followed")

    async def _open(self) -> FollowStep:
        try:
            answer = await self._requests.open(self.cursor)
        except Lost as problem:
            return self._ended(problem)
        if isinstance(answer, FeedRefused):
            self._note_refusal(answer)
            return self._machine.stream_refused(time.monotonic(), answer.status, answer.retry_after)
        self._stream = answer
        # Headers alone prove nothing: a proxy that buffers the body passes them on, too.
        within = answer.started_at + self._requests.pace.first_bytes - time.monotonic()
        return await self._read(answer, within, first=True)

    async def _read(self, stream: OpenStream, within: float, *, first: bool = False) -> FollowStep:
        try:
            data = await stream.read(within)
            if not data:
                return self._ended(Lost("the stream ended"))
            self._requests.heard_at = time.monotonic()
            step = self._machine.opened(time.monotonic()) if first else FollowStep(Do.READ)
            self._tell()
            for part in stream.decoder.decode(data):
                step = self._take(stream, part) or step
                if step.do is not Do.READ:
                    break
        except (Lost, BlockTooLarge, Unreadable) as problem:
            return self._ended(problem)
        return step

    def _take(self, stream: OpenStream, part: SseMessage | SsePlace | SseRetry) -> FollowStep | None:
        now = time.monotonic()
        match part:
            case SseRetry(milliseconds=milliseconds):
                stream.retry = milliseconds / 1000
                return None
            case SseMessage(event="heartbeat"):
                return None
            case SseMessage(event="hold"):
                # The server is too old to read the next event. It says goodbye when it is time to try another one.
                log_event(logger, logging.INFO, "feed_held", url=self.url, told=part.data[:_TOLD])
                return None
            case SseMessage(event="bye"):
                return self._machine.bye(now, stream.retry)
            case SseMessage(event="reset"):
                self._arrived.append(wire.reset_in(part))
                return self._machine.reset(now)
            case SseMessage():
                self._arrived.append(wire.event_in(part))
            case SsePlace():
                self._arrived.append(part)
        return self._machine.news(now)

    async def _poll(self) -> FollowStep:
        try:
            answer = await self._requests.poll(self.cursor)
        except (Lost, Unreadable) as problem:
            self._log_lost(problem)
            return self._machine.poll_failed(time.monotonic())
        if answer is None:
            return self._machine.unchanged(time.monotonic())
        if isinstance(answer, FeedRefused):
            self._note_refusal(answer)
            return self._machine.poll_refused(time.monotonic(), answer.status, answer.retry_after)
        self._receive(answer)
        return self._machine.page(time.monotonic(), len(answer.events), answer.more)

    def _receive(self, page: FetchedPage) -> None:
        if page.never_given:
            # Its ranges lie before its events.
            self._arrived.append(page)
        self._arrived.extend(page.events)
        if page.next is not None:
            self._arrived.append(SsePlace(page.next))
        elif self.cursor is None and not page.events and self._requests.wire.beginning is not None:
            # The feed is empty: from now on every event is wanted, and not only the newest page.
            self._arrived.append(SsePlace(self._requests.wire.beginning))

    def _note_refusal(self, refused: FeedRefused) -> None:
        self._refusal = refused
        if refused.status == GONE:
            self._arrived.append(wire.reset_of(refused))
        log_event(logger, logging.INFO, "feed_refused", url=self.url, status=refused.status, error=readable(refused))

    def _final_refusal(self) -> FeedRefused | None:
        """The server's last refusal. If it could not read the cursor of a bookmark, the message names the bookmark."""
        refused = self._refusal
        origin = self._keeper.origin(self.cursor)
        # The server quotes what it could not read, or the beginning of it.
        if refused is None or origin is None or (self.cursor or "")[:100] not in refused.details.values():
            return refused
        message = f"{refused.message}. The cursor comes from the bookmark {origin}: correct or remove it"
        return FeedRefused(refused.status, refused.code, message, refused.details, refused.retry_after)

    def _ended(self, problem: Exception) -> FollowStep:
        self._log_lost(problem)
        return self._machine.ended(time.monotonic())

    def _log_lost(self, problem: Exception) -> None:
        log_event(logger, logging.INFO, "feed_lost", url=self.url, state=str(self.state), error=readable(problem))

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def _tell(self) -> None:
        if self.state is not self._told:
            self._told = self.state
            for listener in tuple(self._listeners):
                listener(self._told)


def _admitted(position: ReadPosition, arrived: Arrived) -> list[FeedEvent | Gap]:
    """Move the position past what arrived; returns what of it the consumer gets to see."""
    before = position.cursor
    if isinstance(arrived, SsePlace):
        position.move(arrived.id)
        return []
    if isinstance(arrived, FetchedPage):
        for low, high in arrived.never_given:
            position.never_given(low, high)
        return []
    if isinstance(arrived, Reset):
        position.reset(arrived.restart)
        return [Gap(arrived.reason, before, arrived.restart, arrived.message)]
    is_withheld = arrived.withheld is not None
    arrival = position.arrive(arrived.id, arrived.number, arrived.cursor, withheld=is_withheld)
    if arrival.repeat:
        return []
    found = withheld(arrived, before) if is_withheld else arrived
    if arrival.jump is None:
        return [found]
    expected, got = arrival.jump.expected, arrival.jump.got
    message = f"events {expected} to {got - 1} did not come"
    return [Gap("jump", before, position.cursor, message, expected, got), found]
