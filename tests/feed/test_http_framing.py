"""Requests that are not what HTTP says, or never come to their end: the common body wherever one can be sent."""

import json
import logging

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aftercommit.feed.app.service import service
from aftercommit.http.asgi import Receive, Scope, Send, answer
from aftercommit.server.protocol import Guards
from tests.feed.journal import Journal, until
from tests.feed.servers import connected, rest_of

CLOSING = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


async def test_a_body_that_stalls_is_408_where_nothing_was_answered_yet(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    app = journal.app()
    outer = service(app, [Route("/echo", echo, methods=["POST"])])
    async with journal.served(app, outer, guards=Guards(body_seconds=0.3)) as reading:
        async with connected(reading) as (reader, writer):
            writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
            answer = await rest_of(reader)
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "request_timeout"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_leaves_while_it_uploads_is_no_error(journal: Journal, caplog: pytest.LogCaptureFixture):
    app = journal.app()
    caplog.set_level(logging.DEBUG, "aftercommit.feed")
    async with journal.served(app, service(app, [Route("/echo", echo, methods=["POST"])])) as reading:
        async with connected(reading) as (_, writer):
            writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
            await writer.drain()
        await until(lambda: any(record.msg == "client_gone" for record in caplog.records))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "sent",
    [
        b"NONSENSE\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
    ],
)
async def test_what_is_no_http_has_the_common_body(journal: Journal, sent: bytes):
    app = journal.app()
    async with journal.served(app, service(app, [Route("/echo", echo, methods=["POST"])])) as reading:
        async with connected(reading) as (reader, writer):
            writer.write(sent)
            head, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"content-type: application/json" in head
        assert json.loads(body)["error"] == "bad_request"


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (400, b"GET /echo HTTP/1.1\r\n\r\n"),
        (400, b"GET /echo HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n"),
        (400, b"GET /echo HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n"),
        (400, b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
        (505, b"GET /echo HTTP/2.0\r\nHost: x\r\n\r\n"),
        (505, b"GET /echo HTTP/0.9\r\nHost: x\r\n\r\n"),
        (501, b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
        (417, b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\nhi"),
        (415, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi"),
    ],
)
async def test_what_http_has_a_server_refuse_is_refused_with_its_status(journal: Journal, status: int, sent: bytes):
    app = journal.app()
    async with journal.served(app, service(app, [Route("/echo", echo, methods=["POST"])])) as reading:
        async with connected(reading) as (reader, writer):
            writer.write(sent)
            head, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), head
        assert b"connection: close" in head
        assert set(json.loads(body)) <= {"error", "message", "details"}


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi",
        b"POST /echo HTTP/1.1\r\nHost:\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        CLOSING + b"Transfer-Encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        CLOSING + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi",
        CLOSING + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\nhi",
    ],
)
async def test_what_http_allows_is_answered(journal: Journal, sent: bytes):
    app = journal.app()
    outer = service(app, [Route("/echo", echo, methods=["POST"])])
    async with journal.served(app, outer) as reading, connected(reading) as (reader, writer):
        writer.write(sent)
        assert (await rest_of(reader)).endswith(b"\r\n\r\nhi")


async def test_a_request_is_answered_although_what_follows_it_is_no_http(journal: Journal):
    app = journal.app()
    async with journal.served(app, service(app, [Route("/echo", echo, methods=["POST"])])) as reading:
        async with connected(reading) as (reader, writer):
            writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi, and more than that")
            answer = await rest_of(reader)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\nhi")


async def echo(request: Request) -> Response:
    return Response(await request.body())


@pytest.mark.thorough
async def test_who_speaks_http_1_0_gets_a_stream_without_chunks(journal: Journal):
    """It does not know them: the stream is as it is, and ends with the connection."""
    await journal.write("one")
    async with journal.served() as reading, connected(reading) as (reader, writer):
        token = journal.bearer()["Authorization"].encode()
        writer.write(b"GET /books/b-1/lines/stream HTTP/1.0\r\nAuthorization: %b\r\n\r\n" % token)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close\r\n" in head.lower()
        first = await reader.readuntil(b"\n\n")
        assert first.startswith(b"retry:")
        assert b'"text":"one"' in await reader.readuntil(b"\n\n")
        await journal.write("two")
        assert b'"text":"two"' in await reader.readuntil(b"\n\n")
        reading.app.drain()
        assert (await rest_of(reader)).startswith(b"event: bye\n")


@pytest.mark.parametrize("path", [b"/books/b-1/lines", b"/metrics", b"/nowhere", b"/books/b-1/lines/stream"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.thorough
async def test_who_speaks_http_1_0_reads_to_the_end_of_the_connection(journal: Journal, path: bytes, method: bytes):
    app = journal.app()
    async with journal.served(app, service(app)) as reading, connected(reading) as (reader, writer):
        token = journal.bearer()["Authorization"].encode()
        writer.write(b"%b %b HTTP/1.0\r\nAuthorization: %b\r\nConnection: keep-alive\r\n\r\n" % (method, path, token))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        app.drain()
        body = await rest_of(reader)
        announced = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
        if announced and method == b"GET":
            assert len(body) == int(announced[0].partition(b": ")[2])
        assert method == b"GET" or body == b""


@pytest.mark.parametrize("blanks", [b" ", b"\t", b"  \t "])
async def test_blanks_around_a_value_do_not_belong_to_it(journal: Journal, blanks: bytes):
    async with journal.served(outer=heard) as reading, connected(reading) as (reader, writer):
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nIdempotency-Key:%ba b%b\r\nConnection: close\r\n\r\n" % (blanks, blanks)
        )
        assert (await rest_of(reader)).endswith(b"\r\n\r\n[a b]")


async def test_a_last_event_id_with_a_blank_behind_it_is_the_same_place(journal: Journal):
    await journal.write("one", "two")
    async with journal.served() as reading:
        cursor = (await reading.poll(limit=1, fromTime="2001-01-01T00:00:00Z")).json()["pagination"]["nextCursor"]
        async with connected(reading) as (reader, writer):
            token = journal.bearer()["Authorization"].encode()
            writer.write(
                b"GET /books/b-1/lines/stream HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\nLast-Event-ID: %b \r\n\r\n"
                % (token, cursor.encode())
            )
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")


async def heard(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what it was told."""
    if scope["type"] == "http":
        said = dict(scope["headers"])[b"idempotency-key"]
        await answer(send, 200, [(b"content-length", b"%d" % (len(said) + 2))], b"[%b]" % said)
