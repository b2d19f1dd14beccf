"""How a stream waits while it has nothing to write: in the crowd, and where it has a task, that sleeps."""

import asyncio

from aftercommit.feed.live.crowd import Crowd, Group, Waiting
from aftercommit.feed.live.response import StreamResponse
from aftercommit.feed.live.stream_position import StreamPosition


class StreamSleep:
    """The sleep of one stream. In the crowd alone it needs no task."""

    __slots__ = ("_counted", "_group", "_position", "_response", "_sleeper")

    def __init__(self, position: StreamPosition, response: StreamResponse) -> None:
        self._position = position
        self._response = response
        self._group: Group | None = None
        # How many bytes of the group's the response has counted, or had no part in.
        self._counted = 0
        self._sleeper: asyncio.Future[None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the stream is asleep, and not woken for something already."""
        return self._group is not None or (self._sleeper is not None and not self._sleeper.done())

    def join(self, crowd: Crowd, stream: Waiting) -> None:
        """Sleep in the crowd, which writes what comes. Nothing may have been awaited since the head was compared."""
        position, response = self._position, self._response
        self._group = crowd.join(stream, response.transport, position.place, position.told, response.last_write)
        self._counted = self._group.sent

    def catch_up(self) -> None:
        """Take over what the crowd has written: it keeps that once for all readers of a group."""
        group = self._group
        if group is not None:
            self._position.catch_up(group.place, group.told)
            self._response.catch_up(group.sent - self._counted, group.written_at)
            self._counted = group.sent

    def end(self, stream: Waiting) -> bool:
        """Wake the stream: the crowd writes nothing more to it. True if it has no task that wakes up."""
        was_in_crowd = self._leave(stream)
        if self._sleeper is None:
            return was_in_crowd
        if not self._sleeper.done():
            self._sleeper.set_result(None)
        return False

    async def wait(self, stream: Waiting) -> None:
        """Let this task sleep until the stream is woken."""
        self._sleeper = asyncio.get_running_loop().create_future()
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            self._leave(stream)

    def _leave(self, stream: Waiting) -> bool:
        self.catch_up()
        group, self._group = self._group, None
        if group is not None:
            group.leave(stream)
        return group is not None
