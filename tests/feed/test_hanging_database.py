"""A database that hangs without being gone: memory is served as ever, and whoever needs the database hears so.

Stopped is the whole server, one of this module's own; nothing tells those who are connected to it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier
from aftercommit.feed import Feed
from aftercommit.feed.app import FeedApp
from aftercommit.feed.app.service import service
from aftercommit.postgres.database import Database
from aftercommit.testing.fault_proxy import FaultProxy
from aftercommit.testing.postgres import PostgresServerForTests
from tests.feed.journal import Journal, Reading, numbered, prepare_journal, until
from tests.support.hanging import LIMIT, frozen

UNREAD = "Cannot read the log at the moment, so there may be events that are not shown: try again"
SILENT = f"The database did not answer within {LIMIT:g} seconds: try again"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServerForTests]:
    with PostgresServerForTests() as server:
        yield server


@pytest.fixture
async def journal(server: PostgresServerForTests) -> AsyncIterator[Journal]:
    """One on the server that is going to hang."""
    journal = Journal(server.clone(server.template("journal", prepare=prepare_journal)))
    async with journal.relay:
        yield journal


def impatient(journal: Journal, dsn: str | None = None, limit: float = LIMIT, **options: Any) -> FeedApp:
    """An application whose readers do not wait for long, and whose tokens can be revoked."""
    database = Database(dsn or journal.dsn, answer_timeout=limit)
    access = BearerAccess(TokenVerifier(journal.keys), database, journal.outbox)
    return journal.app(access, database=database, **options)


def assert_silent(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
    if answer.request.method != "HEAD":
        assert answer.json() == {"error": "unavailable", "message": SILENT, "retry_after": 5}


def assert_unread(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2"), answer.text
    if answer.request.method != "HEAD":
        assert answer.json()["message"] == UNREAD


async def no_news(reading: Reading, newest: httpx.Response) -> Sequence[httpx.Response]:
    """The answers to all who have everything: by their tag or their cursor, waiting or not."""
    held = {"If-None-Match": newest.headers["etag"]}
    place = newest.json()["pagination"]["nextCursor"]
    waiting = {"Prefer": "wait=1"}
    return await asyncio.gather(
        reading.poll(headers=held, limit=2),
        reading.poll(headers={**held, **waiting}, limit=2),
        reading.poll(limit=2, afterCursor=place),
        reading.poll(headers=waiting, limit=2, afterCursor=place),
        reading.client.head("/books/b-1/lines", headers=held, params={"limit": 2}),
    )


async def becomes(client: httpx.AsyncClient, status: int) -> httpx.Response:
    """What `/readyz` says once it has this status."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.get("/readyz")
            if answer.status_code == status:
                return answer
            await asyncio.sleep(0.02)


@pytest.mark.thorough
async def test_every_request_is_answered_while_the_database_hangs(
    server: PostgresServerForTests, journal: Journal, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, logger="aftercommit")
    # More than a strand is loaded with.
    await journal.write(*numbered(110))
    await journal.write("elsewhere", book="b-2")
    app = impatient(journal)
    async with journal.served(app, service(app)) as reading:
        first = await reading.poll(limit=2)
        old = (await reading.poll(limit=2, fromTime="2001-01-01T00:00:00Z")).json()["pagination"]["nextCursor"]
        async with reading.stream(limit=2) as stream:
            await stream.texts(2)
            assert (await becomes(reading.client, 200)).json() == {"status": "ready"}
            with frozen(server):
                # From memory, as ever.
                assert await reading.texts(limit=2) == [line["text"] for line in first.json()["lines"]]
                unchanged = await reading.poll(headers={"If-None-Match": first.headers["etag"]}, limit=2)
                assert unchanged.status_code == 304
                # What lies before the ring, a strand that nobody has asked for, and a stream of one.
                for refused in await asyncio.gather(
                    reading.poll(limit=1, afterCursor=old),
                    reading.poll(limit=1, beforeCursor=old),
                    reading.poll(limit=1, fromTime="2001-01-01T00:00:00Z"),
                    reading.poll(book="b-2"),
                    reading.client.get("/books/b-3/lines/stream"),
                    reading.client.head("/books/b-4/lines"),
                ):
                    assert_silent(refused)
                away = (await becomes(reading.client, 503)).json()
                assert away["message"] == "Cannot read the log: the database does not answer"
                assert away["details"]["outbox"] == "journal"
                assert away["details"]["since"].endswith("Z")
                assert (await reading.client.get("/healthz")).status_code == 200
                assert "feed_following 0\n" in (await reading.client.get("/metrics")).text
                # What is known is still served, but nobody is told that there is nothing new.
                assert await reading.texts(limit=2) == [line["text"] for line in first.json()["lines"]]
                for unknown in await no_news(reading, first):
                    assert_unread(unknown)
            # It is well again, and nobody has to do anything.
            await becomes(reading.client, 200)
            assert await reading.texts(book="b-2") == ["elsewhere"]
            await journal.write("afterwards")
            assert await stream.texts(1) == ["afterwards"]
    said = [record for record in caplog.records if record.message == "database_is_unavailable"]
    services = [getattr(record, "service", None) for record in said]
    assert services.count("tailer journal") == 1, services
    assert len(services) == len(set(services)), services


