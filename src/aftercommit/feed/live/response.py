"""The HTTP response of one stream: writes bytes to the reader, and notices a reader that is gone or too slow."""

import asyncio
from collections.abc import Callable
from typing import Final

from aftercommit.feed.live.streams import Streams
from aftercommit.http import sse
from aftercommit.http.asgi import (
    Header,
    Message,
    Receive,
    Scope,
    Send,
    ServerConnection,
    chunk,
    connection_of,
    innermost,
    lost,
)

HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # Without it nginx keeps events back until it has some kilobytes of them.
    (b"x-accel-buffering", b"no"),
]


class ReaderGone(Exception):
    """The reader has left, or was cut: nothing more can be written."""


class StreamResponse:
    """The response of one stream. `gone` says why nothing more can be written, once that is so."""

    __slots__ = (
        "_connection",
        "_direct",
        "_measured",
        "_send",
        "_sent",
        "_streams",
        "_task",
        "_waited",
        "_watcher",
        "gone",
        "last_write",
        "sending_since",
    )

    def __init__(self, streams: Streams, scope: Scope, send: Send) -> None:
        """Belongs to the task that makes it."""
        self._streams = streams
        # None once the response goes on without the request's task.
        self._send: Send | None = send
        self._watcher: asyncio.Task[None] | None = None
        self._connection = connection_of(scope)
        # Set where bytes may be written to the connection directly, without `send`.
        self._direct: ServerConnection | None = None
        self._task: asyncio.Task[object] | None = asyncio.current_task()
        self.gone: str | None = None
        self.last_write = streams.now
        self.sending_since: float | None = None
        # Bytes written and seconds waited for the reader; and the time, with both, when they were last compared.
        self._sent, self._waited = 0, 0.0
        self._measured = (streams.now, 0, 0.0)

    def watch(self, receive: Receive, wake: Callable[[], None]) -> None:
        """Notice that the reader has left, and `wake` the stream."""

        def leave() -> None:
            self.gone = self.gone or "left"
            wake()

        if self._connection is not None:
            self._connection.on_lost(leave)
        else:
            # Other servers only tell an application that asks.
            self._watcher = asyncio.create_task(lost(receive))
            self._watcher.add_done_callback(lambda _: leave())

    def unwatch(self) -> None:
        """The stream is over: nobody needs to know that the reader leaves."""
        if self._connection is not None:
            self._connection.on_lost(None)
        if self._watcher is not None:
            self._watcher.cancel()

    def was_cut(self) -> bool:
        """Whether a cancellation of the request's task was `cut`, which is then over; any other one goes on."""
        if self.gone is None or self._task is None:
            return False
        self._task.uncancel()
        return True

    def detach(self) -> bool:
        """Go on without the request's task; False where the server cannot do that."""
        if self._send is None:
            return True
        if self._direct is None or not self._direct.detach():
            return False
        self._send = self._task = None
        return True

    async def open(self, headers: list[Header]) -> None:
        """Send status and headers, and the first bytes."""
        beat = (b"x-heartbeat-interval", b"%g" % self._streams.times.heartbeat_seconds)
        await self._hand({"type": "http.response.start", "status": 200, "headers": [*HEADERS, beat, *headers]})
        if self._connection is not None and self._send is not None and self._connection.sends_by(innermost(self._send)):
            self._direct = self._connection
        await self.write(sse.opening(self._streams.retry()))

    async def write(self, data: bytes) -> None:
        """Send some bytes; takes as long as the reader does. Raises ReaderGone."""
        # The clock of the timer is exact enough for the timer's own checks.
        self.sending_since = began = self._streams.now
        if self._send is None:
            await self._put_when_ready(data)
        else:
            await self._hand({"type": "http.response.body", "body": data, "more_body": True})
        self.last_write = now = self._streams.now
        self.sending_since = None
        self._sent += len(data)
        self._waited += now - began
        if self.gone is not None:
            raise ReaderGone

    @property
    def transport(self) -> asyncio.WriteTransport | None:
        """Where framed pieces may be written to directly, while it holds no bytes back."""
        return self._direct.transport if self._direct is not None else None

    def catch_up(self, sent: int, written_at: float) -> None:
        """The crowd has written so many bytes of data, the last of them then."""
        self._sent += sent
        self.last_write = max(self.last_write, written_at)

    def put(self, piece: bytes, size: int) -> bool:
        """Write a framed piece with `size` bytes of data at once; False where that takes `write`."""
        if self._direct is None or not self._direct.write(piece):
            return False
        self.last_write = self._streams.now
        self._sent += size
        return True

    async def finish(self) -> None:
        """End the response."""
        if self._send is None:
            if self._direct is not None:
                self._direct.finish()
            return
        await self._hand({"type": "http.response.body", "body": b"", "more_body": False})

    def cut(self, reason: str) -> None:
        """End now; bytes that the reader has not taken are dropped."""
        if self.gone is None:
            self.gone = reason
            if self._connection is not None:
                self._connection.abort()
            elif self._task is not None:
                self._task.cancel()

    def is_slow(self, now: float) -> bool:
        """Whether the reader has taken too little over the last `slow_seconds`, while we waited for it.

        A trickle keeps every single write just short of a stall.
        """
        began, sent, waited = self._measured
        passed = now - began
        if passed < self._streams.times.slow_seconds:
            return False
        waiting = self._waited + (now - self.sending_since if self.sending_since is not None else 0.0)
        self._measured = (now, self._sent, waiting)
        return waiting - waited > passed / 2 and self._sent - sent < self._streams.times.min_bytes_per_second * passed

    async def _put_when_ready(self, data: bytes) -> None:
        assert self._direct is not None, "only a connection that is written to directly is detached"
        piece = chunk(data)
        while self.gone is None and not self._direct.write(piece):
            if not await self._direct.drain():
                self.gone = self.gone or "left"

    async def _hand(self, message: Message) -> None:
        assert self._send is not None, "a detached response is not sent to the server's task"
        try:
            await self._send(message)
        except OSError as problem:
            # This is how a server may say that the reader has left (ASGI 2.4).
            self.gone = self.gone or "left"
            raise ReaderGone from problem
