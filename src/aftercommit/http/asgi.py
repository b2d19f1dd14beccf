"""Raw ASGI: read a request's headers and query, send a response, and look at the connection.

Most requests are polls that get a 304. Request and response objects would cost more than the rest of such a poll.
"""

from asyncio import WriteTransport
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from inspect import getclosurevars, isfunction
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol
from urllib.parse import unquote_plus

from aftercommit.http.errors import Problem, bad_request, too_large

Scope = MutableMapping[str, Any]
"""The ASGI scope of a request."""
Message = MutableMapping[str, Any]
"""One message between an ASGI server and an application."""
Receive = Callable[[], Awaitable[Message]]
"""Waits for the next message from the server."""
Send = Callable[[Message], Awaitable[None]]
"""Sends a message to the server."""
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""
Header = tuple[bytes, bytes]
"""The name of a header in lower case, and its value."""

JSON: Header = (b"content-type", b"application/json")
"""The content type of a JSON body."""
NO_STORE: Header = (b"cache-control", b"no-store")
"""Tells caches to keep nothing of a response."""
CONNECTION = "aftercommit.connection"
# In a scope: the methods that all routes of this path answer, where a router has put them there.
ALLOWED = "aftercommit.allowed"
LONGEST_QUERY = 4096
# The default time that open streams, and the process around them, have to end when a server stops.
DRAIN_SECONDS = 5.0
# Modules whose wrappers of `send` look at the head of an answer and pass bodies on.
_PASS_ON = frozenset({__name__, f"{__package__}.cors", "starlette.middleware.errors", "starlette._exception_handler"})


class ServerConnection(Protocol):
    """What our own server tells about a connection in the scope's `extensions`; other servers do not have it."""

    def abort(self) -> None:
        """Drop the connection now, and everything that was written and not sent."""

    def on_lost(self, call: Callable[[], None] | None) -> None:
        """Call this once when the connection is lost, or at once if it already is. None removes the callback."""

    def sends_by(self, send: Send) -> bool:
        """Whether `send` is the server's own, and its current response is sent in chunks."""

    @property
    def transport(self) -> WriteTransport:
        """The transport of asyncio. While it holds no bytes back and is not closing, bytes may be written to it."""

    def write(self, data: bytes) -> bool:
        """Write bytes to the socket. False, and nothing is written, while the client does not read."""

    def detach(self) -> bool:
        """Let the application return while its response goes on, by `write`, `drain` and `finish`; False if it cannot.

        Only for a response for which `sends_by` was true. Nothing is sent by `send` from now on.
        """

    async def drain(self) -> bool:
        """Wait until the client reads; False if the connection is about to end."""

    def finish(self) -> None:
        """End a response that was detached."""


def connection_of(scope: Scope) -> ServerConnection | None:
    """The connection, if our own server runs the application."""
    found: ServerConnection | None = scope.get("extensions", {}).get(CONNECTION)
    return found


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name; values of a repeated header are joined by commas (RFC 9110)."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1")
        value = raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def peer_of(scope: Scope) -> str | None:
    """The client's IP address, if the server tells it."""
    client = scope.get("client")
    return client[0] if client else None


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, which only this machine can reach."""
    try:
        address = ip_address(host)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback
    except ValueError:
        # Not an address: a host name, or the path of a socket.
        return False


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header of this name."""
    for raw_name, raw_value in scope["headers"]:
        if raw_name == name:
            return str(raw_value, "latin-1")
    return None


def parameters_of(query: bytes) -> dict[str, str]:
    """The query parameters; 400 for one that is given twice or is not UTF-8."""
    if len(query) > LONGEST_QUERY:
        raise bad_request(f"The query is longer than {LONGEST_QUERY} bytes", length=len(query))
    parameters: dict[str, str] = {}
    for pair in query.decode("latin-1").split("&"):
        if not pair:
            continue
        quoted, _, value = pair.partition("=")
        name = _text(quoted, quoted)
        value = _text(value, name)
        if name in parameters:
            raise bad_request(f"Parameter {name!r:.60} is given more than once: give it once", parameter=name[:60])
        parameters[name] = value
    return parameters


def _text(quoted: str, parameter: str) -> str:
    try:
        # Latin-1 and back: a byte that was not percent-encoded can be a part of UTF-8 text, too.
        text = unquote_plus(quoted.encode("latin-1").decode(), errors="strict")
    except UnicodeDecodeError:
        said = f"Parameter {parameter!r:.60} is not UTF-8 text: encode it as UTF-8, then percent-encode"
        raise bad_request(said, parameter=parameter[:60]) from None
    if "\x00" in text:
        said = f"Parameter {parameter!r:.60} contains a NUL character: remove it"
        raise bad_request(said, parameter=parameter[:60])
    return text


def asgi_headers(headers: Mapping[str, str]) -> list[Header]:
    """Headers in ASGI's form. Characters that are not Latin-1, or not printable, become question marks."""
    return [
        (name.lower().encode("latin-1"), "".join(_visible(value)).encode("latin-1", "replace"))
        for name, value in headers.items()
    ]


def _visible(value: str) -> Iterable[str]:
    return (character if character.isprintable() else "?" for character in value)


def innermost(send: Send) -> Send:
    """The `send` behind wrappers that are known to pass every body on as it is; decision 0022 has the reason.

    Any other wrapper may count pieces, compress them or change them, and has to see each: the search ends there.
    """
    while isfunction(send) and send.__module__ in _PASS_ON:
        inner = getclosurevars(send).nonlocals.get("send")
        if inner is None:
            break
        send = inner
    return send


def chunk(data: bytes) -> bytes:
    """Data as one chunk of HTTP/1.1's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answer(send: Send, status: int, headers: list[Header], body: bytes = b"") -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_problem(send: Send, problem: Problem, method: str = "GET", more: Iterable[Header] = ()) -> None:
    """Send a problem with the common error body; a HEAD gets the headers only."""
    body = problem.body()
    length = (b"content-length", b"%d" % len(body))
    headers = [JSON, length, NO_STORE, *asgi_headers(problem.headers), *more]
    await answer(send, problem.status, headers, b"" if method == "HEAD" else body)


class BodyLimit:
    """Limits the size of request bodies: a larger one gets 413 and is not read to its end.

    A body with a Content-Encoding gets 415, because the application would not decode it.
    """

    def __init__(self, app: Asgi, max_bytes: int) -> None:
        self._app = app
        self._most = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse by Content-Length, or as soon as more than the limit has arrived."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = header_of(scope, b"content-length") or "0"
        if not announced.isdecimal() or int(announced) > self._most:
            await answer_problem(send, too_large(self._most), scope["method"], [(b"connection", b"close")])
            return
        encoding = header_of(scope, b"content-encoding")
        if encoding is not None and encoding.lower() not in ("", "identity"):
            problem = Problem(
                415,
                f"A body with Content-Encoding {encoding!r:.60} cannot be read: send it without an encoding",
                headers={"Accept-Encoding": "identity"},
            )
            await answer_problem(send, problem, scope["method"], [(b"connection", b"close")])
            return
        await self._counted(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        came = 0
        has_begun = False

        async def counting_receive() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._most:
                raise too_large(self._most)
            return message

        async def watching_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, counting_receive, watching_send)
        except Problem as problem:
            if has_begun or problem.status != 413:
                raise
            await answer_problem(send, problem, scope["method"], [(b"connection", b"close")])


async def lost(receive: Receive) -> None:
    """Wait until the client disconnects; ignore what it still sends."""
    while (await receive())["type"] != "http.disconnect":
        pass
