"""The HTTP of a follower, on httpx: one page, or one open stream. Whatever goes wrong on the way is `Lost`."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from aftercommit.errors import MissingExtra
from aftercommit.text import readable

try:
    import httpx
except ModuleNotFoundError as problem:
    raise MissingExtra("client", "httpx") from problem

MOST_BODY: Final = 64 << 20
_STREAM_TYPE: Final = "text/event-stream"
_OK: Final = 200
_SECONDS: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?")
_LONGEST_BEAT: Final = 300.0


class Lost(Exception):
    """No answer, or not all of it."""


class Answer(msgspec.Struct, frozen=True):
    """A whole answer. The names of its headers are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def silence_of(interval: str | None) -> float | None:
    """How long a stream may be silent whose server announces this interval between heartbeats; None: it does not.

    One beat may come late, or be lost: twice the interval and a second.
    """
    if interval is None or not _SECONDS.fullmatch(interval) or not 0 < float(interval) <= _LONGEST_BEAT:
        return None
    return 2 * float(interval) + 1


class OpenStream:
    """An answer that goes on."""

    def __init__(self, response: httpx.Response) -> None:
        """Its head is there."""
        self._response = response
        # Seconds that it may be silent, where the server says how often it beats.
        self.silence = silence_of(response.headers.get("x-heartbeat-interval"))
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()

    async def read(self, within: float) -> bytes:
        """What comes next; nothing at the end. Lost when it breaks, or is silent for too long."""
        async with _guarded(within, "the stream was silent"):
            return await anext(self._chunks, b"")

    async def close(self) -> None:
        """Let go of it."""
        await self._response.aclose()


class FeedConnection:
    """Requests of one follower, on a client of its own or on one that it was given."""

    def __init__(self, client: httpx.AsyncClient | None = None) -> None:
        """A given client is used and left open."""
        self._given = client
        self._client: httpx.AsyncClient | None = client

    async def get(self, url: str, headers: Mapping[str, bytes], within: float) -> Answer:
        """A whole answer; Lost when there is none in time."""
        client = self._opened()
        async with _guarded(within, "no answer"):
            response = await _send(client, url, headers)
            try:
                return await _whole(response)
            finally:
                await response.aclose()

    async def open(self, url: str, headers: Mapping[str, bytes], within: float) -> Answer | OpenStream:
        """A stream, or the answer that came instead."""
        client = self._opened()
        async with _guarded(within, "no answer"):
            response = await _send(client, url, {"Accept-Encoding": b"identity", **headers})
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status_code == _OK and kind == _STREAM_TYPE:
                return OpenStream(response)
            try:
                return await _whole(response)
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Close what is our own; it is opened again when it is needed."""
        if self._given is None and self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        # Not on the time of a request: reading the certificates of this machine may take longer than an answer.
        if self._client is None:
            self._client = httpx.AsyncClient()
        return self._client


async def _send(client: httpx.AsyncClient, url: str, headers: Mapping[str, bytes]) -> httpx.Response:
    sent = {name.encode(): value for name, value in headers.items()}
    # Time is kept around the whole of it: httpx would count every read on its own.
    request = client.build_request("GET", url, headers=sent, timeout=None)
    return await client.send(request, stream=True, follow_redirects=False)


@asynccontextmanager
async def _guarded(within: float, otherwise: str) -> AsyncIterator[None]:
    """Turns whatever goes wrong with a request, and too much time, into Lost."""
    try:
        async with asyncio.timeout(within):
            yield
    except TimeoutError:
        raise Lost(f"{otherwise} for {within:g} s") from None
    except (httpx.HTTPError, httpx.StreamError, OSError) as problem:
        raise Lost(f"{type(problem).__name__}: {readable(problem)}") from problem


async def _whole(response: httpx.Response) -> Answer:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MOST_BODY:
            raise Lost(f"the answer is larger than {MOST_BODY} bytes")
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, bytes(body))
