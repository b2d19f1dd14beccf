"""The base of both endpoints of a feed: methods, the key in the path, and error responses."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.endpoints.gate import Gate
from aftercommit.feed.endpoints.query import Questions
from aftercommit.feed.endpoints.refusals import problem_of
from aftercommit.feed.live.streams import Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.http.asgi import ALLOWED, Receive, Scope, Send, answer, answer_problem, headers_of
from aftercommit.http.errors import internal_error, method_not_allowed
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

ALLOW: Final = "GET, HEAD, OPTIONS"
METHODS: Final = ("GET", "HEAD", "OPTIONS")


class Endpoint(ABC):
    """An ASGI application for one path of one feed.

    `parameter` names the part of the path that is the key; without it the feed has one strand, or one for each user.
    """

    def __init__(self, feed: Feed, parameter: str | None, hub: FeedHub, gate: Gate, streams: Streams) -> None:
        self.feed = feed
        self.parameter = parameter
        self._hub = hub
        self._gate = gate
        self._streams = streams
        self._questions = Questions(feed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, also when the endpoint fails."""
        method: str = scope["method"]
        try:
            if method in ("GET", "HEAD"):
                key = scope["path_params"][self.parameter] if self.parameter is not None else None
                await self.answer(scope, headers_of(scope), key, receive, send)
            elif method == "OPTIONS":
                await answer(send, 204, [(b"allow", scope.get(ALLOWED, ALLOW).encode())])
            else:
                raise method_not_allowed(method, ALLOW)
        except Exception as error:  # noqa: BLE001 - the client gets a response in any case, and the log the cause
            problem = problem_of(self.feed, error)
            if problem is None:
                log_event(logger, logging.ERROR, "request_failed", error, feed=self.feed.name, error=repr(error)[:300])
            await answer_problem(send, problem or internal_error(), method)

    @abstractmethod
    async def answer(
        self, scope: Scope, headers: Mapping[str, str], key: str | None, receive: Receive, send: Send
    ) -> None:
        """Answer a GET or HEAD."""
