"""E2: after a restore, a promotion or a recovery nobody skips an event and nobody is given an old one for a new one.

Real servers are backed up, recovered and promoted under readers of every kind, which go on all the while: by bare
integers, by long-polling, by streams, by both clients, by a consumer, and (in another file) by the bot.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
import pytest
from click.testing import CliRunner

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier
from aftercommit.cli import cli
from aftercommit.client import Pace, follow
from aftercommit.consumer import LogWorker, WorkerSettings
from aftercommit.feed import BareArray, Cursor, Everything, Feed, Limits, LogEvent, PagedBody, Wire
from aftercommit.feed.app import FeedApp
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transports import LogTransport
from aftercommit.schema import migrate
from tests.feed.journal import PATH, TIMES, Journal, LineWritten, Reading, journal_feed, until
from tests.support.restoring import Restorable, restorable
from tools import web

pytestmark = [pytest.mark.contract("E2"), pytest.mark.timeout(600)]

QUICK = Pace(
    backoff=0.05, poll=0.05, idle_longest=0.1, limited_longest=0.3, bye=0.05, bye_shortest=0.01, bye_longest=0.2
)
BEGINNING = "1970-01-01T00:00:00.000Z#000"
Numbers = list[int]


def number_in(text: str) -> int:
    return int(text.split()[-1])


def event_item(event: LogEvent[LineWritten]) -> Mapping[str, Any]:
    return {"event_id": event.position, "text": event.payload.text}


@dataclass
class World:
    """A journal with readers of every kind. `seen` has, for each, the numbers of the lines in the order they came."""

    journal: Journal
    database: Database
    seen: dict[str, Numbers] = field(default_factory=dict)
    gaps: list[Any] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    async def write(self, *numbers: int) -> None:
        """Lines with these numbers, once everybody can have seen them."""

        def publish() -> None:
            with psycopg.connect(self.database.dsn) as connection:
                for number in numbers:
                    self.journal.outbox.publish(connection, LineWritten("b-1", f"line {number}"))

        await asyncio.to_thread(publish)

    async def have_seen(self, expected: Numbers) -> None:
        """Until every reader has seen exactly these, in this order."""

        def look() -> bool:
            return all(numbers == expected for numbers in self.seen.values())

        with suppress(TimeoutError):
            await until(look, timeout=120)
        assert self.seen == dict.fromkeys(self.seen, expected), self.refused[-5:]

    async def handled(self, expected: Numbers) -> None:
        """Until the consumer has handled exactly these."""
        query = "select number from handled order by number"
        with suppress(TimeoutError):
            await until(lambda: [row[0] for row in self.rows(query)] == expected, timeout=120)
        assert [row[0] for row in self.rows(query)] == expected


@pytest.fixture(scope="module")
def server() -> Iterator[Restorable]:
    with restorable() as running:
        yield running


@pytest.fixture(scope="module")
def typescript() -> str:
    """The TypeScript client as a program for Node."""
    return str(web.build_tests() / "client" / "test" / "program.mjs")


@asynccontextmanager
async def world(server: Restorable, dsn: str | None = None, typescript: str | None = None) -> AsyncIterator[World]:
    """The journal on a fresh database of a server, its relay, consumer, feeds, and all who read them."""
    server.rows("drop database if exists journal (force)")
    server.rows("create database journal")
    dsn = dsn or server.dsn("journal")
    journal = Journal(dsn)
    journal.feed = journal_feed(
        journal.outbox,
        name="numbered",
        wire=Wire(cursor="afterCursor", limit="limit", body=PagedBody("lines"), event_name="log"),
    )
    everything = Feed(
        "everything",
        journal.outbox,
        select=Everything(),
        item=event_item,
        limits=Limits(default=50, least=1, most=1000),
        wire=Wire(cursor="after_id", body=BareArray(), event_name="event"),
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, journal.outbox.shape)
        connection.execute("create table handled (number integer primary key)")
    found = World(journal, Database(dsn))
    consumer = journal.outbox.consumer("counting")

    @consumer.on(LineWritten)
    async def count(event, connection) -> None:
        await connection.execute("insert into handled values (%s)", [number_in(event.payload.text)])

    access = BearerAccess(TokenVerifier(journal.keys))
    app = FeedApp(Database(dsn), {PATH: journal.feed, "/events": everything}, access, times=TIMES)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            Relay(journal.outbox, Database(dsn), LogTransport(), settings=RelaySettings(lease_seconds=2.0))
        )
        await stack.enter_async_context(
            LogWorker(journal.outbox, consumer, Database(dsn), settings=WorkerSettings(lease_seconds=2.0))
        )
        reading = await stack.enter_async_context(journal.served(app))
        readers = await stack.enter_async_context(asyncio.TaskGroup())
        for reader in _readers(found, reading, typescript):
            readers.create_task(reader)
        stack.callback(lambda: [task.cancel() for task in list(readers._tasks)])
        yield found


def _readers(found: World, reading: Reading, typescript: str | None) -> list[Coroutine[Any, Any, None]]:
    """Everybody who reads, each from the beginning and until cancelled."""

    def sink(name: str) -> Callable[[int], None]:
        numbers = found.seen[name] = []
        return numbers.append

    lines = f"{reading.server.url}/books/b-1/lines"
    token = found.journal.token()
    readers: list[Any] = [
        by_integers(found, reading, sink("bare integers"), {}),
        by_integers(found, reading, sink("long poll"), {"Prefer": "wait=5"}),
        by_stream(found, reading, sink("stream of integers")),
        by_client(found, lines, token, sink("client on a stream"), stream=True),
        by_client(found, lines, token, sink("client that polls"), stream=False),
    ]
    if typescript is not None:
        readers.append(by_node(found, typescript, lines, token, sink("TypeScript on a stream"), "yes"))
        readers.append(by_node(found, typescript, lines, token, sink("TypeScript that polls"), "no"))
    return readers


async def by_integers(found: World, reading: Reading, see: Callable[[int], None], headers: dict[str, str]) -> None:
    """A foreign client, which keeps an integer and asks again whatever it is told."""
    after = 0
    while True:
        answer = await reading.client.get("/events", params={"after_id": after}, headers=headers)
        if answer.status_code == 200:
            for event in answer.json():
                see(number_in(event["text"]))
                after = event["event_id"]
        else:
            found.refused.append(f"{answer.status_code} at {after}: {answer.text}")
            assert answer.status_code in (410, 503), answer.text
            if answer.status_code == 410:
                after = int(answer.json()["details"]["restart"])
        await asyncio.sleep(0.02)


async def by_stream(found: World, reading: Reading, see: Callable[[int], None]) -> None:
    """What a browser does: comes back with the id that it was given last."""
    last = "0"
    while True:
        with suppress(httpx.HTTPError):
            async with reading.client.stream("GET", "/events/stream", headers={"Last-Event-ID": last}) as answer:
                named = ""
                async for text in answer.aiter_lines():
                    if text.startswith("id: "):
                        last = text.removeprefix("id: ")
                    elif text.startswith("event: "):
                        named = text.removeprefix("event: ")
                    elif text.startswith("data: ") and named == "event":
                        see(number_in(json.loads(text.removeprefix("data: "))["text"]))
        await asyncio.sleep(0.05)


async def by_client(found: World, url: str, token: str, see: Callable[[int], None], *, stream: bool) -> None:
    options: dict[str, Any] = {"token": token, "pace": QUICK, "start": BEGINNING, "gapless": True}
    async with follow(url, **options, stream=stream, on_gap=found.gaps.append) as follower:
        async for event in follower:
            see(number_in(event.data["text"]))


async def by_node(found: World, program: str, url: str, token: str, see: Callable[[int], None], streams: str) -> None:
    """Tells numbers of the stream: of the first, it is the line that counts."""
    told = {"FEED": url, "TOKEN": token, "AFTER": BEGINNING, "STREAMS": streams}
    process = await asyncio.create_subprocess_exec(
        *web.node(), program, env={**os.environ, **told}, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async for said in process.stdout:
            told_now = json.loads(said)
            if "gap" in told_now:
                found.gaps.append(told_now["gap"])
            if "text" in told_now:
                see(number_in(told_now["text"]))
    finally:
        process.terminate()
        await process.wait()


def numbers(*ranges: range) -> Numbers:
    return [number for each in ranges for number in each]


@pytest.mark.needs("node")
async def test_a_recovery_to_a_point_in_time_under_readers_of_every_kind(server: Restorable, typescript: str) -> None:
    async with world(server, typescript=typescript) as found:
        await found.write(*range(1, 11))
        await found.have_seen(numbers(range(1, 11)))
        backup = await asyncio.to_thread(server.backup)
        await found.write(*range(11, 21))
        await found.have_seen(numbers(range(1, 21)))
        point = await asyncio.to_thread(server.restore_point)
        await found.write(*range(21, 51))
        await found.have_seen(numbers(range(1, 51)))

        await asyncio.to_thread(server.recover, backup, point)
        await found.write(*range(100, 145))

        # What was lost is not taken back, what is new comes once, and nothing is given twice.
        await found.have_seen(numbers(range(1, 51), range(100, 145)))
        await found.handled(numbers(range(1, 21), range(100, 145)))
        assert found.gaps == []
        assert not [said for said in found.refused if said.startswith("410")]


@pytest.mark.thorough
async def test_a_reader_that_slept_through_the_restore_goes_on_with_the_first_new_event(server: Restorable) -> None:
    async with world(server) as found:
        await found.write(*range(1, 21))
        await found.have_seen(numbers(range(1, 21)))
        backup, point = await asyncio.to_thread(server.backup), await asyncio.to_thread(server.restore_point)
        await found.write(*range(21, 51))
        await found.have_seen(numbers(range(1, 51)))
        await asyncio.to_thread(server.recover, backup, point)
        await found.write(*range(100, 145))
        await found.have_seen(numbers(range(1, 51), range(100, 145)))

        async with found.journal.served() as reading:
            feed = reading.app.hub.feeds[0]
            strand = await reading.app.hub.strand(feed, "b-1")
            assert strand.total == 65
        base = found.rows("select base from journal.life order by number desc limit 1")[0][0]
        assert found.rows(f"select count(*) from journal.log where position > {base}") == [(45,)]


@pytest.mark.thorough
async def test_a_promotion_under_readers(server: Restorable) -> None:
    """The primary is lost with what the standby has not heard of."""
    with server.standby() as standby:
        host, port = standby.address
        both = (
            f"postgresql://postgres@/journal?host={server.data},{host}&port=5432,{port}&target_session_attrs=read-write"
        )
        async with world(server, both) as found:
            await found.write(*range(1, 21))
            await found.have_seen(numbers(range(1, 21)))
            await found.handled(numbers(range(1, 21)))
            await asyncio.to_thread(lambda: standby.caught_up(server.rows("select pg_current_wal_lsn()")[0][0]))
            await asyncio.to_thread(standby.stop_receiving)
            await found.write(*range(21, 31))
            await found.have_seen(numbers(range(1, 31)))

            await asyncio.to_thread(server.server.stop, "immediate")
            await asyncio.to_thread(standby.promote)
            await found.write(*range(100, 120))

            await found.have_seen(numbers(range(1, 31), range(100, 120)))
            await found.handled(numbers(range(1, 21), range(100, 120)))
            assert found.gaps == []
            assert "promoted" in found.rows("select reason from journal.life order by number desc limit 1")[0][0]
    await asyncio.to_thread(server.server.start)


@pytest.mark.thorough
async def test_a_copy_of_the_data_folder_under_running_processes(server: Restorable) -> None:
    """It looks no different from the original: the relay, which has seen more, knows better."""
    async with world(server) as found:
        await found.write(*range(1, 21))
        await found.have_seen(numbers(range(1, 21)))
        await found.handled(numbers(range(1, 21)))
        copy = await asyncio.to_thread(server.copy)
        await found.write(*range(21, 51))
        await found.have_seen(numbers(range(1, 51)))

        await asyncio.to_thread(server.put_back, copy)
        await found.write(*range(100, 120))

        await found.have_seen(numbers(range(1, 51), range(100, 120)))
        await found.handled(numbers(range(1, 21), range(100, 120)))


@pytest.mark.thorough
async def test_a_copy_that_an_operator_tells_of(server: Restorable) -> None:
    """Every process was down, and nobody has seen more."""
    async with world(server) as found:
        await found.write(*range(1, 11))
        await found.have_seen(numbers(range(1, 11)))
    copy = await asyncio.to_thread(server.copy)
    relay = Relay(found.journal.outbox, found.database, LogTransport())
    async with relay:
        await found.write(*range(11, 31))
        await until(lambda: found.rows("select count(*) from journal.log") == [(30,)])
    await asyncio.to_thread(server.put_back, copy)

    arguments = ["restored", "--yes", "--dsn", found.database.dsn, "--schema", "journal", "--json"]
    told = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert told.exit_code == 0, told.output
    base = json.loads(told.stdout)["base"]
    async with relay, found.journal.served() as reading:
        await found.write(*range(100, 110))
        await until(lambda: found.rows("select count(*) from journal.log") == [(20,)])
        # A cursor by its number alone, of an event that is gone.
        page = await reading.app.hub.page(await reading.app.hub.strand(found.journal.feed, "b-1"), Cursor(30), 100)
        assert [entry.number for entry in page.entries] == list(range(base + 1, base + 11))


@pytest.mark.thorough
async def test_the_same_backup_restored_twice(server: Restorable) -> None:
    async with world(server) as found:
        await found.write(*range(1, 6))
        await found.have_seen(numbers(range(1, 6)))
        await found.handled(numbers(range(1, 6)))
        backup, point = await asyncio.to_thread(server.backup), await asyncio.to_thread(server.restore_point)
        await found.write(*range(6, 11))
        await found.have_seen(numbers(range(1, 11)))
        await asyncio.to_thread(server.recover, backup, point)
        await found.write(*range(20, 31))
        await found.have_seen(numbers(range(1, 11), range(20, 31)))
        await asyncio.to_thread(server.recover, backup, point)
        await found.write(*range(40, 46))

        await found.have_seen(numbers(range(1, 11), range(20, 31), range(40, 46)))
        await found.handled(numbers(range(1, 6), range(40, 46)))
        assert found.gaps == []
