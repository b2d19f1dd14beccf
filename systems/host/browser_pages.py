"""Pages for browsers: redirects from API addresses to pages, and HTML pages instead of 401 and 404 in JSON.

API clients get the same answers as without this module.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from starlette.routing import compile_path

from aftercommit.http import (
    NO_STORE,
    Asgi,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    asgi_headers,
    header_of,
    prefers_html,
)
from systems.host.pages import GUARDS, WEB

# HTML pages by status.
PAGES: Final[Mapping[int, str]] = {401: "programs.html", 404: "missing.html"}
# Placeholder for the path to the site's root, which depends on the address.
_ROOT: Final = b"{root}"


class PagesForPeople:
    """Wraps an application: redirects browsers to pages, and answers their 401 and 404 with pages.

    `browser_redirects` maps route paths to pages. A name in braces stands for one segment of a path.
    """

    def __init__(self, app: Asgi, browser_redirects: Mapping[str, str] | None = None) -> None:
        """Everything else goes to the application."""
        self._app = app
        # Grouped by number of segments, so that most polls need no pattern match.
        self._redirects: defaultdict[int, list[tuple[re.Pattern[str], str]]] = defaultdict(list)
        for path, page in (browser_redirects or {}).items():
            self._redirects[path.count("/")].append((compile_path(path)[0], page))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        is_person = prefers_html(header_of(scope, b"accept") or "")
        page = self._page_behind(scope)
        if page is not None and is_person:
            # Relative to the host: the Host header cannot be trusted.
            location = _root_of(scope).removesuffix("/") + page
            headers = {"Location": location, "Vary": "Accept", "Content-Length": "0"}
            await answer(send, 303, [NO_STORE, *asgi_headers(headers)])
        elif page is not None:
            await self._app(scope, receive, _varying(send))
        else:
            await self._app(scope, receive, _with_pages(scope, send) if is_person else send)

    def _page_behind(self, scope: Scope) -> str | None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        # People add a slash by hand.
        path = path.removesuffix("/") or path
        for pattern, page in self._redirects.get(path.count("/"), ()):
            if found := pattern.match(path):
                return page.format(**{name: quote(value, safe="") for name, value in found.groupdict().items()})
        return None


def _varying(send: Send) -> Send:
    """Adds `Vary: Accept` to the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            varies = [value for name, value in headers if name.lower() == b"vary"]
            others = [each for each in headers if each[0].lower() != b"vary"]
            message = {**message, "headers": [*others, (b"vary", b", ".join([*varies, b"Accept"]))]}
        await send(message)

    return sending


def _with_pages(scope: Scope, send: Send) -> Send:
    """Replaces the body of an error that has a page."""
    is_replaced = False

    async def sending(message: Message) -> None:
        nonlocal is_replaced
        page = _page_for(message, scope)
        if page is not None:
            is_replaced = True
            kept = [each for each in message.get("headers", ()) if each[0].lower() == b"www-authenticate"]
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(page)), "Vary": "Accept"}
            told = [NO_STORE, *asgi_headers(headers | GUARDS), *kept]
            await answer(send, message["status"], told, b"" if scope["method"] == "HEAD" else page)
        elif not is_replaced:
            await send(message)

    return sending


def _page_for(message: Message, scope: Scope) -> bytes | None:
    """The page for the response that starts here, if there is one."""
    if message["type"] != "http.response.start" or message["status"] not in PAGES:
        return None
    try:
        page = (WEB / PAGES[message["status"]]).read_bytes()
    except FileNotFoundError:
        return None
    return page.replace(_ROOT, _root_of(scope).encode())


def _root_of(scope: Scope) -> str:
    return quote(scope.get("root_path", "").rstrip("/")) + "/"
