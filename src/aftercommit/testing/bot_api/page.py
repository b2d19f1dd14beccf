"""The page that shows the chats. Its files lie beside this one and need nothing from elsewhere."""

from importlib.resources import files
from typing import Final

from aftercommit.errors import MissingExtra

try:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute, Route
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "starlette") from problem

_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PAGE: Final = "chats.html"
_PARTS: Final = (
    "tokens.css",
    "chats.css",
    "theme.js",
    "chats.js",
    "conversation.js",
    "formatting.js",
    "panel.js",
    "parts.js",
    "icon.svg",
)
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
    """The page and what it consists of."""
    return [_route("/", _PAGE), *(_route(f"/{name}", name) for name in _PARTS)]


def _route(path: str, name: str) -> Route:
    async def show(request: Request) -> Response:
        content = files(__package__).joinpath("files", name).read_bytes()
        return Response(content, headers=_HEADERS, media_type=_TYPES[name.rpartition(".")[2]])

    return Route(path, show, methods=["GET"])
