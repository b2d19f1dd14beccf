"""One address in front of several servers, as a load balancer is: connections go to them in turn, and can be cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from urllib.parse import SplitResult, urlsplit


class Front:
    """Carries bytes. With `cut_after` every answer is cut after so many bytes."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.servers = cycle(servers)
        self.cut_after: int | None = None
        self.connections = 0
        self.url = ""
        self._open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    def cut(self) -> None:
        """Cut everybody off."""
        for writer in self._open.values():
            writer.transport.abort()

    async def close(self) -> None:
        """Cut everybody off, and let go of what was opened for them."""
        self.cut()
        await asyncio.gather(*filter(None, self._open), return_exceptions=True)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open[asyncio.current_task()] = writer
        try:
            with contextlib.suppress(OSError):
                await self._carry_on(urlsplit(next(self.servers)), reader, writer)
        finally:
            writer.transport.abort()
            del self._open[asyncio.current_task()]

    async def _carry_on(self, server: SplitResult, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(server.hostname, server.port)
        ways = [
            asyncio.ensure_future(carried(reader, forth)),
            asyncio.ensure_future(carried(back, writer, self.cut_after)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            forth.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)


async def carried(source: asyncio.StreamReader, target: asyncio.StreamWriter, most: int | None = None) -> None:
    while data := await source.read(1 << 16):
        target.write(data if most is None else data[:most])
        await target.drain()
        if most is not None and (most := most - len(data)) <= 0:
            return


@asynccontextmanager
async def front(*servers: str) -> AsyncIterator[Front]:
    """A front that stands while the block runs."""
    made = Front(servers)
    listening = await asyncio.start_server(made.carry, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    made.url = f"http://{host}:{port}"
    try:
        yield made
    finally:
        listening.close()
        await made.close()
        # So that what was cut is closed, too.
        await asyncio.sleep(0)
