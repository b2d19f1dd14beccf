"""Follow a feed from elsewhere: `async for event in follow(url, token=…, bookmark=FileBookmark(path))`.

The follower does what its machine says, hands over what arrives, and keeps the place. It reads on only when everything
that arrived was taken, so that asking for the next event is the sign that the one before is done.
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
from aftercommit.client.connection import Answer, FeedConnection, Lost, OpenStream
from aftercommit.client.credential import Credential
from aftercommit.client.machine import GONE, Do, FollowMachine, FollowStep, Pace, State
from aftercommit.client.options import Gap, Options, report, withheld
from aftercommit.client.read_position import ReadPosition
from aftercommit.client.sse_decoder import BlockTooLarge, SseDecoder, SseMessage, SsePlace, SseRetry
from aftercommit.client.wire import LOGS, FeedAddress, FeedEvent, FetchedPage, Reset, Unreadable
from aftercommit.clock import utc_now
from aftercommit.errors import FeedRefused, FollowError
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.client")

_TOLD = 300
Arrived: TypeAlias = FeedEvent | SsePlace | Reset | FetchedPage


def follow(url: str, **options: Unpack[Options]) -> "Follower":
    """Follow the feed at `url` from where the bookmark is, for ever: its events, each at least once and in order.

    Raises FeedRefused when the server says no for good. See `Options` for what may be given.
    """
    return Follower(url, **options)


class Follower:
    """A reader of one feed. Iterate it, once at a time; `async with` or `aclose()` lets go of everything."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        """Nothing is asked before the first event is."""
        stream = options.get("stream", True)
        filters = options.get("filters") or {}
        self.url = url
        self._wire = options.get("wire") or LOGS
        own_stream = stream if isinstance(stream, str) else None
        self._address = FeedAddress(url, self._wire, stream=own_stream, limit=options.get("limit"), filters=filters)
        self._pace = options.get("pace") or Pace()
        self._credential = Credential(options.get("token"), options.get("headers"))
        self._keeper = BookmarkKeeper(
            options.get("bookmark") or MemoryBookmark(), options.get("save_every_seconds", 1.0)
        )
        self._start = options.get("start")
        self._gapless = options.get("gapless", False) and not filters
        self._on_gap = options.get("on_gap")
        self._connection = FeedConnection(options.get("client"))
        self._machine = FollowMachine(
            self._pace, random.random, streams=stream is not False, can_refresh=self._credential.can_refresh
        )
        self._listeners: list[Callable[[State], None]] = []
        self._told = State.STOPPED
        self._turn = 0
        self._position: ReadPosition | None = None
        self._arrived: deque[Arrived] = deque()
        self._step = FollowStep(Do.STOP)
        self._stream: OpenStream | None = None
        self._decoder = SseDecoder()
        self._retry: float | None = None
        self._etag: tuple[str, str] | None = None
        self._refusal: FeedRefused | None = None
        self._heard_at: float | None = None

    @property
    def state(self) -> State:
        """What it is doing: connecting, streaming, polling, waiting (to connect again) or stopped."""
        return self._machine.state

    @property
    def cursor(self) -> str | None:
        """The place after the last event that was handed over."""
        return self._position.cursor if self._position is not None else None

    @property
    def heard(self) -> float | None:
        """How many seconds ago the server was last heard: an event, a heartbeat or an answer; None: not yet."""
        return None if self._heard_at is None else time.monotonic() - self._heard_at

    def listen(self, listener: Callable[[State], None]) -> None:
        """Call this with every new state."""
        self._listeners.append(listener)

    async def __aiter__(self) -> AsyncGenerator[FeedEvent]:
        """The events; gaps go to `on_gap`, or into the log."""
        async with aclosing(self.with_gaps()) as items:
            async for item in items:
                if isinstance(item, Gap):
                    report(item, self.url, self._on_gap)
                else:
                    yield item

    async def with_gaps(self) -> AsyncGenerator[FeedEvent | Gap]:
        """The events, and the gaps among them where they are."""
        # An iteration that was left by `break` may be cleaned up late, and must not end this one then.
        self._turn = turn = self._turn + 1
        try:
            position = await self._begin()
            while True:
                while self._arrived:
                    for item in self._admit(position, self._arrived.popleft()):
                        yield item
                    await self._keeper.done(position.cursor)
                await self._advance()
        finally:
            if turn == self._turn:
                await self.aclose()

    async def aclose(self) -> None:
        """Let go of the connection, and save the bookmark: before the event that was handed over last."""
        self._machine.stopped()
        self._tell()
        try:
            await self._let_go()
        finally:
            await self._keeper.close()

    async def __aenter__(self) -> Self:
        """Nothing yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
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
        await self._connection.close()

    def _admit(self, position: ReadPosition, arrived: Arrived) -> list[FeedEvent | Gap]:
        """What of it the consumer gets to see."""
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

    async def _advance(self) -> None:
        """Do the next thing; afterwards something may have arrived."""
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
                return await self._read(self._stream.silence or self._pace.silence)
            case Do.POLL:
                return await self._poll()
            case Do.WAIT:
                await self._keeper.save()
                await asyncio.sleep(step.seconds)
                return self._machine.elapsed(time.monotonic())
            case Do.REFRESH:
                await self._credential.refresh()
                return self._machine.refreshed(time.monotonic())
            case Do.STOP:
                raise self._final_refusal() or FollowError(f"{self.url} cannot be followed")

    async def _open(self) -> FollowStep:
        headers = await self._credential.headers("text/event-stream")
        headers["Cache-Control"] = b"no-store"
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor.encode()
        deadline = time.monotonic() + self._pace.first_bytes
        try:
            answer = await self._connection.open(self._address.stream(), headers, self._pace.first_bytes)
        except Lost as problem:
            return self._ended(problem)
        if isinstance(answer, Answer):
            refused = self._note_refusal(answer)
            return self._machine.stream_refused(time.monotonic(), refused.status, refused.retry_after)
        self._stream, self._decoder, self._retry = answer, SseDecoder(), None
        # Headers alone prove nothing: a proxy that keeps the body to itself shows them, too.
        return await self._read(deadline - time.monotonic(), first=True)

    async def _read(self, within: float, *, first: bool = False) -> FollowStep:
        assert self._stream is not None
        try:
            data = await self._stream.read(within)
            if not data:
                return self._ended(Lost("the stream ended"))
            self._heard_at = time.monotonic()
            step = self._machine.opened(time.monotonic()) if first else FollowStep(Do.READ)
            self._tell()
            for part in self._decoder.decode(data):
                step = self._take(part) or step
                if step.do is not Do.READ:
                    break
        except (Lost, BlockTooLarge, Unreadable) as problem:
            return self._ended(problem)
        return step

    def _take(self, part: SseMessage | SsePlace | SseRetry) -> FollowStep | None:
        now = time.monotonic()
        match part:
            case SseRetry(milliseconds=milliseconds):
                self._retry = milliseconds / 1000
                return None
            case SseMessage(event="heartbeat"):
                return None
            case SseMessage(event="hold"):
                # The server is too old for what comes next. It says goodbye when it is time to look elsewhere.
                log_event(logger, logging.INFO, "feed_held", url=self.url, told=part.data[:_TOLD])
                return None
            case SseMessage(event="bye"):
                return self._machine.bye(now, self._retry)
            case SseMessage(event="reset"):
                self._arrived.append(wire.reset_in(part))
                return self._machine.reset(now)
            case SseMessage():
                self._arrived.append(wire.event_in(part))
            case SsePlace():
                self._arrived.append(part)
        return self._machine.news(now)

    async def _poll(self) -> FollowStep:
        url = self._address.poll(self.cursor)
        headers = await self._credential.headers("application/json")
        if self._etag is not None and self._etag[0] == url:
            headers["If-None-Match"] = self._etag[1].encode("latin-1", "replace")
        try:
            answer = await self._connection.get(url, headers, self._pace.answer)
            self._heard_at = time.monotonic()
            if answer.status == 304:
                return self._machine.unchanged(time.monotonic())
            if answer.status != 200:
                refused = self._note_refusal(answer)
                return self._machine.poll_refused(time.monotonic(), refused.status, refused.retry_after)
            page = self._wire.page(answer.body, answer.headers, self.cursor)
        except (Lost, Unreadable) as problem:
            self._say_lost(problem)
            return self._machine.poll_failed(time.monotonic())
        etag = answer.headers.get("etag")
        self._etag = (url, etag) if etag is not None else None
        self._receive(page)
        return self._machine.page(time.monotonic(), len(page.events), page.more)

    def _receive(self, page: FetchedPage) -> None:
        if page.never_given:
            # Before its events.
            self._arrived.append(page)
        self._arrived.extend(page.events)
        if page.next is not None:
            self._arrived.append(SsePlace(page.next))
        elif self.cursor is None and not page.events and self._wire.beginning is not None:
            # Nothing is there yet: from now on everything is wanted, and not only the newest page of it.
            self._arrived.append(SsePlace(self._wire.beginning))

    def _note_refusal(self, answer: Answer) -> FeedRefused:
        self._refusal = refused = wire.refusal(answer.status, answer.headers, answer.body, utc_now())
        if answer.status == GONE:
            self._arrived.append(wire.reset_of(refused))
        log_event(logger, logging.INFO, "feed_refused", url=self.url, status=refused.status, error=readable(refused))
        return refused

    def _final_refusal(self) -> FeedRefused | None:
        """What the server said last. Where it could not read the cursor of a bookmark, the bookmark is named."""
        refused = self._refusal
        origin = self._keeper.origin(self.cursor)
        # The server shows what it could not read, or the beginning of it.
        if refused is None or origin is None or (self.cursor or "")[:100] not in refused.details.values():
            return refused
        message = f"{refused.message}. The cursor is that of the bookmark {origin}: mend it, or remove it to begin anew"
        return FeedRefused(refused.status, refused.code, message, refused.details, refused.retry_after)

    def _ended(self, problem: Exception) -> FollowStep:
        self._say_lost(problem)
        return self._machine.ended(time.monotonic())

    def _say_lost(self, problem: Exception) -> None:
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
