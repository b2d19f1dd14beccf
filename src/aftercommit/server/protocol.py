"""uvicorn's HTTP protocol with limits on the time and size of headers, the time of a body, and connections.

Through it a feed also learns that a reader has left, and drops a reader that does not read. For a uvicorn of your own:
`uvicorn app:app --http aftercommit.server:GuardedProtocol`.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from aftercommit.errors import MissingExtra
from aftercommit.http.asgi import CONNECTION, Asgi, Message, Receive, Scope, Send, answer_problem
from aftercommit.http.errors import Problem, bad_request, unavailable
from aftercommit.http.from_memory import AnswersFromMemory

try:
    from uvicorn import Config
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from aftercommit.server.answer import OneWriteAnswer
    from aftercommit.server.memory_answers import memory_answers_of
    from aftercommit.server.served_connection import ServedConnection
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "uvicorn") from problem

Phase = Literal["headers", "body"] | None
# A client that has just connected when the server ends has so long to send its request.
GOODBYE_SECONDS = 0.5


class Guards(msgspec.Struct, frozen=True):
    """Limits of one server process. `connections` counts all open connections, streams included."""

    header_seconds: float = 10.0
    header_bytes: int = 32_768
    body_seconds: float = 30.0
    connections: int = 20_000


class GuardedProtocol(ServedConnection):
    """One connection, with limits on how slow and how large a request may be."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """The limits are `config.guards`; a plain uvicorn, which has none, gets the defaults."""
        super().__init__(config, server_state, app_state, _loop)
        self._guards: Guards = getattr(config, "guards", None) or Guards()
        self._phase: Phase = None
        self._timed: Phase = None
        self._timer: asyncio.TimerHandle | None = None
        self._unparsed = 0
        self._is_leaving = False
        self._answering: Asgi = _answering_at_the_end(config.loaded_app)
        app = config.loaded_app
        self._from_memory = app if isinstance(app, AnswersFromMemory) else None
        self._memory_answers = memory_answers_of(self.loop)

    @property
    def is_between_requests(self) -> bool:
        """Whether no request is on its way."""
        return self._phase is None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected, and has `header_seconds` for its request."""
        super().connection_made(transport)
        # Clients a little above the limit get an answer; a flood gets none.
        if len(self.connections) > self._guards.connections + max(100, self._guards.connections // 10):
            transport.abort()
            return
        self._phase = "headers"
        self._keep_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._phase = None
        self._keep_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse. What stays unfinished is timed, and headers have a largest size."""
        self._unparsed += len(data)
        super().data_received(data)
        if self._phase == "headers" and self._unparsed > self._guards.header_bytes:
            self._refuse(_headers_too_large(self._guards.header_bytes))
        elif self._phase is not self._timed:
            self._keep_time()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP. A whole request before it is still answered; then the connection ends."""
        if self._phase != "body" and not self._may_answer() and not self.cycle.response_started:
            self.cycle.keep_alive = False
            self._phase = None
            self._keep_time()
            return
        self._refuse(bad_request("This is not a valid HTTP request: check its first line, headers and length"))

    def shutdown(self) -> None:
        """The server ends. A request that is on its way over a new connection is still answered."""
        if self.cycle is None and not self._is_leaving and not self.transport.is_closing():
            # Clients do not repeat a request when a connection ends that has answered nothing yet.
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
        """A header, without the blanks around its value (RFC 9110, 5.5): the parser leaves those behind it."""
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """The headers are complete: hand the request to the application, or to one that refuses it."""
        version = self.parser.get_http_version()
        problem = self._problem(version)
        if problem is None and version != "1.0":
            self.app = self._answering
        else:
            app: Asgi = self.config.loaded_app if problem is None else _refusing(problem)
            self.app = _answering_at_the_end(_without_chunks(app) if version == "1.0" else app)
        self._unparsed = 0
        super().on_headers_complete()
        # Not before: an unreadable address is refused in the phase of headers.
        self._phase = "body"
        if self._is_leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._phase = None
        self._unparsed = 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Let the application answer; from memory, if it can."""
        start = partial(super()._start_asgi_task, cycle, app)
        if self._from_memory is not None and app is self._answering:
            self._memory_answers.ask(cycle, self._from_memory, start)
        else:
            start()

    def _problem(self, version: str) -> Problem | None:
        if len(self.connections) > self._guards.connections:
            return unavailable("The server has too many connections: try again later", 5)
        # Only headers that came in one large piece can be above the limit here.
        if self._unparsed > self._guards.header_bytes:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > self._guards.header_bytes:
                return _headers_too_large(self._guards.header_bytes)
        return problem_of_head(version, self.headers)

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
            # The client has sent nothing at all.
            self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        # The parser is in the middle of a request, so no application can answer it.
        if not self._may_answer():
            self.transport.abort()
            return
        if self._phase == "body":
            # For an application that reads the body, the client is gone.
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
        """Whether an answer of ours would break no other answer."""
        if self._phase == "body":
            return not self.cycle.response_started and not self.pipeline
        return self.cycle is None or self.cycle.response_complete


def problem_of_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> Problem | None:
    """What the parser accepts by version and headers and HTTP forbids (RFC 9110 and 9112)."""
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


def _refusing(problem: Problem) -> Asgi:
    """An application that answers with this problem and ends the connection."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_problem(send, problem, scope["method"], [(b"connection", b"close")])

    return refuse


def _answering_at_the_end(app: Asgi) -> Asgi:
    """The application, which answers 503 when an ending server cancels it before it has answered."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, OneWriteAnswer(send).send)
        except asyncio.CancelledError:
            if _cycle_of(send).response_started:
                raise
            await _refusing(_ending(scope["method"]))(scope, receive, send)

    return run


def _without_chunks(app: Asgi) -> Asgi:
    """The application for HTTP/1.0, which has no chunks (RFC 9112, 6.1): the connection's end ends an answer."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        cycle = _cycle_of(send)
        is_open = False

        async def sending(message: Message) -> None:
            nonlocal is_open
            if message["type"] == "http.response.start":
                is_open = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_open:
                # uvicorn compares each piece with this length.
                cycle.chunked_encoding = False
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sending)

    return run


def _cycle_of(send: Send) -> RequestResponseCycle:
    """What writes the answer. `send` has to be the server's own, or that of an `OneWriteAnswer`."""
    owner: RequestResponseCycle | OneWriteAnswer = send.__self__  # type: ignore[attr-defined]
    return owner.cycle if isinstance(owner, OneWriteAnswer) else owner


def _ending(method: str) -> Problem:
    # A request that changes something may have done so.
    outcome = {"outcome": "unknown"} if method not in ("GET", "HEAD", "OPTIONS") else None
    return Problem(503, "The server is shutting down: try again", details=outcome, retry_after=1)


def _headers_too_large(most: int) -> Problem:
    return Problem(431, f"The request headers are larger than {most} bytes", details={"most": most})
