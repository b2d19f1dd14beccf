"""The endpoint that streams a feed as server-sent events."""

from collections.abc import Mapping

from aftercommit.access.reader import Access
from aftercommit.errors import InvalidCursor
from aftercommit.feed.declaration.cursor import Cursor
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.endpoints.endpoint import Endpoint
from aftercommit.feed.endpoints.gate import Gate
from aftercommit.feed.live.response import HEADERS
from aftercommit.feed.live.stream import UNREAD_WITHOUT_STREAM, Stream, StreamSource
from aftercommit.feed.live.streams import Streams
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.http.asgi import Receive, Scope, Send, answer, peer_of
from aftercommit.http.errors import unavailable


class Streaming(Endpoint):
    """Streams the events after the reader's cursor, then new ones as they come. Without a cursor it begins with the
    newest page, or with the oldest event that is kept, as the feed declares."""

    def __init__(
        self, feed: Feed, parameter: str | None, hub: FeedHub, gate: Gate, streams: Streams, access: Access
    ) -> None:
        """The stream asks `access` now and then whether the reader may still read."""
        super().__init__(feed, parameter, hub, gate, streams)
        self._source = StreamSource(streams, hub, access)

    async def answer(
        self, scope: Scope, headers: Mapping[str, str], key: str | None, receive: Receive, send: Send
    ) -> None:
        """Stream until the client or the server ends it. A refusal is a plain HTTP error, before the first byte."""
        admission = await self._gate.admit(headers, key, peer_of(scope))
        asked = self._questions.read(scope["query_string"])
        # A browser that reconnects repeats the first URL, and sends its position in this header.
        resumed = headers.get("last-event-id")
        after = self._resumed(resumed) if resumed else asked.after
        room = self._streams.room(admission.reader.user)
        try:
            strand = await self._hub.strand(self.feed, admission.key)
            more_headers = [*admission.caching.stream, *admission.headers]
            if self._hub.unread_for(self.feed) > UNREAD_WITHOUT_STREAM:
                # A stream from memory would open and then send nothing. The client should know.
                raise unavailable("Cannot read the log at the moment, so a stream would send nothing: try again", 2)
            if scope["method"] == "HEAD":
                room.leave()
                await answer(send, 200, [*HEADERS, *more_headers])
                return
            stream = Stream(self._source, strand, admission.reader, asked.chosen, room, scope, send)
        except BaseException:
            room.leave()
            raise
        # The stream leaves its room when it is over, which may be long after this request's task.
        await stream.serve(after, asked.limit, more_headers, receive)

    def _resumed(self, last_event_id: str) -> Cursor:
        try:
            return self.feed.cursor.parse(last_event_id)
        except InvalidCursor as problem:
            # The error's own remedy is about URLs, in which a cursor must be encoded.
            remedy = f"and in Last-Event-ID not percent-encoded: {self.feed.cursor.example}"
            raise InvalidCursor(last_event_id, problem.reason, remedy) from None
