"""How a stream waits while it has nothing to write: in the crowd, and where it has a task, that sleeps."""

import asyncio

from aftercommit.feed.live.crowd import Crowd, Waiting


class StreamSleep:
    """The sleep of one stream. In the crowd alone it needs no task."""

    __slots__ = ("_crowd", "_sleeper")

    def __init__(self) -> None:
        self._crowd: Crowd | None = None
        self._sleeper: asyncio.Future[None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the stream is asleep, and not woken for something already."""
        return not self._sleeper.done() if self._sleeper is not None else self._crowd is not None

    def join(self, crowd: Crowd, stream: Waiting) -> None:
        """Sleep in the crowd, which writes what comes. Nothing may have been awaited since the head was compared."""
        self._crowd = crowd
        crowd.join(stream)

    def end(self, stream: Waiting) -> bool:
        """Wake the stream. True if it has no task that wakes up."""
        if self._sleeper is not None:
            if not self._sleeper.done():
                self._sleeper.set_result(None)
            return False
        return self._leave(stream)

    async def wait(self, stream: Waiting) -> None:
        """Let this task sleep until the stream is woken."""
        self._sleeper = asyncio.get_running_loop().create_future()
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            self._leave(stream)

    def _leave(self, stream: Waiting) -> bool:
        crowd, self._crowd = self._crowd, None
        if crowd is not None:
            crowd.leave(stream)
        return crowd is not None
