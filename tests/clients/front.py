"""One address in front of several servers, as a load balancer is: connections go to them in turn, and can be cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from urllib.parse import urlsplit


class Front:
    """Carries bytes. With `cut_after` every answer is cut after so many bytes."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.servers = cycle(servers)
        self.cut_after: int | None = None
        self.connections = 0
        self.url = ""
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Cut everybody off."""
        for writer in self._open:
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        address = urlsplit(next(self.servers))
        self._open.add(writer)
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection(address.hostname, address.port)
            ways = [
                asyncio.ensure_future(carried(reader, forth)),
                asyncio.ensure_future(carried(back, writer, self.cut_after)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            forth.transport.abort()
        writer.transport.abort()
        self._open.discard(writer)


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
        made.cut()
        await asyncio.sleep(0)
