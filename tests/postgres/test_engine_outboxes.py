"""Several outboxes in one engine: a few connections for all, and what happens to one does not happen to the others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from aftercommit.consumer import LogWorker
from aftercommit.engine import Engine
from aftercommit.errors import DeclarationError
from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from aftercommit.relay import Relay
from aftercommit.relay.transports import LogTransport
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from tests.support.mall import BACKENDS, MANY, NAME, PIDS, WRITE, Mall, build, outbox_of, with_consumer
from tests.support.shop import OrderPlaced

LEASED = """
    select bool_and(leased_until > clock_timestamp()) from (
        select leased_until from {schema}.relay union all select leased_until from {schema}.consumer
    ) lease
"""


@pytest.fixture
def mall(postgres_server: PostgresServerForTests) -> Iterator[Mall]:
    """Many migrated outboxes."""
    dsn = postgres_server.clone(postgres_server.template("mall", build))
    yield Mall(dsn)
    postgres_server.drop(dsn)


def some(count: int) -> list[Outbox]:
    """So many outboxes with a consumer each."""
    return [with_consumer(outbox_of(number)) for number in range(count)]


@asynccontextmanager
async def most_connections(mall: Mall) -> AsyncIterator[list[int]]:
    """How many connections the engine had while the block ran, again and again."""
    seen: list[int] = []

    async def watch() -> None:
        async with await psycopg.AsyncConnection.connect(mall.dsn, autocommit=True) as eyes:
            while True:
                row = await (await eyes.execute(BACKENDS, (NAME,))).fetchone()
                seen.append(row[0] if row else 0)
                await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_twenty_outboxes_share_twenty_connections(mall: Mall) -> None:
    """From the start, under work, and at rest."""
    outboxes = some(MANY)
    async with most_connections(mall) as seen, mall.engine(outboxes) as engine:
        await engine.up()
        for number in range(3):
            await mall.publish(outboxes, *range(10 * number, 10 * number + 10))
        await mall.handled(outboxes, *range(30))
        await mall.signals.wait("relay.measured", mall.signals.counts["relay.measured"] + MANY)
    assert len(seen) > 10
    assert max(seen) <= 20


async def test_one_outbox_takes_no_more_connections_than_its_services(mall: Mall) -> None:
    """A listener, two for leases, one for the carrier, two for reading, one for the handler, and one for upkeep."""
    outboxes = some(1)
    async with most_connections(mall) as seen, mall.engine(outboxes) as engine:
        await engine.up()
        await mall.publish(outboxes, *range(100))
        await mall.handled(outboxes, *range(100))
    assert max(seen) <= 8


async def test_whichever_connection_breaks_every_outbox_goes_on(mall: Mall) -> None:
    outboxes, number = some(3), 0
    async with mall.engine(outboxes) as engine:
        await engine.up()
        await mall.publish(outboxes, number)
        await mall.handled(outboxes, *range(number + 1))
        ended: set[int] = set()
        while left := {pid for (pid,) in mall.rows(PIDS, NAME)} - ended:
            pid = min(left)
            ended.add(pid)
            mall.rows("select pg_terminate_backend(%s)", pid)
            number += 1
            await mall.publish(outboxes, number)
            await mall.handled(outboxes, *range(number + 1))
            if len(ended) >= 12:
                break
        assert len(ended) >= 6


async def test_when_all_connections_break_at_once_nothing_is_lost_or_repeated(mall: Mall) -> None:
    outboxes = some(5)
    async with mall.engine(outboxes) as engine:
        await engine.up()
        for number in range(5):
            await mall.publish(outboxes, number)
            mall.rows(f"select pg_terminate_backend(pid) from ({PIDS}) theirs", NAME)
        await mall.handled(outboxes, *range(5))


async def test_locked_tables_of_some_outboxes_delay_no_lease_of_another(mall: Mall) -> None:
    """Their statements hang on more connections than there are for leases."""
    outboxes = some(6)
    hanging, others = outboxes[:4], outboxes[4:]
    async with mall.engine(outboxes, lease=3.0) as engine:
        await engine.up()
        async with await psycopg.AsyncConnection.connect(mall.dsn) as locker:
            for outbox in hanging:
                for table in ("consumer", "relay", "lane", "outbox"):
                    await locker.execute(
                        sql.SQL("lock table {} in access exclusive mode").format(sql.Identifier(outbox.schema, table))
                    )
            for number in range(12):
                await mall.publish(others, number)
                await mall.handled(others, *range(number + 1))
                for outbox in others:
                    assert mall.rows(LEASED.format(schema=outbox.schema)) == [(True,)]
                # So that several renewals fall into this time.
                await mall.signals.next("consumer.idle")
            await locker.rollback()
        await mall.publish(hanging, 0)
        await mall.handled(hanging, 0)


async def test_handlers_that_hang_leave_the_other_outboxes_their_connection_and_all_their_leases(mall: Mall) -> None:
    hanging, go_on = outbox_of(0), asyncio.Event()
    consumer = hanging.consumer("slow", start="earliest", concurrency=4, timeout=600)
    reached: list[int] = []

    @consumer.on(OrderPlaced)
    async def hang(event: Event[OrderPlaced], connection: Any) -> None:
        reached.append(event.payload.number)
        await go_on.wait()
        await connection.execute(WRITE, (hanging.schema, event.payload.number))

    others = [with_consumer(outbox_of(number)) for number in range(1, 4)]
    async with mall.engine([hanging, *others], lease=3.0, max_connections=2) as engine:
        await engine.up()
        async with await psycopg.AsyncConnection.connect(mall.dsn) as connection:
            await hanging.publish(connection, [OrderPlaced(f"o-{number}", number) for number in range(6)])
        for number in range(6):
            await mall.publish(others, number)
            await mall.handled(others, *range(number + 1))
            await mall.signals.next("consumer.heartbeat")
            for outbox in (hanging, *others):
                assert mall.rows(LEASED.format(schema=outbox.schema)) == [(True,)]
        assert len(reached) == 2
        go_on.set()
        await mall.handled([hanging], *range(6))


async def test_an_outbox_whose_session_fails_starts_again_alone(mall: Mall) -> None:
    outboxes = some(3)
    async with mall.engine(outboxes) as engine:
        await engine.up()
        await mall.publish(outboxes, 0)
        await mall.handled(outboxes, 0)
        tokens = [worker.token for worker in engine.workers]
        held = mall.rows("select token from shop_1.consumer") + mall.rows("select token from shop_2.consumer")
        await mall.signals.next("consumer.idle")
        mall.rows("update shop_0.consumer set position = 0")
        await mall.signals.wait("database.lost")
        mall.rows("update shop_0.consumer set position = 1")
        await mall.publish(outboxes, 1)
        await mall.handled(outboxes, 0, 1)
        assert mall.signals.counts["database.lost"] == 1
        assert held == [(token,) for token in tokens[1:]]
        assert engine.not_ready == []


async def test_another_process_takes_over_all_outboxes_of_one_that_died(mall: Mall) -> None:
    dying, standing_by = some(4), some(4)
    other = Signals()
    engine = mall.engine(dying, lease=1.0)
    await engine.start()
    await engine.up()
    await mall.publish(dying, 0)
    await mall.handled(dying, 0)
    async with mall.engine(standing_by, lease=1.0, probe=other):
        await other.wait("consumer.standing_by", 4)
        assert engine._task is not None
        for part in [*engine.relays, *engine.workers]:
            assert part._task is not None
            part._task.cancel()
        await asyncio.wait({engine._task})
        await mall.publish(standing_by, 1)
        await mall.handled(standing_by, 0, 1)


async def test_relays_and_workers_without_an_engine_have_connections_of_their_own(mall: Mall) -> None:
    (outbox,) = some(1)
    relay = Relay(outbox, mall.database, LogTransport(), probe=mall.signals)
    worker = LogWorker(outbox, list(outbox.consumers.values()), mall.database, probe=mall.signals)
    async with relay, worker:
        await mall.publish([outbox], 0)
        await mall.handled([outbox], 0)
    await mall.no_backend_is_left()


async def test_an_engine_that_has_stopped_leaves_no_connection(mall: Mall) -> None:
    outboxes = some(3)
    async with mall.engine(outboxes) as engine:
        await engine.up()
        await mall.publish(outboxes, 0)
        await mall.handled(outboxes, 0)
    await mall.no_backend_is_left()


def test_what_an_engine_for_several_outboxes_refuses(mall: Mall) -> None:
    outboxes = some(2)
    with pytest.raises(DeclarationError, match="at least one outbox"):
        Engine([], mall.database)
    with pytest.raises(DeclarationError, match="one outbox"):
        Engine(outboxes, mall.database, transport=LogTransport())
    with pytest.raises(DeclarationError, match="'nobody' is not declared"):
        Engine(outboxes, mall.database, workers=["nobody"])
    outboxes[1].consumer("only-here", start="earliest").on(OrderPlaced)(lambda event: None)
    assert len(Engine(outboxes, mall.database, workers=["only-here"]).workers) == 1
    assert len(Engine(outboxes, mall.database, workers=["ledger"]).workers) == 2
