"""HTTP on httpx: one page, or one open stream. Any failure on the way raises `Lost`."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec

from aftercommit.client.sse_decoder import SseDecoder
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
    """There was no answer, or it was incomplete."""


class Answer(msgspec.Struct, frozen=True):
    """A whole answer. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def silence_of(interval: str | None) -> float | None:
    """How long a stream may be silent, given the interval between heartbeats that its server announces, if any.

    It is twice the interval and a second, because one heartbeat may be late or lost.
    """
    if interval is None or not _SECONDS.fullmatch(interval) or not 0 < float(interval) <= _LONGEST_BEAT:
        return None
    return 2 * float(interval) + 1


class OpenStream:
    """An open stream of events, requested at `started_at` on the monotonic clock.

    `silence` is for how many seconds it may be silent, if the server announces its heartbeats; `retry` is after how
    many the server wants readers back, once it says so.
    """

    def __init__(self, response: httpx.Response, started_at: float) -> None:
        self.started_at = started_at
        self.decoder = SseDecoder()
        self.retry: float | None = None
        self.silence = silence_of(response.headers.get("x-heartbeat-interval"))
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()

    async def read(self, within: float) -> bytes:
        """The next bytes; none at the end. Raises Lost when the stream breaks or is silent for too long."""
        async with _guarded(within, "the stream was silent"):
            return await anext(self._chunks, b"")

    async def close(self) -> None:
        """Close the response."""
        await self._response.aclose()


class FeedConnection:
    """Requests on a given httpx client, which is left open, or on one of its own."""

    def __init__(self, client: httpx.AsyncClient | None = None) -> None:
        self._given = client
        self._client: httpx.AsyncClient | None = client

    async def get(self, url: str, headers: Mapping[str, bytes], within: float) -> Answer:
        """A whole answer. Raises Lost if there is none in time."""
        client = self._opened()
        async with _guarded(within, "no answer"):
            return await _whole(await _send(client, url, headers))

    async def open(self, url: str, headers: Mapping[str, bytes], within: float) -> Answer | OpenStream:
        """A stream, or the answer that came instead."""
        started_at, client = time.monotonic(), self._opened()
        async with _guarded(within, "no answer"):
            response = await _send(client, url, {"Accept-Encoding": b"identity", **headers})
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status_code == _OK and kind == _STREAM_TYPE:
                return OpenStream(response, started_at)
            return await _whole(response)

    async def close(self) -> None:
        """Close our own client; the next request opens another."""
        if self._given is None and self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        # Outside the timeout of a request: loading the machine's certificates may take longer than an answer.
        if self._client is None:
            self._client = httpx.AsyncClient()
        return self._client


async def _send(client: httpx.AsyncClient, url: str, headers: Mapping[str, bytes]) -> httpx.Response:
    sent = {name.encode(): value for name, value in headers.items()}
    # `_guarded` bounds the whole request; the timeout of httpx would bound each read.
    request = client.build_request("GET", url, headers=sent, timeout=None)
    return await client.send(request, stream=True, follow_redirects=False)


@asynccontextmanager
async def _guarded(within: float, otherwise: str) -> AsyncIterator[None]:
    """Raises Lost for every failure of a request, and when it takes too long."""
    try:
        async with asyncio.timeout(within):
            yield
    except TimeoutError:
        raise Lost(f"{otherwise} for {within:g} s") from None
    except (httpx.HTTPError, httpx.StreamError, OSError) as problem:
        raise Lost(f"{type(problem).__name__}: {readable(problem)}") from problem


async def _whole(response: httpx.Response) -> Answer:
    body = bytearray()
    async with aclosing(response):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MOST_BODY:
                raise Lost(f"the answer is larger than {MOST_BODY} bytes")
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, bytes(body))
