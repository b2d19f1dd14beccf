"""Readers of a soak's feed: streams and pollers, each of which must see every position once and in order."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from bench.figures import percentile

# As our feed writes an item; the figures of a soak must not be those of a JSON parser.
ITEM: Final = re.compile(rb'"position":(\d+),"number":(\d+),"sent":(\d+)')
LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
POLL: Final = 1.0
FULL: Final = 1000
SAMPLED: Final = 10
AGAIN: Final = 0.2


class Place:
    """Where one reader is, and what it saw that it should not have seen."""

    def __init__(self) -> None:
        self.position = 0
        self.count = 0
        self.faults: list[str] = []

    def take(self, data: bytes, delays: list[float]) -> int:
        """Look at the items in these bytes; how many there were."""
        now, found = 1000 * time.time(), 0
        for match in ITEM.finditer(data):
            position = int(match[1])
            if position != self.position + 1:
                self.faults.append(f"{position} after {self.position}")
            self.position = position
            found += 1
            if position % SAMPLED == 0:
                delays.append(now - int(match[3]))
        self.count += found
        return found


class Readers:
    """All readers of this process."""

    def __init__(self, url: str, path: str, bearer: str, streams: int, pollers: int) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path, self._bearer = parts.hostname, parts.port, path, bearer
        self._streams = [Place() for _ in range(streams)]
        self._pollers = [Place() for _ in range(pollers)]
        self._delays: dict[str, list[float]] = {"stream": [], "poll": []}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """They read meanwhile; one that loses its connection goes on from where it was."""
        tasks = [asyncio.create_task(self._again(self._stream, place)) for place in self._streams]
        tasks += [asyncio.create_task(self._again(self._poll, place)) for place in self._pollers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def told(self) -> dict[str, Any]:
        """Where they are, and how long events took since the last time."""
        places = [*self._streams, *self._pollers]
        found = {
            "slowest": min((place.position for place in places), default=0),
            "counts": sorted({place.count for place in places}),
            "faults": [fault for place in places for fault in place.faults][:20],
        }
        for kind, delays in self._delays.items():
            found[f"{kind}_p99_ms"] = percentile(delays, 0.99) if delays else 0.0
            delays.clear()
        return found

    async def _again(self, read: Any, place: Place) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await read(place)
            await asyncio.sleep(AGAIN)

    async def _stream(self, place: Place) -> None:
        reader, writer = await self._open()
        try:
            writer.write(self._request(f"{self._path}/stream", place, b"Accept: text/event-stream\r\n"))
            await reader.readuntil(b"\r\n\r\n")
            rest = b""
            while data := await reader.read(1 << 18):
                # An item ends with its line.
                whole, end, rest = (rest + data).rpartition(b"\n")
                place.take(whole + end, self._delays["stream"])
        finally:
            writer.close()

    async def _poll(self, place: Place) -> None:
        reader, writer = await self._open()
        try:
            while True:
                writer.write(self._request(self._path, place))
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length is not None else b""
                if place.take(body, self._delays["poll"]) < FULL:
                    await asyncio.sleep(POLL)
        finally:
            writer.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=1 << 20)

    def _request(self, path: str, place: Place, more: bytes = b"") -> bytes:
        query = f"?limit={FULL}&afterCursor={place.position}" if place.position else f"?limit={FULL}"
        if more:
            query = f"?afterCursor={place.position}" if place.position else ""
        head = f"GET {path}{query} HTTP/1.1\r\nHost: soak\r\nAuthorization: {self._bearer}\r\n"
        return head.encode() + more + b"\r\n"
