"""A head and its body leave in one write, and whatever is unusual is sent as uvicorn sends it."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from aftercommit.server.answer import OneWriteAnswer

DATE = (b"date", b"Tue, 17 Nov 2026 09:00:00 GMT")
LENGTH = (b"content-length", b"5")


class Wire:
    """A transport that keeps what it is given, write by write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        if data:
            self.writes.append(data)

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Request:
    """One request on a wire, with what it has sent so far."""

    def __init__(self, method: str = "GET", *, keep_alive: bool = True) -> None:
        self.wire, self.completed = Wire(), 0
        self.cycle: Any = RequestResponseCycle(
            scope={"method": method, "http_version": "1.1"},  # type: ignore[typeddict-item]
            transport=self.wire,  # type: ignore[arg-type]
            flow=FlowControl(self.wire),  # type: ignore[arg-type]
            logger=logging.getLogger("test"),
            access_logger=logging.getLogger("test"),
            access_log=False,
            default_headers=[DATE],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=self._complete,
        )

    def _complete(self) -> None:
        self.completed += 1


def sent(request: Request, send: Any, status: int, headers: Any, *bodies: bytes) -> bytes:
    async def run() -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for number, body in enumerate(bodies, 1):
            await send({"type": "http.response.body", "body": body, "more_body": number < len(bodies)})

    asyncio.run(run())
    return b"".join(request.wire.writes)


CASES = [
    ("GET", True, 200, [(b"content-type", b"text/plain"), LENGTH], (b"hello",)),
    ("GET", True, 200, [(b"Content-Type", b"text/plain"), LENGTH], (b"hello",)),
    ("GET", True, 200, [LENGTH, (b"x-tab", b"a\tb")], (b"hello",)),
    ("GET", True, 200, [LENGTH, (b"x-latin", "ö".encode("latin-1"))], (b"hello",)),
    ("GET", True, 200, [LENGTH], (b"he", b"llo")),
    ("GET", True, 200, [(b"content-length", b"0")], (b"",)),
    ("GET", True, 304, [(b"etag", b'W/"1"')], (b"",)),
    ("GET", True, 204, [], (b"",)),
    ("HEAD", True, 200, [LENGTH], (b"",)),
    ("HEAD", True, 200, [LENGTH], (b"hello",)),
    ("GET", False, 200, [LENGTH], (b"hello",)),
    ("GET", True, 200, [LENGTH, (b"connection", b"close")], (b"hello",)),
    ("GET", True, 200, [(b"transfer-encoding", b"chunked")], (b"hello",)),
    ("GET", True, 200, [], (b"hello",)),
    ("GET", True, 200, [], (b"he", b"llo")),
]


@pytest.mark.parametrize(("method", "keep_alive", "status", "headers", "bodies"), CASES)
def test_the_bytes_are_those_of_uvicorn(method, keep_alive, status, headers, bodies):
    plain, ours = (Request(method, keep_alive=keep_alive) for _ in range(2))
    expected = sent(plain, plain.cycle.send, status, headers, *bodies)

    assert sent(ours, OneWriteAnswer(ours.cycle.send).send, status, headers, *bodies) == expected
    assert ours.completed == plain.completed == 1
    assert ours.wire.is_closed == plain.wire.is_closed
    assert ours.cycle.response_complete


@pytest.mark.parametrize("status", [200, 404])
def test_a_whole_answer_is_one_write(status):
    request = Request()
    sent(request, OneWriteAnswer(request.cycle.send).send, status, [LENGTH], b"hello")

    assert len(request.wire.writes) == 1


def test_the_head_of_a_stream_leaves_before_its_first_piece():
    request = Request()
    sent(request, OneWriteAnswer(request.cycle.send).send, 200, [(b"content-type", b"text/event-stream")])

    assert request.wire.writes[0].startswith(b"HTTP/1.1 200")
    assert request.cycle.chunked_encoding is True


@pytest.mark.parametrize(
    "headers",
    [
        [LENGTH, (b"x-evil", b"a\r\nset-cookie: b")],
        [LENGTH, (b"x-evil", b"a\nb")],
        [LENGTH, (b"x-evil", b"a\x00b")],
        [LENGTH, (b"x-evil\r\nset-cookie", b"b")],
        [LENGTH, (b"x evil", b"b")],
    ],
)
def test_no_header_begins_another_one(headers):
    request = Request()
    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        sent(request, OneWriteAnswer(request.cycle.send).send, 200, headers, b"hello")

    assert request.wire.writes == []


@pytest.mark.parametrize("body", [b"hell", b"hello!"])
def test_a_body_of_another_length_is_an_error(body):
    request = Request()
    with pytest.raises(RuntimeError, match="Content-Length"):
        sent(request, OneWriteAnswer(request.cycle.send).send, 200, [LENGTH], body)


def test_two_heads_are_an_error():
    request = Request()
    send = OneWriteAnswer(request.cycle.send).send

    async def run() -> None:
        for _ in range(2):
            await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})

    with pytest.raises(RuntimeError, match=r"http\.response\.body"):
        asyncio.run(run())
