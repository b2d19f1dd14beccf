"""The pages of the site, and the sample users to try them as. The files come from the web build (`make web`)."""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aftercommit.access import TokenKeys, mint
from aftercommit.access import is_local as is_local_client
from aftercommit.http import compressed, headers_of, not_found, peer_of, unavailable
from systems.host.system import SampleUser, System

WEB: Final = Path(__file__).parents[2] / "build" / "web" / "site"
TOKEN_LIFETIME: Final = timedelta(hours=12)
_ASSET: Final = re.compile(r"[A-Za-z0-9_-]+\.(js|css|svg)")
_TYPES: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
GUARDS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def page_routes(systems: Sequence[System], keys: TokenKeys | None, chats: str | None = None) -> list[BaseRoute]:
    """Routes of the home page, the systems' pages and their assets.

    With `keys`, `/sample.json` has tokens for the sample users; `chats` is the address of the local bot's chats. Only
    clients on this machine get either.
    """
    pages = {"/": "index.html"} | {path: name for system in systems for path, name in system.pages.items()}
    return [
        *(Route(path, _page(name), include_in_schema=False) for path, name in pages.items()),
        Route("/assets/{name}", _asset, include_in_schema=False),
        Route("/sample.json", _sample(systems, keys, chats), include_in_schema=False),
    ]


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def show(request: Request) -> Response:
        try:
            text = (WEB / name).read_bytes()
        except FileNotFoundError:
            raise unavailable("The pages are not built. Run `make web`, then reload") from None
        return _answer(request, text, "no-cache", "text/html")

    return show


async def _asset(request: Request) -> Response:
    """An asset. Its name contains a hash of its content, so caches may keep it forever."""
    found = _ASSET.fullmatch(request.path_params["name"])
    if found is None or not (WEB / "assets" / found[0]).is_file():
        raise not_found()
    content = (WEB / "assets" / found[0]).read_bytes()
    return _answer(request, content, "public, max-age=31536000, immutable", _TYPES[found[1]])


def _answer(request: Request, content: bytes, cache: str, media_type: str) -> Response:
    """A file, compressed if the client accepts that."""
    body, encoding = compressed(content, request.headers.get("accept-encoding", ""))
    return Response(body, headers={**GUARDS, **encoding, "Cache-Control": cache}, media_type=media_type)


def _sample(
    systems: Sequence[System], keys: TokenKeys | None, chats: str | None
) -> Callable[[Request], Awaitable[Response]]:
    async def tell(request: Request) -> Response:
        told: dict[str, Any] = {"systems": [_about(system) for system in systems]}
        if is_local(request):
            if keys is not None:
                told["users"] = [_with_token(user, keys, systems) for user in sample_users(systems)]
            if chats is not None:
                told["chats"] = chats
        return Response(msgspec.json.encode(told), headers={"Cache-Control": "no-store"}, media_type="application/json")

    return tell


def is_local(request: Request) -> bool:
    """Whether the request comes from this machine and is meant for it. Only such requests get tokens."""
    return is_local_client(headers_of(request.scope), peer_of(request.scope))


def sample_users(systems: Sequence[System]) -> list[SampleUser]:
    """All sample users. A user of several systems gets the permissions of all of them."""
    found: dict[str, SampleUser] = {}
    for user in (user for system in systems for user in system.users):
        known = found.get(user.user)
        about = user.about if known is None else f"{known.about}; {user.about}"
        permissions = user.permissions if known is None else (*known.permissions, *user.permissions)
        name = user.name if known is None else known.name or user.name
        found[user.user] = SampleUser(user.user, about, permissions, name)
    return list(found.values())


def _about(system: System) -> dict[str, Any]:
    links = [{"href": link.href, "label": link.label} for link in system.links]
    return {"name": system.name, "title": system.title, "about": system.about, "links": links}


def _with_token(user: SampleUser, keys: TokenKeys, systems: Sequence[System]) -> dict[str, Any]:
    knowing = [system.name for system in systems if any(each.user == user.user for each in system.users)]
    return {
        "user": user.user,
        **({"name": user.name} if user.name else {}),
        "about": user.about,
        "systems": knowing,
        "permissions": user.permissions,
        "token": mint(keys, user.user, user.permissions, TOKEN_LIFETIME),
    }
