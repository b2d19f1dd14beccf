"""Pages of a feed: 304 without a query if there is nothing new, and long polls."""

import asyncio
from collections.abc import Mapping
from typing import Final

from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.endpoints.endpoint import Endpoint
from aftercommit.feed.endpoints.etag import tag_of
from aftercommit.feed.endpoints.gate import Admission, Gate
from aftercommit.feed.endpoints.memory_polls import MemoryPolls
from aftercommit.feed.endpoints.page_cache import CachedPage, PageCache, cached_page, check_held
from aftercommit.feed.endpoints.query import Asked, AskedBack, AskedEnd, AskedFrom, has_tag, wait_of
from aftercommit.feed.live.stream import UNREAD_WITHOUT_STREAM
from aftercommit.feed.live.streams import Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.feed.strands.strand import Strand
from aftercommit.http.asgi import Header, Receive, Scope, Send, answer, connection_of, peer_of
from aftercommit.http.errors import unavailable
from aftercommit.http.from_memory import headers_of
from aftercommit.service import Waker, wait_for_any

UNREAD: Final = "Cannot read the log at the moment, so there may be events that are not shown: try again"
# Takes the place of the head in the tag of a page read backwards. No head is below 0, so no other page has such a tag.
READ_BACK: Final = -1


class Polling(Endpoint):
    """The endpoint that serves a feed page by page."""

    def __init__(self, feed: Feed, parameter: str | None, hub: FeedHub, gate: Gate, streams: Streams) -> None:
        super().__init__(feed, parameter, hub, gate, streams)
        self._pages = PageCache()
        self.from_memory = MemoryPolls(feed, hub, gate, streams, self._questions, self._pages)

    async def answer(
        self, scope: Scope, headers: Mapping[str, str], key: str | None, receive: Receive, send: Send
    ) -> None:
        """Send a page, or 304 if the client has it."""
        admission = await self._gate.admit(headers, key, peer_of(scope))
        question = self._questions.read_page(scope["query_string"])
        strand = await self._hub.strand(self.feed, admission.key)
        held = headers.get("if-none-match")
        if isinstance(question, AskedBack):
            await self._answer_back(scope["method"], send, strand, admission, question, held)
            return
        wait = Wait(scope, wait_of(headers.get("prefer"))) if "prefer" in headers else None
        if isinstance(question, AskedFrom):
            # From here on it is like any other page. A request for a time does not wait.
            place, wait = await self._hub.before_moment(strand, question.moment), None
            question = Asked(place, question.limit, question.chosen)
        asked = Asked(None, *question) if isinstance(question, AskedEnd) else question
        if asked.after is None and held is None:
            # Without a cursor or a tag, every page is new to the client: there is nothing to wait for.
            wait = None
        if held is not None:
            head = strand.head
            tag = tag_of(strand, *asked, admission.rights, head)
            if has_tag(held, tag):
                if wait is not None:
                    await self._await_news(wait, admission, strand, head, asked)
                if strand.current and strand.head == head:
                    self._check_read()
                    await self._answer_unchanged(send, tag, admission, wait)
                    return
        page = await self._page(admission, strand, asked, wait)
        if page.is_empty:
            self._check_read()
        if isinstance(question, AskedEnd):
            # A client that reads backwards from the end would never see the event that this page had to leave out.
            check_held(page.held)
        # Made with the page's own head, so that it covers no event that the page could not have.
        tag = tag_of(page.strand, *asked, admission.rights, page.head)
        await self._send_page(scope["method"], send, page, tag, admission, wait)

    def _check_read(self) -> None:
        """503 instead of "nothing new" while the log has not been read for too long."""
        if self._hub.unread_for(self.feed) > UNREAD_WITHOUT_STREAM:
            raise unavailable(UNREAD, 2)

    async def _answer_back(
        self, method: str, send: Send, strand: Strand, admission: Admission, asked: AskedBack, held: str | None
    ) -> None:
        """Send a page before a cursor. It does not depend on the head, so it stays valid for this life of the log."""
        tag = tag_of(strand, *asked, admission.rights, READ_BACK)
        if held is not None and has_tag(held, tag):
            await self._answer_unchanged(send, tag, admission)
            return
        page = await self._hub.page_before(strand, *asked)
        # A page that is not full ends at the oldest event, which retention moves, or where the search stopped.
        cached = cached_page(strand, page, is_closed=len(page.entries) == asked.limit)
        await self._send_page(method, send, cached, tag, admission)

    async def _answer_unchanged(self, send: Send, tag: str, admission: Admission, wait: "Wait | None" = None) -> None:
        headers = [(b"etag", tag.encode()), *admission.caching.changing, *admission.headers, *_applied(wait)]
        self._streams.answers[self.feed.name, 304] += 1
        await answer(send, 304, headers)

    async def _page(self, admission: Admission, strand: Strand, asked: Asked, wait: "Wait | None") -> CachedPage:
        """The page; if it is empty and the client prefers to wait, the page after the wait."""
        if not strand.current:
            strand = await self._hub.strand(self.feed, admission.key)
        page = await self._made(strand, asked)
        if wait is not None and asked.after is not None and page.is_empty:
            # A cursor can be ahead of this process: entries before it are of no interest.
            since = max(page.head, asked.after.number)
            await self._await_news(wait, admission, strand, since, asked)
            page = await self._made(await self._hub.strand(self.feed, admission.key), asked)
        return page

    async def _made(self, strand: Strand, asked: Asked) -> CachedPage:
        return self._pages.find(strand, asked) or self._pages.make(strand, asked, await self._hub.page(strand, *asked))

    async def _await_news(self, wait: "Wait", admission: Admission, strand: Strand, since: int, asked: Asked) -> None:
        """Wait for an entry that matches. The tailer wakes all waiters of a strand when it has read new events."""
        with self._streams.waits() as may_wait:
            if not may_wait:
                return
            while strand.current:
                if strand.head > since:
                    found = strand.after(since, 1, asked.chosen)
                    if found is None or found.entries:
                        break
                    since = found.looked.number
                if not await wait.pause(strand.changed(), self._streams.draining):
                    break
        self._gate.check_still_valid(admission.reader)

    async def _send_page(
        self, method: str, send: Send, page: CachedPage, tag: str, admission: Admission, wait: "Wait | None" = None
    ) -> None:
        headers = [*headers_of(page.lines), *_kept(page, tag, admission), *admission.headers]
        if wait is not None:
            headers += _applied(wait)
        self._streams.answers[self.feed.name, 200] += 1
        await answer(send, 200, headers, b"" if method == "HEAD" else page.body)


