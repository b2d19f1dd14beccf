"""uvicorn's HTTP protocol with limits that it does not have: on the time and size of headers, the time of a body, and
the number of connections. It also lets the feed see that a reader is gone, and drop one that does not read.

For a uvicorn of your own: `uvicorn app:app --http aftercommit.server:GuardedProtocol`.
"""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from aftercommit.errors import MissingExtra
from aftercommit.http.asgi import CONNECTION, Asgi, Message, Receive, Scope, Send, answer_problem
from aftercommit.http.errors import Problem, bad_request, unavailable

try:
    from uvicorn import Config
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
    from uvicorn.server import ServerState
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "uvicorn") from problem

Phase = Literal["headers", "body"] | None
# Whoever has just connected when the server is to end has so long to say what it wants.
GOODBYE_SECONDS = 0.5


class Guards(msgspec.Struct, frozen=True):
    """What one process puts up with. `connections` counts all that are open, streams among them."""

    header_seconds: float = 10.0
    header_bytes: int = 32_768
    body_seconds: float = 30.0
    connections: int = 20_000


class GuardedProtocol(HttpToolsProtocol):
    """One connection, which has to get on with its request."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`config.guards`, where there are any, say how much; a plain uvicorn gets the defaults."""
        super().__init__(config, server_state, app_state, _loop)
        self._guards: Guards = getattr(config, "guards", None) or Guards()
        self._phase: Phase = None
        self._timed: Phase = None
        self._timer: asyncio.TimerHandle | None = None
        self._unparsed = 0
        self._call_when_lost: Callable[[], None] | None = None
        self._is_leaving = False

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
        return self.cycle is not None and send == self.cycle.send and self.cycle.chunked_encoding is True

    def write(self, data: bytes) -> bool:
        """Put bytes on the wire behind the others; False, and nothing is done, while the client takes none."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self.transport.write(data)
        return True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connected, and has a while to say what it wants."""
        super().connection_made(transport)
        # Those a little above the limit are told to come back; a flood is not talked to.
        if len(self.connections) > self._guards.connections + max(100, self._guards.connections // 10):
            transport.abort()
            return
        self._phase = "headers"
        self._keep_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone, whoever ended it."""
        self._phase = None
        self._keep_time()
        super().connection_lost(exc)
        self._tell_lost()

    def data_received(self, data: bytes) -> None:
        """Parse; what stays unfinished is timed, and headers must not grow without end."""
        self._unparsed += len(data)
        super().data_received(data)
        if self._phase == "headers" and self._unparsed > self._guards.header_bytes:
            self._refuse(_headers_too_large(self._guards.header_bytes))
        elif self._phase is not self._timed:
            self._keep_time()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP. A request that came whole before it is answered, and then the connection ends."""
        if self._phase != "body" and not self._may_answer() and not self.cycle.response_started:
            self.cycle.keep_alive = False
            self._phase = None
            self._keep_time()
            return
        self._refuse(bad_request("This is no HTTP request that can be read: see its first line, headers and length"))

    def shutdown(self) -> None:
        """The server is to end. A request that is on its way, over a connection that is new, is answered still."""
        if self.cycle is None and not self._is_leaving and not self.transport.is_closing():
            # Nobody sends again what went down with a connection that had answered nothing yet.
            self._is_leaving = True
            self.loop.call_later(GOODBYE_SECONDS, self.shutdown)
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]
        self._phase = "headers"

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Blanks around a value are no part of it (RFC 9110, 5.5), and the parser leaves those behind it."""
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """A request has its headers: hand it over, or to an application that refuses it."""
        app: Asgi = self._refusal() or self.config.loaded_app
        self.app = _LastWord(_UntilTheEnd(app) if self.parser.get_http_version() == "1.0" else app)
        self._unparsed = 0
        super().on_headers_complete()
        # Not before: an address that cannot be read is refused as its headers are.
        self._phase = "body"
        if self._is_leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """A request is there as a whole."""
        self._phase = None
        self._unparsed = 0
        super().on_message_complete()

    def _refusal(self) -> "_Refusal | None":
        if len(self.connections) > self._guards.connections:
            return _Refusal(unavailable("The server has as many connections as it may have: try again later", 5))
        # Only what came in one large piece can have grown past the limit unseen.
        if self._unparsed > self._guards.header_bytes:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > self._guards.header_bytes:
                return _Refusal(_headers_too_large(self._guards.header_bytes))
        problem = problem_of_head(self.parser.get_http_version(), self.headers)
        return _Refusal(problem) if problem is not None else None

    def _keep_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = self._phase
        if self._phase is not None:
            seconds = self._guards.header_seconds if self._phase == "headers" else self._guards.body_seconds
            self._timer = self.loop.call_later(seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._phase == "body":
            self._refuse(Problem(408, f"The body did not come within {self._guards.body_seconds:g} seconds"))
        elif self._unparsed:
            self._refuse(Problem(408, f"The headers did not come within {self._guards.header_seconds:g} seconds"))
        else:
            # Said nothing at all.
            self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        # The parser stands in the middle of a request, so no application can be asked to answer it.
        if not self._may_answer():
            self.transport.abort()
            return
        if self._phase == "body":
            # Whoever reads the body is told of its end by the loss of the client, and answers nobody.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = problem.body()
        reason = HTTPStatus(problem.status).phrase.encode()
        self._phase = None
        self._keep_time()
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (problem.status, reason, len(body), body)
        )
        self.transport.close()

    def _may_answer(self) -> bool:
        """Whether nothing of another answer, or of one to this request, would be broken by ours."""
        if self._phase == "body":
            return not self.cycle.response_started and not self.pipeline
        return self.cycle is None or self.cycle.response_complete

    def _tell_lost(self) -> None:
        call, self._call_when_lost = self._call_when_lost, None
        if call is not None:
            call()


def problem_of_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> Problem | None:
    """What HTTP has us refuse, by version and headers, that the parser lets pass (RFC 9110 and 9112)."""
    if version not in ("1.0", "1.1"):
        return Problem(505, f"HTTP/{version} is not supported: use HTTP/1.1")
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            if version == "1.0":
                return bad_request("HTTP/1.0 has no Transfer-Encoding: send a Content-Length")
            if value.lower() != b"chunked":
                return Problem(501, "The only supported Transfer-Encoding is chunked")
        elif name == b"expect" and value.lower() != b"100-continue":
            return Problem(417, "The only supported Expect is 100-continue")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return bad_request("A request must have one Host header" if hosts else "The Host header is missing")
    return None


class _Refusal:
    """An application that answers everything with one problem, and ends the connection."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer_problem(send, self._problem, scope["method"], [(b"connection", b"close")])


class _LastWord:
    """An application that answers also those whom an ending server cannot wait for any longer."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if _cycle_of(send).response_started:
                raise
            await answer_problem(send, _ending(scope["method"]), scope["method"], [(b"connection", b"close")])


class _UntilTheEnd:
    """An application for those who speak HTTP/1.0, which has no chunks (RFC 9112, 6.1): an answer whose length is not
    told ends with the connection, as uvicorn ends each of theirs.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = _cycle_of(send)
        is_open = False

        async def sending(message: Message) -> None:
            nonlocal is_open
            if message["type"] == "http.response.start":
                is_open = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_open:
                # Each piece is as long as it is.
                cycle.chunked_encoding = False
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, sending)


def _cycle_of(send: Send) -> RequestResponseCycle:
    """What writes an answer, for applications between which and the server nobody stands."""
    cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]
    return cycle


def _ending(method: str) -> Problem:
    # Whoever was to change something may have done so.
    outcome = {"outcome": "unknown"} if method not in ("GET", "HEAD", "OPTIONS") else None
    return Problem(503, "The server ends and cannot wait any longer: try again", details=outcome, retry_after=1)


def _headers_too_large(most: int) -> Problem:
    return Problem(431, f"The request headers are larger than {most} bytes", details={"most": most})
