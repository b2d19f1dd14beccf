"""Polls answered from memory: the same bytes as the usual way, for everybody, and never another reader's."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.key_count import Rate
from aftercommit.access.revocation import revoke
from aftercommit.access.tokens import TokenVerifier
from aftercommit.feed import POSITION, PagedBody, Wire
from aftercommit.feed.app import FeedApp
from aftercommit.feed.app.service import service
from aftercommit.feed.strands.hub import HubSettings
from aftercommit.feed.strands.strand import Strand
from aftercommit.http.asgi import Asgi, Receive, Scope, Send
from aftercommit.http.cors import Cors
from aftercommit.http.from_memory import AnswersFromMemory, WholeAnswer
from aftercommit.server.http_server import HttpServer
from tests.feed.journal import LEVELS, Journal, journal_feed, numbered, until

pytestmark = pytest.mark.contract("E3")

LINES = "/books/b-1/lines"
# What differs between two answers to the same request: the time, and what is left of the rate limits.
_PASSING = re.compile(rb"date: [^\r]+|;r=\d+;t=\d+")
_LENGTH = re.compile(rb"content-length: (\d+)\r\n")


@dataclass
class Outermost:
    """The application as a server calls it. Notes how often memory had the answer."""

    app: Any
    from_memory: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def answer_from_memory(self, scope: Scope) -> WholeAnswer | None:
        answer: WholeAnswer | None = self.app.answer_from_memory(scope)
        self.from_memory += answer is not None
        return answer


@dataclass
class BothWays:
    """Two servers of one application: one may answer from memory, the other calls the application each time."""

    memory: HttpServer
    usual: HttpServer
    outermost: Outermost
    bearer: str
    seen: list[bytes] = field(default_factory=list)

    async def ask(self, target: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
        """The answer of both, whose bytes are the same each of four times."""
        given = (
            headers if any(each.lower().startswith("authorization") for each in headers) else (self.bearer, *headers)
        )
        wanted = [line for line in given if not line.endswith(": -")]
        request = "\r\n".join([f"{method} {target} HTTP/{version}", "Host: x", *wanted, "", ""]).encode()
        answers = [await exchange(server, request, method) for server in (self.memory, self.usual) * 4]
        assert len({_PASSING.sub(b"", each) for each in answers}) == 1, answers[:2]
        self.seen += answers
        return answers[0]

    async def is_from_memory(self, target: str, *headers: str, method: str = "GET") -> bool:
        """Whether memory answers, once everything that this request needs was loaded."""
        before = self.outermost.from_memory
        await self.ask(target, *headers, method=method)
        return self.outermost.from_memory > before


async def exchange(server: HttpServer, request: bytes, method: str = "GET", answers: int = 1) -> bytes:
    """Send bytes over a connection of their own; so many answers, as they came."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        async with asyncio.timeout(60):
            writer.write(request)
            came = b""
            for _ in range(answers):
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                has_body = length is not None and method != "HEAD"
                came += head + (await reader.readexactly(int(length[1])) if has_body and length is not None else b"")
            return came
    finally:
        writer.close()


def has_head(strand: Strand, number: int) -> bool:
    return strand.head == number