class Wait:
    """A long poll's wait, which begins now. It ends when its time is up or the client disconnects."""

    def __init__(self, scope: Scope, seconds: int) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._lost = Waker()
        self._connection = connection_of(scope)

    async def pause(self, *wakers: Waker) -> bool:
        """Wait for one of these wakers. False, without a wait, if time is up or one of them is set already."""
        left = self._until - self._loop.time()
        if left <= 0 or self._lost.is_set() or any(waker.is_set() for waker in wakers):
            return False
        # Under a server that does not report a lost client, the wait goes on until its time is up: a minute at most.
        if self._connection is not None:
            self._connection.on_lost(self._lost.set)
        try:
            await wait_for_any(left, self._lost, *wakers)
        finally:
            if self._connection is not None:
                self._connection.on_lost(None)
        return True


def _kept(page: CachedPage, tag: str, admission: Admission) -> list[Header]:
    """The cache headers of a page, and its ETag."""
    if not page.is_whole:
        return admission.caching.passing
    return [(b"etag", tag.encode()), *(admission.caching.closed if page.is_closed else admission.caching.changing)]


def _applied(wait: Wait | None) -> list[Header]:
    """The header that confirms `Prefer: wait`."""
    return [(b"preference-applied", b"wait=%d" % wait.seconds)] if wait is not None and wait.seconds else []