@pytest.mark.thorough
async def test_a_wait_that_a_hanging_database_outlasts_does_not_end_with_nothing_new(
    server: PostgresServerForTests, journal: Journal
):
    await journal.write(*numbered(2))
    app = impatient(journal)
    async with journal.served(app, service(app)) as reading:
        first = await reading.poll(limit=2)
        place = first.json()["pagination"]["nextCursor"]
        held = {"If-None-Match": first.headers["etag"]}
        await becomes(reading.client, 200)
        wait = {"Prefer": "wait=8"}
        with frozen(server):
            for ended in await asyncio.gather(
                reading.poll(headers={**held, **wait}, limit=2),
                reading.poll(headers=wait, limit=2, afterCursor=place),
            ):
                assert_unread(ended)
        await becomes(reading.client, 200)
        assert {answer.status_code for answer in await no_news(reading, first)} == {200, 304}


@pytest.mark.thorough
async def test_whoever_cannot_be_checked_is_not_let_in_and_who_was_let_in_goes_on(
    server: PostgresServerForTests, journal: Journal
):
    """A process that begins while the database hangs has not read what was revoked."""
    await journal.write("one")
    app, late = impatient(journal), impatient(journal)
    async with journal.served(app) as reading, reading.stream() as stream:
        await stream.texts(1)
        with frozen(server):
            async with journal.served(late) as unread:
                refused = await unread.poll()
                assert refused.status_code == 503
                assert "retry-after" in refused.headers
            assert (await reading.poll()).status_code == 200
        await journal.write("two")
        assert await stream.texts(1) == ["two"]


@pytest.mark.thorough
async def test_whether_something_exists_is_not_waited_for_without_end(journal: Journal):
    asked = asyncio.Event()

    async def exists(feed: Feed, key: str) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    async with journal.served(impatient(journal, exists=exists)) as reading:
        assert_silent(await reading.poll())
        assert asked.is_set()


@pytest.mark.thorough
async def test_the_end_of_a_server_does_not_wait_for_the_database(server: PostgresServerForTests, journal: Journal):
    app = impatient(journal)
    async with journal.served(app, service(app)) as reading:
        await until(lambda: app.hub.is_following)
        asking = asyncio.create_task(reading.client.get("/books/b-9/lines"))
        with frozen(server):
            assert_silent(await asking)
            # While services are asking, or connecting, or about to.
            await reading.server.stop()


@pytest.mark.thorough
async def test_who_waits_when_the_server_ends_is_answered(server: PostgresServerForTests, journal: Journal):
    """Although the limit is longer than a server may take to end."""
    app = impatient(journal, limit=600.0)
    outer = service(app, [Route("/change", changes(app), methods=["POST"])])
    async with journal.served(app, outer) as reading:
        await becomes(reading.client, 200)
        with frozen(server):
            asking = [
                asyncio.create_task(reading.client.get("/books/b-9/lines")),
                asyncio.create_task(reading.client.post("/change")),
            ]
            await until(lambda: app.hub.questions == 2)
            await reading.server.stop()
            read, changed = await asyncio.gather(*asking)
    assert [read.status_code, changed.status_code] == [503, 503]
    assert read.json()["message"] == "The server is shutting down: try again"
    assert "details" not in read.json()
    assert changed.json()["details"] == {"outcome": "unknown"}


def changes(app: FeedApp) -> Callable[[Request], Awaitable[Response]]:
    """A route that waits for the database."""

    async def change(request: Request) -> Response:
        await app.hub.strand(next(iter(app.feeds.values())), "b-8")
        return Response()

    return change


@pytest.mark.thorough
async def test_what_a_network_has_swallowed_reaches_no_other_reader(journal: Journal):
    await journal.write("mine", book="b-1")
    await journal.write("secret", book="b-2")
    async with FaultProxy(journal.dsn) as proxy:
        app = impatient(journal, proxy.dsn)
        async with journal.served(app, service(app)) as reading:
            await becomes(reading.client, 200)
            proxy.faults.black_hole = True
            # The network swallows the tailer's connection too. If that is noticed first, readers are told so instead.
            refused = await reading.poll(book="b-2")
            assert refused.status_code == 503, refused.text
            assert "secret" not in refused.text
            await becomes(reading.client, 503)
            proxy.heal()
            await becomes(reading.client, 200)
            assert await reading.texts(book="b-1") == ["mine"]
            assert await reading.texts(book="b-2") == ["secret"]
