"""`/docs`: a page of our own that draws the OpenAPI description. It needs nothing from elsewhere, and works offline.

Where the description has `externalDocs`, the page shows them as the way back: to an index page, or to a handbook. Where
its scheme `bearer` has `x-sample-users`, an address that hands out tokens in development, the page offers those.
"""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec

from aftercommit.http.asgi import (
    JSON,
    Asgi,
    Header,
    Receive,
    Scope,
    Send,
    answer,
    answer_problem,
    encoded,
    header_of,
)
from aftercommit.http.compression import compressed
from aftercommit.http.errors import method_not_allowed

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS: Final[list[Header]] = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]
_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css",
    "svg": b"image/svg+xml",
}


class StaticPage:
    """An address with one content, made when it is first asked for."""

    def __init__(self, make: Callable[[], bytes], headers: list[Header]) -> None:
        """`make` is called once."""
        self._make = make
        self._headers = headers
        self._content: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The content, for GET and HEAD."""
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            await answer_problem(send, method_not_allowed(method, "GET, HEAD"), method)
            return
        if self._content is None:
            self._content = self._make()
        content, about = compressed(self._content, header_of(scope, b"accept-encoding") or "")
        length = (b"content-length", b"%d" % len(content))
        await answer(send, 200, [length, *encoded(about), *self._headers], b"" if method == "HEAD" else content)


def docs_pages(openapi: Callable[[], Mapping[str, Any]]) -> dict[str, Asgi]:
    """`/docs`, what it consists of, and the `/openapi.json` that it draws; by path."""
    return {
        "/docs": _file("docs.html"),
        "/docs.js": _file("docs.js"),
        # Browsers ask for it by themselves, also beside figures and JSON.
        "/favicon.ico": _file("icon.svg"),
        "/docs.css": _file("tokens.css", "docs.css"),
        "/openapi.json": StaticPage(lambda: msgspec.json.encode(openapi()), [JSON, (b"cache-control", b"no-cache")]),
    }


def _file(*names: str) -> StaticPage:
    """Files of one kind, one after the other."""
    kind = _TYPES[names[0].rpartition(".")[2]]
    folder = files(__package__)
    return StaticPage(
        lambda: b"".join(folder.joinpath(name).read_bytes() for name in names),
        [(b"content-type", kind), *_PAGE_HEADERS],
    )
