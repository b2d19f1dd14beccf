"""Polls that memory alone can answer: the same bytes as `Polling`, without waiting for anything (decision 0031).

Nothing about a reader is remembered here. Who asks and what it may read is found out for each request.
"""

from functools import lru_cache
from typing import Final

import msgspec

from aftercommit.errors import AftercommitError
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.endpoints.etag import tag_of
from aftercommit.feed.endpoints.gate import Gate, MayPass, rights_in_tag
from aftercommit.feed.endpoints.page_cache import CachedPage, PageCache
from aftercommit.feed.endpoints.query import Asked, Questions, has_tag
from aftercommit.feed.live.stream import UNREAD_WITHOUT_STREAM
from aftercommit.feed.live.streams import Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.feed.strands.strand import Strand
from aftercommit.http.asgi import Header, Scope
from aftercommit.http.from_memory import WholeAnswer, lines_of

# How many requests are remembered with what follows from them.
REMEMBERED: Final = 2048
# A request with one of these headers waits, has a body, or needs more headers in its answer.
_UNUSUAL: Final = frozenset(
    (b"prefer", b"origin", b"expect", b"content-length", b"content-encoding", b"transfer-encoding", b"upgrade")
)


class _Poll(msgspec.Struct, gc=False):
    """What follows from a path, a query and a token, and holds as long as the token's reader is the same.

    `strand`, `head`, `tag` and `is_closed` belong to the lines of the last page.
    """

    known: MayPass
    asked: Asked
    rights: str
    strand: Strand | None = None
    head: int = 0
    tag: str = ""


class MemoryPolls:
    """Answers polls of one feed from its ring and from its cached pages."""

    def __init__(
        self, feed: Feed, hub: FeedHub, gate: Gate, streams: Streams, questions: Questions, pages: PageCache
    ) -> None:
        self._feed = feed
        self._hub = hub
        self._gate = gate
        self._streams = streams
        self._questions = questions
        self._pages = pages
        self._unusual = _UNUSUAL | gate.tells_apart
        self._polls: dict[tuple[str, str | None, bytes], _Poll] = {}

    def answer(self, scope: Scope, key: str | None) -> WholeAnswer | None:
        """A page or 304, where nothing is refused, nothing is waited for and no query is needed. Otherwise None."""
        authorization = held = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                if authorization is not None:
                    return None
                authorization = value.decode("latin-1")
            elif name == b"if-none-match":
                if held is not None:
                    return None
                held = value.decode("latin-1")
            elif name in self._unusual:
                return None
        if authorization is None:
            return None
        try:
            poll = self._poll(authorization, key, scope["query_string"])
            return self._answer(poll, held) if poll is not None else None
        except AftercommitError:
            # The usual way tells the client.
            return None

    def _poll(self, authorization: str, key: str | None, query: bytes) -> _Poll | None:
        reader = self._gate.known_reader(authorization)
        if reader is None:
            return None
        poll = self._polls.get(place := (authorization, key, query))
        if poll is not None and poll.known.reader == reader:
            return poll
        known, asked = self._gate.may_pass(reader, key, authorization), self._questions.read_page(query)
        if known is None or not isinstance(asked, Asked):
            return None
        if len(self._polls) >= REMEMBERED:
            del self._polls[next(iter(self._polls))]
        poll = self._polls[place] = _Poll(known, asked, rights_in_tag(reader))
        return poll

    def _answer(self, poll: _Poll, held: str | None) -> WholeAnswer | None:
        known = poll.known
        strand, passing = self._hub.strand_in_memory(self._feed, known.key), self._gate.passing(known)
        if strand is None or passing is None:
            return None
        head = strand.ring.head
        if poll.strand is not strand or poll.head != head:
            poll.strand, poll.head, poll.tag = strand, head, tag_of(strand, *poll.asked, poll.rights, head)
        page = None
        if held is None or not has_tag(held, poll.tag):
            page = self._pages.find(strand, poll.asked) or self._made(strand, poll.asked)
            if page is None:
                return None
        if (page is None or page.is_empty) and self._hub.unread_for(self._feed) > UNREAD_WITHOUT_STREAM:
            return None
        # Nothing is in the way any more: the request is counted, and answered.
        limits, caching = self._gate.limit_lines(passing()), known.caching
        self._streams.answers[self._feed.name, 304 if page is None else 200] += 1
        if page is not None and not page.is_whole:
            return WholeAnswer(200, b"%b%b%b" % (page.lines, _lines(caching.passing), limits), page.body)
        tag, kept = (
            poll.tag.encode(),
            _lines(caching.closed if page is not None and page.is_closed else caching.changing),
        )
        if page is None:
            return WholeAnswer(304, b"etag: %b\r\n%b%b" % (tag, kept, limits))
        return WholeAnswer(200, b"%betag: %b\r\n%b%b" % (page.lines, tag, kept, limits), page.body)

    def _made(self, strand: Strand, asked: Asked) -> CachedPage | None:
        page = self._hub.page_in_memory(strand, *asked)
        return self._pages.make(strand, asked, page) if page is not None else None


_remembered_lines = lru_cache(maxsize=64)(lines_of)


def _lines(headers: list[Header]) -> bytes:
    """The lines of cache headers, of which there are few."""
    return _remembered_lines(tuple(headers))
