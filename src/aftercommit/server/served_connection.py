"""One connection of our server, as an application sees it: it can be dropped, watched, and written to directly.

This is `ServerConnection` of `aftercommit.http.asgi`, on uvicorn's protocol.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from aftercommit.http.asgi import Send
from aftercommit.server.answer import OneWriteAnswer


class _Unheard:
    """An event that nobody waits for."""

    def set(self) -> None:
        """Nothing happens."""


class _Detached:
    """What uvicorn needs to know of an answer whose application has returned, and no more."""

    __slots__ = ("disconnected", "keep_alive", "response_complete")
    response_started = True
    message_event = _Unheard()

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = self.response_complete = False


class ServedConnection(HttpToolsProtocol):
    """A connection whose answer may go on after its application has returned."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._call_when_lost: Callable[[], None] | None = None
        self._detached: _Detached | None = None

    @property
    def is_between_requests(self) -> bool:
        """Whether no request is on its way."""
        return True

    def abort(self) -> None:
        """Drop the connection now, with all that was written and not yet read."""
        self.transport.abort()

    def on_lost(self, call: Callable[[], None] | None) -> None:
        """Call this once when the connection is gone; at once if it is. None takes it back."""
        self._call_when_lost = call
        if call is not None and self.transport.is_closing():
            self._tell_lost()

    def sends_by(self, send: Send) -> bool:
        """Whether this is the server's own way to send, with an answer under way that leaves in chunks."""
        answer = getattr(send, "__self__", None)
        return isinstance(answer, OneWriteAnswer) and answer.cycle is self.cycle and self.cycle.chunked_encoding is True

    def write(self, data: bytes) -> bool:
        """Put bytes on the wire behind the others; False, and nothing is done, while the client takes none."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(data)
        return True

    def detach(self) -> bool:
        """Let the application return while its answer goes on. Request and task need not stay in memory then."""
        if not self.is_between_requests or self.transport.is_closing():
            return False
        # uvicorn finds no fault with an application that returns when its client is gone, and drops what it sends.
        self.cycle.disconnected = True
        self._detached = self.cycle = _Detached(self.cycle.keep_alive)  # type: ignore[assignment]
        self.scope, self.headers, self.url = {}, [], b""  # type: ignore[typeddict-item]
        return True

    async def drain(self) -> bool:
        """Wait until the client takes bytes; False when it will not take any more."""
        await self.flow.drain()
        return not self.transport.is_closing()

    def finish(self) -> None:
        """End the answer that was detached: the connection goes on to the next request."""
        ended, self._detached = self._detached, None
        if ended is None or self.transport.is_closing():
            return
        ended.response_complete = True
        self.transport.write(b"0\r\n\r\n")
        if not ended.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        self._tell_lost()

    def _tell_lost(self) -> None:
        call, self._call_when_lost = self._call_when_lost, None
        if call is not None:
            call()
