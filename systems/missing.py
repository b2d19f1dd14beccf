"""A page for people who come to an address that leads nowhere. Programs get the error body that they can read."""

from typing import Final
from urllib.parse import quote

from aftercommit.feed.http import Asgi, Message, Receive, Scope, Send, headers_of
from systems.pages import GUARDS, WEB

PAGE: Final = "missing.html"
# The way to the site's root is not the same at every address: the page has this in its place.
_ROOT: Final = b"{root}"


class PageForPeople:
    """Around an application: what it answers with 404 to a browser that was led to an address is a page."""

    def __init__(self, app: Asgi) -> None:
        """All else is the application's."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if _is_led_here(scope):
            await self._app(scope, receive, _InPlace(scope, send))
        else:
            await self._app(scope, receive, send)


class _InPlace:
    """Sends the page in the place of a 404, and everything else as it is."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._root = quote(scope.get("root_path", "").rstrip("/")) + "/"
        self._method = scope["method"]
        self._send = send
        self._is_replaced = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 404:
            page = _page(self._root)
            if page is not None:
                self._is_replaced = True
                await self._replace(page)
        if not self._is_replaced:
            await self._send(message)

    async def _replace(self, page: bytes) -> None:
        told = {"content-type": "text/html; charset=utf-8", "cache-control": "no-store", **GUARDS}
        headers = [(name.lower().encode(), value.encode()) for name, value in told.items()]
        length = (b"content-length", b"%d" % len(page))
        await self._send({"type": "http.response.start", "status": 404, "headers": [length, *headers]})
        await self._send({"type": "http.response.body", "body": b"" if self._method == "HEAD" else page})


def _is_led_here(scope: Scope) -> bool:
    """Whether a person follows a link or types an address: a script that asks says nothing of HTML."""
    return (
        scope["type"] == "http"
        and scope["method"] in ("GET", "HEAD")
        and "text/html" in headers_of(scope).get("accept", "")
    )


def _page(root: str) -> bytes | None:
    try:
        return (WEB / PAGE).read_bytes().replace(_ROOT, root.encode())
    except FileNotFoundError:
        return None
