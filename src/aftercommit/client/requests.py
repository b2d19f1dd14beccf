"""The requests of one reader of a feed: where it asks, as whom, and over which connection."""

import time

from aftercommit.client.connection import Answer, FeedConnection, OpenStream
from aftercommit.client.credential import Credential
from aftercommit.client.machine import Pace
from aftercommit.client.options import ReadOptions
from aftercommit.client.wire import LOGS, FeedAddress, FetchedPage, refusal
from aftercommit.clock import utc_now
from aftercommit.errors import FeedRefused


class FeedRequests:
    """The requests of one reader. `heard_at` is when the server last sent something, on the monotonic clock."""

    def __init__(self, url: str, options: ReadOptions, *, stream: str | None = None) -> None:
        """`stream` is the address of the stream if it is not `/stream` below `url`."""
        self.wire = options.get("wire") or LOGS
        self.pace = options.get("pace") or Pace()
        limit, filters = options.get("limit"), options.get("filters")
        self.address = FeedAddress(url, self.wire, stream=stream, limit=limit, filters=filters)
        self.credential = Credential(options.get("token"), options.get("headers"))
        self.heard_at: float | None = None
        self._connection = FeedConnection(options.get("client"))
        # Address and tag of the last page.
        self._etag: tuple[str, str] | None = None

    async def poll(self, cursor: str | None) -> FetchedPage | FeedRefused | None:
        """The page after a cursor; None if nothing is new since the last poll. Raises Lost or Unreadable."""
        url = self.address.poll(cursor)
        headers = await self.credential.headers("application/json")
        if self._etag is not None and self._etag[0] == url:
            headers["If-None-Match"] = self._etag[1].encode("latin-1", "replace")
        answer = await self.get(url, headers)
        if answer.status == 304:
            return None
        if answer.status != 200:
            return refused(answer)
        page = self.wire.page(answer.body, answer.headers, cursor)
        # Not before the page is understood: its tag would hide it from the next poll.
        etag = answer.headers.get("etag")
        self._etag = (url, etag) if etag is not None else None
        return page

    async def get(self, url: str, headers: dict[str, bytes]) -> Answer:
        """A whole answer. Raises Lost."""
        answer = await self._connection.get(url, headers, self.pace.answer)
        self.heard_at = time.monotonic()
        return answer

    async def open(self, cursor: str | None) -> OpenStream | FeedRefused:
        """The stream after a cursor. Raises Lost."""
        headers = await self.credential.headers("text/event-stream")
        headers["Cache-Control"] = b"no-store"
        if cursor is not None:
            headers["Last-Event-ID"] = cursor.encode()
        answer = await self._connection.open(self.address.stream(), headers, self.pace.first_bytes)
        return refused(answer) if isinstance(answer, Answer) else answer

    async def aclose(self) -> None:
        """Close the connection; the next request opens another."""
        await self._connection.close()


def refused(answer: Answer) -> FeedRefused:
    """What an answer says that is not what was asked for."""
    return refusal(answer.status, answer.headers, answer.body, utc_now())
