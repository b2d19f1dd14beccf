"""`/docs`: Swagger UI on `/openapi.json`, served from this package; it asks no other host.

`make web` builds it from `web/pages/docs` into `built/`. The page links to the description's `externalDocs`. If its
scheme `bearer` has `x-sample-users`, an address that hands out tokens in development, the page offers those users.
"""

import asyncio
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
    asgi_headers,
    header_of,
)
from aftercommit.http.compression import compressed
from aftercommit.http.errors import method_not_allowed

# Swagger UI's style sheet has its icons as data.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_NO_CACHE: Final = (b"cache-control", b"no-cache")
# The page asks for its parts with a hash of their content.
_IMMUTABLE: Final = (b"cache-control", b"public, max-age=31536000, immutable")
_GUARDS: Final[list[Header]] = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_HTML: Final = (b"content-type", b"text/html; charset=utf-8")
_SCRIPT: Final = (b"content-type", b"text/javascript; charset=utf-8")
_NOT_BUILT: Final = (
    b"<!doctype html><title>API</title><p>This page is not built: run <code>make web</code> in a checkout of "
    b"aftercommit, then load it again. The API is described in <a href=openapi.json>openapi.json</a>."
)


class StaticPage:
    """An address with one content, made when it is first asked for."""

    def __init__(self, make: Callable[[], bytes], *headers: Header) -> None:
        """`make` is called until it has made something; with FileNotFoundError it says that nothing is built yet."""
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
            try:
                self._content = self._make()
            except FileNotFoundError:
                await answer(send, 503, [_HTML, _NO_CACHE, *_GUARDS], b"" if method == "HEAD" else _NOT_BUILT)
                return
        # In a thread: a megabyte takes long enough to compress that streams would wait for it.
        content, about = await asyncio.to_thread(compressed, self._content, header_of(scope, b"accept-encoding") or "")
        length = (b"content-length", b"%d" % len(content))
        await answer(send, 200, [length, *asgi_headers(about), *self._headers], b"" if method == "HEAD" else content)


def docs_pages(openapi: Callable[[], Mapping[str, Any]]) -> dict[str, Asgi]:
    """`/docs`, what it consists of, and the `/openapi.json` that it draws; by path."""
    return {
        "/docs": _file("built/docs.html", _HTML, _NO_CACHE),
        "/docs.js": _file("built/docs.js", _SCRIPT, _IMMUTABLE),
        "/docs-theme.js": _file("built/docs-theme.js", _SCRIPT, _IMMUTABLE),
        "/docs.css": _file("built/docs.css", (b"content-type", b"text/css; charset=utf-8"), _IMMUTABLE),
        # Browsers ask for it by themselves, also beside figures and JSON.
        "/favicon.ico": _file("icon.svg", (b"content-type", b"image/svg+xml"), _NO_CACHE),
        "/openapi.json": StaticPage(lambda: msgspec.json.encode(openapi()), JSON, _NO_CACHE),
    }


def _file(name: str, *headers: Header) -> StaticPage:
    return StaticPage(files(__package__).joinpath(name).read_bytes, *headers, *_GUARDS)
