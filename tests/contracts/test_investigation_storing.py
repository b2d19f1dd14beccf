"""Storing logs, transaction against transaction: what one waits for, and what is left when one of them is undone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from aftercommit import Database
from aftercommit.testing.postgres import PostgresServerForTests
from systems.investigations.events import outbox
from systems.investigations.sample.sample_script import CASES, Story
from systems.investigations.sample.traffic import Traffic
from systems.investigations.service import ingest
from systems.investigations.service.cases import close_case, open_case
from systems.investigations.service.errors import Closed
from systems.investigations.service.produced_logs import ProducedLog
from tests.support.investigations import prepare

pytestmark = pytest.mark.contract("L12")

Connection = psycopg.AsyncConnection[Any]


@pytest.fixture
def dsn(postgres_server: PostgresServerForTests) -> Iterator[str]:
    found = postgres_server.clone(postgres_server.template("investigations", prepare))
    yield found
    postgres_server.drop(found)


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[Connection]:
    async with await psycopg.AsyncConnection.connect(dsn) as found:
        yield found


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[Connection]:
    async with await psycopg.AsyncConnection.connect(dsn) as found:
        yield found


def log(**fields: Any) -> ProducedLog:
    return ProducedLog(**{"source": "backend", "service": "shop", "level": "INFO", "message": "hello", **fields})


async def waits_for_a_lock(dsn: str, sessions: int = 1) -> None:
    """Until so many sessions of this database wait for others."""
    query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(dsn, autocommit=True) as eyes:
        while (await (await eyes.execute(query)).fetchone() or (0,))[0] < sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def counts(connection: Connection) -> tuple[int, int]:
    """Names that are taken, and lines that were published."""
    query = """
        select (select count(*) from investigations.stored_log),
               (select count(*) from investigation_events.outbox where event_type = 'log.recorded')
    """
    row = await (await connection.execute(query)).fetchone()
    await connection.rollback()
    assert row is not None
    return row[0], row[1]


async def test_a_closing_waits_for_the_batch_under_way_and_the_next_batch_for_the_closing(
    dsn: str, connection: Connection, other: Connection
) -> None:
    case = await open_case(connection, "case", "ada")
    async with connection.transaction():
        await ingest.store(connection, case.investigation_id, [log()])
        closing = asyncio.create_task(close_case(other, case.investigation_id, "ada"))
        await waits_for_a_lock(dsn)
        assert not closing.done()
    assert (await closing).status == "closed"
    with pytest.raises(Closed, match="accepts no more logs"):
        await ingest.store(connection, case.investigation_id, [log()])
    assert await counts(connection) == (1, 1)


async def test_a_request_whose_answer_was_lost_can_be_sent_again_after_the_closing(connection: Connection) -> None:
    case, lines = await open_case(connection, "case", "ada"), [log(event_id=uuid4()) for _ in range(3)]
    await ingest.store(connection, case.investigation_id, lines)
    await close_case(connection, case.investigation_id, "ada")
    again = await ingest.store(connection, case.investigation_id, [*lines, lines[0]])
    assert ([each.status for each in again.results], again.stored, again.duplicates) == (["duplicate"] * 4, 0, 4)
    for late in ([log(event_id=uuid4())], [log()], [*lines, log(event_id=uuid4())]):
        with pytest.raises(Closed, match="accepts no more logs"):
            await ingest.store(connection, case.investigation_id, late)
    elsewhere = await open_case(connection, "another", "ada")
    await close_case(connection, elsewhere.investigation_id, "ada")
    with pytest.raises(Closed):
        await ingest.store(connection, elsewhere.investigation_id, lines)
    assert await counts(connection) == (3, 3)


async def test_a_request_that_is_sent_again_while_the_closing_is_under_way_is_known_by_its_lines(
    dsn: str, connection: Connection, other: Connection
) -> None:
    case, lines = await open_case(connection, "case", "ada"), [log(event_id=uuid4()) for _ in range(3)]
    async with connection.transaction():
        await ingest.store(connection, case.investigation_id, lines)
        await connection.execute("update investigations.investigation set title = title")
        again = asyncio.create_task(ingest.store(other, case.investigation_id, lines))
        # It looked at everything before these lines were committed, and goes on when the row is free.
        await waits_for_a_lock(dsn)
        await close_case(connection, case.investigation_id, "ada")
    assert {each.status for each in (await again).results} == {"duplicate"}
    assert await counts(connection) == (3, 3)


async def test_the_clock_that_a_producer_has_put_into_its_context_is_not_overwritten(connection: Connection) -> None:
    case, moment = await open_case(connection, "case", "ada"), "2025-11-12T10:30:05.123Z"
    both = log(ts=moment, context={"client_ts": "a quarter past ten", "more": 1})
    await ingest.store(connection, case.investigation_id, [both, log(ts=moment, context={"more": 2}), log()])
    query = """
        select payload -> 'context' from investigation_events.outbox where event_type = 'log.recorded' order by seq
    """
    contexts = [row[0] for row in await (await connection.execute(query)).fetchall()]
    assert contexts == [
        {"client_ts": "a quarter past ten", "more": 1},
        {"client_ts": moment, "more": 2},
        None,
    ]


async def test_batches_into_one_investigation_do_not_wait_for_each_other(
    connection: Connection, other: Connection
) -> None:
    case = await open_case(connection, "case", "ada")
    async with connection.transaction():
        await ingest.store(connection, case.investigation_id, [log()])
        async with asyncio.timeout(60):
            await ingest.store(other, case.investigation_id, [log()])
    assert await counts(connection) == (2, 2)


@pytest.mark.parametrize("first_commits", [True, False])
async def test_a_repeated_line_waits_for_the_first_one_and_takes_its_place_if_that_is_undone(
    dsn: str, connection: Connection, other: Connection, first_commits: bool
) -> None:
    case = await open_case(connection, "case", "ada")
    line = log(event_id=uuid4())
    repeated: asyncio.Task[ingest.Stored] | None = None
    try:
        async with connection.transaction():
            await ingest.store(connection, case.investigation_id, [line])
            repeated = asyncio.create_task(ingest.store(other, case.investigation_id, [line]))
            await waits_for_a_lock(dsn)
            if not first_commits:
                raise KeyError("undone")
    except KeyError:
        assert not first_commits
    assert repeated is not None
    assert (await repeated).results[0].status == ("duplicate" if first_commits else "stored")
    assert await counts(connection) == (1, 1)


async def test_batches_with_the_same_lines_in_other_orders_never_deadlock(dsn: str, connection: Connection) -> None:
    case = await open_case(connection, "case", "ada")
    low, middle, high = (log(event_id=event_id) for event_id in sorted(uuid4() for _ in range(3)))

    async def send(order: list[ProducedLog]) -> int:
        async with await psycopg.AsyncConnection.connect(dsn) as own:
            return (await ingest.store(own, case.investigation_id, order)).stored

    async with connection.transaction():
        # Both come as far as the line in the middle, and each would then hold what the other still needs.
        await ingest.store(connection, case.investigation_id, [middle])
        batches = [asyncio.create_task(send(order)) for order in ([low, middle, high], [high, middle, low])]
        await waits_for_a_lock(dsn, len(batches))
    assert sum(await asyncio.gather(*batches)) == 2
    assert await counts(connection) == (3, 3)


async def test_a_line_that_the_outbox_refuses_leaves_no_name_behind(connection: Connection) -> None:
    case = await open_case(connection, "case", "ada")
    good, bad = log(event_id=uuid4()), log(event_id=uuid4(), context={"nul": "\x00"})
    with pytest.raises(Exception, match=r"log 1, context\.nul"):
        await ingest.store(connection, case.investigation_id, [good, bad])
    assert await counts(connection) == (0, 0)
    assert (await ingest.store(connection, case.investigation_id, [good])).stored == 1


async def test_a_name_that_somebody_chose_is_stepped_over(connection: Connection) -> None:
    chosen = await open_case(connection, "chosen", "ada", "INV-3")
    found = [(await open_case(connection, "next", "ada")).investigation_id for _ in range(3)]
    assert chosen.number == 1
    assert found == ["INV-2", "INV-4", "INV-5"]


async def test_sample_traffic_goes_on_when_somebody_closes_its_investigations(dsn: str, connection: Connection) -> None:
    traffic = Traffic(Database(dsn), seed=3)
    for case in CASES:
        await traffic.begin(connection, case)
        await traffic.begin(connection, case)
    before = await counts(connection)
    assert before[0] == before[1] > 200
    await traffic.step(connection)
    assert (await counts(connection))[1] > before[1]
    for case in CASES:
        await close_case(connection, case.investigation_id, "ada")
    after = await counts(connection)
    assert await traffic.step(connection) > 0
    assert await counts(connection) == after


def test_the_same_seed_tells_the_same_story() -> None:
    told = [[each.message for _ in range(20) for each in Story(5).request()] for _ in range(2)]
    assert told[0] == told[1]
    assert Story(None).request()[0].event_id != Story(None).request()[0].event_id


def test_every_event_of_the_system_is_described_in_its_readme() -> None:
    text = (Path(ingest.__file__).parents[1] / "README.md").read_text()
    for event in outbox.registry:
        assert f"`{event.name}` v{event.version}" in text
