"""Requests that are not what HTTP says, or never come to their end: the common body wherever one can be sent."""

import json
import logging

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aftercommit.feed.app.service import service
from aftercommit.feed.server.protocol import Guards
from tests.feed.journal import Journal, until
from tests.feed.servers import connected, rest_of


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