def usual_way(app: Asgi) -> Asgi:
    """The application without its memory."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)

    return call


@asynccontextmanager
async def both_ways(journal: Journal, app: FeedApp, outer: Asgi | None = None) -> AsyncIterator[BothWays]:
    outermost = Outermost(outer or app)
    memory = HttpServer(outermost, drain_seconds=1.0, on_stop=app.drain)
    usual = HttpServer(usual_way(outer or app), drain_seconds=1.0, options={"lifespan": "off"})
    async with memory, usual:
        await memory.answers()
        await usual.answers()
        yield BothWays(memory, usual, outermost, f"Authorization: Bearer {journal.token()}")


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def header_of(answer: bytes, name: str) -> str:
    found = re.search(rf"^{name}: ([^\r]*)\r$".encode(), answer, re.MULTILINE)
    assert found is not None, answer
    return found[1].decode()


def cursors_of(answer: bytes) -> list[str]:
    return [quote(each.decode(), safe="") for each in re.findall(rb'Cursor":"([^"]+)"', answer)]


@pytest.mark.parametrize(
    "hub", [HubSettings(), HubSettings(ring_bytes=6000), HubSettings(ring_bytes=1)], ids=["all", "a part", "nothing"]
)
async def test_every_request_gets_the_same_bytes_from_memory_as_the_usual_way(journal: Journal, hub: HubSettings):
    await journal.write(*numbered(30))
    await journal.write("bad", level="ERROR", author="eve")
    await journal.write("else", book="b 2/é")
    async with both_ways(journal, journal.app(cors=["https://console.example.com"], hub=hub)) as both:
        # The strand is loaded first: memory is asked first for each of the others.
        tag, newest = header_of(await both.ask(LINES), "etag"), cursors_of(await both.ask(LINES))[-1]
        page = await both.ask(f"{LINES}?limit=10&afterCursor=1970-01-01T00:00:00.000Z%23000")
        cursor, wrong_time = cursors_of(page)[-1], cursors_of(page)[-1].replace("T", "T23%3A59%3A", 1)[:-30]
        asked = {
            LINES: 200,
            f"{LINES}?limit=7": 200,
            f"{LINES}?limit=7&afterCursor={cursor}": 200,
            f"{LINES}?afterCursor={newest}": 200,
            f"{LINES}?afterCursor={newest.replace('%23', '%239')}": 410,
            f"{LINES}?afterCursor=2001-01-01T00%3A00%3A00.000Z%23010": 410,
            f"{LINES}?afterCursor={wrong_time}": 400,
            f"{LINES}?afterCursor={cursor}&minLevel=ERROR": 200,
            f"{LINES}?author=eve": 200,
            f"{LINES}?author=nobody-at-all": 200,
            f"{LINES}?minLevel=LOUD": 400,
            f"{LINES}?limit=0": 400,
            f"{LINES}?limit=5&limit=6": 400,
            f"{LINES}?colour=red": 400,
            f"{LINES}?beforeCursor={newest}&limit=3": 200,
            f"{LINES}?beforeCursor=end&limit=3": 200,
            f"{LINES}?fromTime=2020-01-01T00:00:00Z": 200,
            f"{LINES}/": 200,
            "/books/b-none/lines": 200,
            "/books/b%202%2F%C3%A9/lines": 404,
            "/books/b%202/lines": 200,
            "/books/b%00/lines": 404,
            "/nowhere": 404,
        }
        for target, status in asked.items():
            for method in ("GET", "HEAD"):
                assert status_of(await both.ask(target, method=method)) == status, target
        for method, status in (("OPTIONS", 204), ("POST", 405), ("PUT", 405)):
            assert status_of(await both.ask(LINES, method=method)) == status
        for held, status in ((tag, 304), (f'"x", {tag}', 304), ("*", 304), ('W/"other"', 200), ("", 200)):
            assert status_of(await both.ask(LINES, f"If-None-Match: {held}")) == status
        for header in (
            "Accept-Encoding: gzip", "Origin: https://console.example.com", "Origin: https://evil.example.com",
            "Prefer: wait=0", "Content-Length: 0", "X-User-Id: 7", "Expect: 100-continue", "Cookie: a=b",
            "Accept: text/html", "Range: bytes=0-10", "If-None-Match: x\r\nIf-None-Match: " + tag,
        ):  # fmt: skip
            assert status_of(await both.ask(LINES, header)) in (100, 200, 304), header
        assert status_of(await both.ask(LINES, version="1.0")) == 200
        assert both.outermost.from_memory > 50


async def test_nobody_without_the_right_token_is_answered_from_memory(journal: Journal):
    await journal.write(*numbered(3))
    async with both_ways(journal, journal.app()) as both:
        token = journal.token()
        assert await both.is_from_memory(LINES, f"Authorization: Bearer {token}")
        assert await both.is_from_memory(LINES, f"Authorization: bearer {token}")
        other_book = journal.token("eve", ["book:b-2:read"])
        refused = {
            "Authorization: -": 401,
            "Authorization: Bearer": 401,
            "Authorization: Bearer nonsense": 401,
            f"Authorization: Bearer {token[:-6]}AAAAAA": 401,
            f"Authorization: Bearer {token}x": 401,
            f"Authorization: Basic {token}": 401,
            f"Authorization: Bearer {other_book}": 403,
            f"Authorization: Bearer {token}\r\nAuthorization: Bearer {other_book}": 401,
        }
        for header, status in refused.items():
            before = both.outermost.from_memory
            assert status_of(await both.ask(LINES, header)) == status, header
            assert both.outermost.from_memory == before, header


async def test_a_token_that_expires_or_is_revoked_is_refused_at_once(journal: Journal):
    await journal.write(*numbered(3))
    tokens = TokenVerifier(journal.keys, leeway_seconds=0)
    access = BearerAccess(tokens, journal.database, journal.outbox, poll_seconds=0.05)
    async with both_ways(journal, journal.app(access)) as both:
        short = f"Authorization: Bearer {journal.token('ada', seconds=3)}"
        assert await both.is_from_memory(LINES)
        assert await both.is_from_memory(LINES, short)
        with psycopg.connect(journal.dsn, autocommit=True) as connection:
            revoke(connection, journal.outbox.shape, "token", tokens.verify(both.bearer.split()[-1]).token_id or "")

        async def is_refused(header: str) -> bool:
            before = both.outermost.from_memory
            request = f"GET {LINES} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode()
            is_refused = status_of(await exchange(both.memory, request)) == 401
            assert not is_refused or both.outermost.from_memory == before
            return is_refused

        await until(lambda: is_refused(both.bearer))
        await until(lambda: is_refused(short))
        assert status_of(await both.ask(LINES)) == status_of(await both.ask(LINES, short)) == 401


async def test_at_one_address_memory_gives_everybody_their_own(journal: Journal):
    for user in ("ada", "bob"):
        await journal.write(*(f"{user} {number}" for number in range(5)), book=user)
    feed = journal_feed(
        journal.outbox, cursor=POSITION, permission=None, wire=Wire(body=PagedBody("lines"), event_name="line")
    )
    bearers = {user: f"Authorization: Bearer {journal.token(user)}" for user in ("ada", "bob")}
    async with both_ways(journal, journal.app(feed=feed, path="/mine")) as both:
        tags = set()
        for _ in range(3):
            for user, header in bearers.items():
                answer = await both.ask("/mine?limit=3", header)
                assert answer.count(f'"text":"{user} '.encode()) == 3, (user, answer)
                tags.add(header_of(answer, "etag"))
                for tag in list(tags):
                    own = tag == header_of(answer, "etag")
                    assert status_of(await both.ask("/mine?limit=3", header, f"If-None-Match: {tag}")) == (
                        304 if own else 200
                    )
        assert len(tags) == 2
        assert both.outermost.from_memory > 50


async def test_memory_counts_each_request_once_and_refuses_none_that_the_limit_allows(journal: Journal):
    await journal.write(*numbered(3))
    feed = journal_feed(journal.outbox, rates=(Rate("user", 1000, 60), Rate("resource", 2000, 60)))
    async with both_ways(journal, journal.app(feed=feed)) as both:
        for _ in range(6):
            await both.ask(LINES)
        left = [re.findall(r"r=(\d+)", header_of(answer, "ratelimit")) for answer in both.seen]
        assert left == [[str(999 - number), str(1999 - number)] for number in range(len(left))]
        assert both.outermost.from_memory > 10


async def test_a_reader_over_the_limit_is_refused_as_the_usual_way_refuses(journal: Journal):
    await journal.write(*numbered(3))
    feed = journal_feed(journal.outbox, rates=(Rate("resource", 1000, 60), Rate("user", 12, 60)))
    app = journal.app(feed=feed)
    async with both_ways(journal, app) as both:
        request = f"GET {LINES} HTTP/1.1\r\nHost: x\r\n{both.bearer}\r\n\r\n".encode()
        statuses = [status_of(await exchange(both.memory, request)) for _ in range(15)]
        assert statuses == [200] * 12 + [429] * 3
        # What this process let through is known to all, so it need not ask.
        await until(lambda: not any(count.pending for count in app.limiter._counts.values()))
        assert status_of(await both.ask(LINES)) == 429
        left = re.findall(r"r=(\d+)", header_of(both.seen[-1], "ratelimit"))
        assert left == ["988", "0"], "a refused request is counted nowhere"


async def test_new_events_dropped_strands_and_short_rings_are_seen_at_once(journal: Journal):
    await journal.write(*numbered(20))
    app = journal.app(hub=HubSettings(preload_entries=5))
    async with both_ways(journal, app) as both:
        assert await both.is_from_memory(f"{LINES}?limit=5")
        from_the_beginning = f"{LINES}?limit=5&afterCursor=1970-01-01T00:00:00.000Z%23000"
        assert b'"text":"line 1"' in await both.ask(from_the_beginning), "the ring does not reach back that far"
        feed = app.feeds["/books/{book_id}/lines"]
        for number, level in enumerate(LEVELS * 3, 21):
            await journal.write(f"line {number}", level=level)
            await until(partial(has_head, await app.hub.strand(feed, "b-1"), number))
            assert f'"text":"line {number}"'.encode() in await both.ask(f"{LINES}?limit=5")
        app.hub._kept.forget(await app.hub.strand(feed, "b-1"))
        assert b'"text":"line 32"' in await both.ask(f"{LINES}?limit=5")
        assert await both.is_from_memory(f"{LINES}?limit=5")


async def test_requests_in_one_piece_are_answered_in_order(journal: Journal):
    await journal.write(*numbered(9))
    async with both_ways(journal, journal.app()) as both:
        await both.ask(LINES)
        targets = [f"{LINES}?limit={number % 9 + 1}" for number in range(200)]
        targets[3] = targets[50] = "/nowhere"
        requests = "".join(f"GET {target} HTTP/1.1\r\nHost: x\r\n{both.bearer}\r\n\r\n" for target in targets).encode()
        came = [await exchange(server, requests, answers=len(targets)) for server in (both.memory, both.usual)]
        assert len({_PASSING.sub(b"", each) for each in came}) == 1
        returned = [int(each) for each in re.findall(rb'"returned":(\d+)', came[0])]
        assert returned == [number % 9 + 1 for number in range(200) if number not in (3, 50)]


@pytest.mark.parametrize("cors", [None, Cors(["https://console.example.com"])])
async def test_a_whole_service_answers_from_memory_unless_a_route_of_its_own_comes_first(
    journal: Journal, cors: Cors | None
):
    await journal.write(*numbered(3))
    app = journal.app()
    outer = service(app, own_routes(), cors=cors)
    assert isinstance(outer, AnswersFromMemory)
    async with both_ways(journal, app, outer) as both:
        assert await both.is_from_memory(LINES)
        for header in ("Origin: https://console.example.com", "Accept: text/html", "Content-Length: 0"):
            assert status_of(await both.ask(LINES, header)) == 200
        assert status_of(await both.ask("/books/own/lines")) == 418
        assert status_of(await both.ask(f"{LINES}/")) == 308
        assert status_of(await both.ask("/healthz")) == 200


def own_routes() -> Sequence[Any]:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def teapot(request: Request) -> Response:
        return Response(status_code=418, headers={"content-length": "0"})

    return [Route("/books/own/lines", teapot)]
