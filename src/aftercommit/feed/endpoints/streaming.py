"""The address at which a feed is followed as a stream of events."""

from collections.abc import Mapping

from aftercommit.access.reader import Access
from aftercommit.errors import InvalidCursor
from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.endpoints.endpoint import Endpoint
from aftercommit.feed.endpoints.gate import Gate
from aftercommit.feed.live.response import HEADERS
from aftercommit.feed.live.stream import UNREAD_WITHOUT_STREAM, Stream
from aftercommit.feed.live.streams import Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.http.asgi import Receive, Scope, Send, answer, peer_of
from aftercommit.http.errors import unavailable


class Streaming(Endpoint):
    """Events as they come, after those that came since the reader's cursor. Without one: the most recent, then news,
    or all that is kept, where the feed declares it."""

    def __init__(
        self, feed: Feed, parameter: str | None, hub: FeedHub, gate: Gate, streams: Streams, access: Access
    ) -> None:
        """`access` is asked now and then whether a reader may still read."""
        super().__init__(feed, parameter, hub, gate, streams)
        self._access = access

    async def answer(
        self, scope: Scope, headers: Mapping[str, str], key: str | None, receive: Receive, send: Send
    ) -> None:
        """Stream until one of the two ends it. Refusals come before the first byte, with a status."""
        admission = await self._gate.admit(headers, key, peer_of(scope))
        asked = self._questions.read(scope["query_string"])
        # A browser that comes back sends the address of the first time, and here how far it has come since.
        resumed = headers.get("last-event-id")
        after = self._resumed(resumed) if resumed else asked.after
        with self._streams.place(admission.reader.user):
            strand = await self._hub.strand(self.feed, admission.key)
            told = [*admission.caching.stream, *admission.headers]
            if self._hub.unread_for(self.feed) > UNREAD_WITHOUT_STREAM:
                # From memory it could be opened, and would be silent: whoever waits for news should know.
                raise unavailable("The log cannot be read at the moment, so the stream would stay silent: try again", 2)
            if scope["method"] == "HEAD":
                await answer(send, 200, [*HEADERS, *told])
                return
            stream = Stream(self._streams, self._hub, self._access, admission.reader, asked.chosen, scope, send)
            await stream.serve(strand, after, asked.limit, told, receive)

    def _resumed(self, last_event_id: str) -> Cursor:
        try:
            return self.feed.cursor.parse(last_event_id)
        except InvalidCursor as problem:
            # The remedy that it has is about addresses, in which a cursor has to be encoded.
            remedy = f"and in Last-Event-ID as it stands, not percent-encoded: {self.feed.cursor.example}"
            raise InvalidCursor(last_event_id, problem.reason, remedy) from None
