"""CORS: which web pages may read responses, by their origin."""

from collections.abc import Collection
from urllib.parse import urlsplit

from aftercommit.errors import DeclarationError
from aftercommit.http.asgi import Asgi, Header, Message, Receive, Scope, Send, answer, header_of

EXPOSED = (
    "ETag",
    "X-Total-Count",
    "X-Has-More",
    "X-Next-Cursor",
    "X-Previous-Cursor",
    "X-Never-Given",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "Preference-Applied",
    "X-Heartbeat-Interval",
    "Location",
)
ALLOWED = (
    "Authorization",
    "Content-Type",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
    "Cache-Control",
    "X-User-Id",
    "Idempotency-Key",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Cors:
    """Lets web pages of these origins use an application. `"*"` allows every origin, without cookies."""

    def __init__(self, origins: Collection[str], *, credentials: bool = False, max_age: int = 86_400) -> None:
        """Origins as a browser sends them: `https://console.example.com`, without a path."""
        if credentials and "*" in origins:
            raise DeclarationError(
                "cors: '*' with credentials would let any web page act as its user: list the origins"
            )
        for origin in origins:
            _check(origin)
        self._origins = frozenset(origins)
        self._everybody = "*" in origins
        self._credentials = credentials
        self.vary: list[Header] = [] if self._everybody else [(b"vary", b"Origin")]
        self._preflight: list[Header] = [
            (b"access-control-allow-methods", ", ".join(METHODS).encode()),
            (b"access-control-allow-headers", ", ".join(ALLOWED).encode()),
            (b"access-control-max-age", b"%d" % max_age),
            (b"content-length", b"0"),
        ]
        self._exposed: Header = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())

    def headers(self, origin: str) -> list[Header]:
        """The CORS headers of a response to a page of this origin."""
        if not self._everybody and origin not in self._origins:
            return self.vary
        credentials = [(b"access-control-allow-credentials", b"true")] if self._credentials else []
        allowed = b"*" if self._everybody else origin.encode("latin-1", "replace")
        return [(b"access-control-allow-origin", allowed), self._exposed, *credentials, *self.vary]

    def around(self, app: Asgi) -> Asgi:
        """The application, with CORS headers on its responses."""
        return _Opened(app, self)

    def preflight(self, origin: str) -> list[Header]:
        """The headers that answer a preflight request."""
        return [*self.headers(origin), *self._preflight]


class _Opened:
    def __init__(self, app: Asgi, cors: Cors) -> None:
        self._app = app
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = header_of(scope, b"origin")
        if origin is None:
            # `Vary` without an origin, too: a cache must not give this response to a page that needs the headers.
            await self._app(scope, receive, _with(send, self._cors.vary))
        elif scope["method"] == "OPTIONS" and header_of(scope, b"access-control-request-method") is not None:
            await answer(send, 204, self._cors.preflight(origin))
        else:
            await self._app(scope, receive, _with(send, self._cors.headers(origin)))


def _with(send: Send, more: list[Header]) -> Send:
    if not more:
        return send

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *more]
        await send(message)

    return wrapped


def _check(origin: str) -> None:
    parts = urlsplit(origin)
    is_bare = parts.netloc != "" and origin == f"{parts.scheme}://{parts.netloc}"
    if origin == "*" or (parts.scheme in ("http", "https") and is_bare):
        return
    raise DeclarationError(
        f"cors: {origin!r:.80} is not an origin: write scheme, host and port, as https://app.example.com"
    )
