"""The page with the chats, and the page for unknown addresses. All pages share one style sheet of colours and sizes."""

from importlib.resources import files
from typing import Final

from aftercommit.errors import MissingExtra
from aftercommit.feed.app import pages
from aftercommit.http.accept import prefers_html
from aftercommit.http.asgi import Asgi, Receive, Scope, Send, header_of
from aftercommit.http.compression import compressed

try:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Route
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem

_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PAGE: Final = "chats.html"
_MISSING: Final = "missing.html"
_TOKENS: Final = "tokens.css"
_SCRIPTS: Final = ("theme.js", "chats.js", "conversation.js", "formatting.js", "live.js", "panel.js", "parts.js")
_PARTS: Final = (_TOKENS, "chats.css", "icon.svg", *_SCRIPTS)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[BaseRoute]:
    """The routes of the page and its files."""
    return [_route("/", _PAGE), *(_route(f"/{name}", name) for name in _PARTS)]


class NothingHere:
    """Answers unknown addresses: browsers get a page, programs the answer of `otherwise`."""

    def __init__(self, otherwise: Asgi) -> None:
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and prefers_html(header_of(scope, b"accept") or ""):
            await _response(_MISSING, 404)(scope, receive, send)
        else:
            await self._otherwise(scope, receive, send)


def _route(path: str, name: str) -> Route:
    async def show(request: Request) -> Response:
        return _response(name, accept_encoding=request.headers.get("accept-encoding", ""))

    return Route(path, show, methods=["GET"])


def _response(name: str, status: int = 200, accept_encoding: str = "") -> Response:
    folder = files(pages) if name == _TOKENS else files(__package__).joinpath("files")
    content = folder.joinpath(name).read_bytes()
    body, encoding = compressed(content, accept_encoding)
    return Response(body, status, {**_HEADERS, **encoding}, media_type=_TYPES[name.rpartition(".")[2]])
