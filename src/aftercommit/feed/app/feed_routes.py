"""The paths of an application with feeds: which endpoint a request goes to, and what answers it from memory."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from aftercommit.feed.endpoints.endpoint import Endpoint
from aftercommit.feed.endpoints.memory_polls import MemoryPolls
from aftercommit.feed.endpoints.polling import Polling
from aftercommit.http.asgi import Asgi, Scope
from aftercommit.http.cors import Cors
from aftercommit.http.from_memory import WholeAnswer, lines_of

# How many paths are remembered with their endpoint, and up to which length.
REMEMBERED: Final = 4096
LONGEST_REMEMBERED: Final = 500


class FeedRoute(NamedTuple):
    """A path, its pattern, the endpoint, and what answers polls of it from memory."""

    path: str
    pattern: re.Pattern[str]
    endpoint: Asgi
    polls: MemoryPolls | None


class Polled(NamedTuple):
    """What answers polls of a path, and the key in that path."""

    polls: MemoryPolls
    key: str | None


class FeedRoutes:
    """The endpoints of feeds and the pages of their documentation, by path, under any prefix."""

    def __init__(self, endpoints: Iterable[tuple[str, Endpoint]], pages: Mapping[str, Asgi], cors: Cors | None) -> None:
        """With `cors`, web pages of other origins may read all of them."""
        self._cors = cors
        self._routes = [self._route_of(path, endpoint) for path, endpoint in endpoints]
        self._pages = {path: self._open_to_pages(page) for path, page in pages.items()}
        self._found = lru_cache(maxsize=REMEMBERED)(self._find)
        self._polled = lru_cache(maxsize=REMEMBERED)(self._find_polled)
        # Requests of web pages, which need more than this, are answered the usual way.
        self._more_lines = lines_of(cors.vary) if cors is not None else b""

    @property
    def endpoints(self) -> dict[str, Asgi]:
        """The endpoints of the feeds by their paths."""
        return {route.path: route.endpoint for route in self._routes}

    def find(self, scope: Scope) -> tuple[Asgi | None, dict[str, str] | None]:
        """The endpoint of a request, and the parameters of a feed's path. No two requests may change them."""
        path: str = scope["path"]
        # A client could fill the memory with long paths.
        find = self._found if len(path) <= LONGEST_REMEMBERED else self._find
        return find(path, scope.get("root_path", ""))

    def answer_from_memory(self, scope: Scope) -> WholeAnswer | None:
        """The response to a poll, if memory alone can tell it."""
        path: str = scope["path"]
        if scope["method"] not in ("GET", "HEAD") or len(path) > LONGEST_REMEMBERED:
            return None
        found = self._polled(path, scope.get("root_path", ""))
        answer = found.polls.answer(scope, found.key) if found is not None else None
        return answer._replace(lines=answer.lines + self._more_lines) if answer and self._more_lines else answer

    def _find(self, path: str, root: str) -> tuple[Asgi | None, dict[str, str] | None]:
        path = _below(path, root)
        for route in self._routes:
            found = route.pattern.fullmatch(path)
            if found is not None:
                return route.endpoint, found.groupdict()
        return self._pages.get(path), None

    def _find_polled(self, path: str, root: str) -> Polled | None:
        path = _below(path, root)
        for route in self._routes:
            found = route.pattern.fullmatch(path)
            if found is not None:
                key = next(iter(found.groupdict().values()), None)
                return Polled(route.polls, key) if route.polls is not None else None
        return None

    def _route_of(self, path: str, endpoint: Endpoint) -> FeedRoute:
        pattern = re.escape(path).replace(r"\{", "{").replace(r"\}", "}")
        compiled = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern))
        polls = endpoint.from_memory if isinstance(endpoint, Polling) else None
        return FeedRoute(path, compiled, self._open_to_pages(endpoint), polls)

    def _open_to_pages(self, app: Asgi) -> Asgi:
        return self._cors.around(app) if self._cors is not None else app


def _below(path: str, root: str) -> str:
    """The path below the root of a mounted application."""
    if f"{path}/".startswith(f"{root}/"):
        path = path[len(root) :]
    # Litestar adds a slash to the path of a mounted application.
    return path.removesuffix("/") or "/"
