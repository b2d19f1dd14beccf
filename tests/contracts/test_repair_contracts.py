"""Replay as the chat and stations documents ask for it (C4, S5, S7): from command line and Python, and by their SQL."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from click.testing import CliRunner

from aftercommit.cli import cli
from aftercommit.consumer import LogWorker
from aftercommit.event.envelope import Event
from aftercommit.operate import Repair, Selection
from aftercommit.outbox import Outbox
from aftercommit.postgres.shape import DeclaredView
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from tests.support.consuming import bus_on, letters
from tests.support.programs import CLEANED
from tests.support.recording import RecordingTransport
from tests.support.relays import relay_on
from tests.support.repairing import Fragile, desk
from tests.support.shop import OrderPlaced, Shop, shop_outbox

# As the stations' document has it.
REPLAY = """
    INSERT INTO event_outbox (id, event_id, event_type, payload, status, attempts)
    SELECT event_id || '-replay', event_id, event_type, payload, 'pending', 0
    FROM dead_letter_events
    WHERE event_id = '{event_id}';
"""
VIEW = DeclaredView(
    "event_outbox",
    columns={
        "id": "id_text",
        "event_id": "event_id_text",
        "event_type": "event_type",
        "payload": "payload",
        "status": "status",
        "attempts": "retry_count",
        "created_at": "created_at",
        "sent_at": "published_at",
    },
    statuses={"published": "sent"},
    writable=True,
)
FAILED = "select count(*)::int from outbox where status = 'failed'"
PENDING = "select count(*)::int from outbox where status = 'pending'"


@pytest.fixture
def stations(postgres_server: PostgresServerForTests) -> Any:
    """The shop's events behind the stations' own outbox view."""

    def prepare(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            shop_outbox(views=[VIEW]).migrate(connection)

    dsn = postgres_server.clone(postgres_server.template("stations repair", prepare=prepare))
    yield Shop(dsn, shop_outbox(views=[VIEW], max_attempts=1))
    postgres_server.drop(dsn)


async def failed_behind_bus(shop: Shop) -> tuple[Fragile, UUID]:
    """One event that one consumer has taken and another could not."""
    good = Fragile(shop, name="good")
    fragile = Fragile(shop, 7, ledger=good.ledger)
    event_id = shop.place(number=7)
    async with bus_on(shop):
        await shop.value_becomes(FAILED, 1)
    fragile.mend()
    return fragile, event_id


@pytest.mark.contract("S7")
async def test_the_documents_sql_replays_what_failed_behind_the_bus(stations: Shop) -> None:
    fragile, event_id = await failed_behind_bus(stations)
    assert fragile.ledger.numbers() == [7]

    stations.rows(REPLAY.format(event_id=event_id))
    async with bus_on(stations):
        await stations.value_becomes("select count(*)::int from outbox", 0)

    assert fragile.ledger.numbers() == [7, 7], "the one that had succeeded is skipped, the one that had failed runs"
    assert letters(stations, "consumer_name, status") == [("index", "resolved")]
    assert stations.rows("select status, sent_at is not null from event_outbox") == [("sent", True)]


@pytest.mark.contract("S7")
async def test_of_two_that_had_failed_the_one_that_recovers_is_resolved_and_the_other_is_not(stations: Shop) -> None:
    fragile, event_id = await failed_behind_bus(stations)
    stubborn = Fragile(stations, 8, name="stubborn", ledger=fragile.ledger)
    event_id = stations.place(number=8)
    fragile.bad.add(8)
    async with bus_on(stations):
        await stations.value_becomes(FAILED, 2)
        fragile.mend()
        stations.rows(REPLAY.format(event_id=event_id))
        await stations.value_becomes("select max(attempts) from dead_letter_events where consumer_name = 'stubborn'", 2)

    mine = f"select consumer_name, status from dead_letter_events where event_id = '{event_id}' order by 1"
    assert stations.rows(mine) == [("index", "resolved"), (stubborn.name, "parked")]


@pytest.mark.contract("S7")
@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
async def test_the_documents_sql_replays_what_a_consumer_of_the_log_parked(stations: Shop, ordering: Any) -> None:
    good = Fragile(stations, name="good", ordering=ordering)
    fragile = Fragile(stations, 7, ledger=good.ledger, ordering=ordering)
    event_id = stations.place(number=7)
    outbox, signals = stations.outbox, Signals()
    workers = [LogWorker(outbox, each.consumer, stations.database, probe=signals) for each in (good, fragile)]
    async with relay_on(stations), workers[0], workers[1]:
        await stations.value_becomes("select min(status) from dead_letter_events", "parked")
        fragile.mend()
        stations.rows(REPLAY.format(event_id=event_id))
        await stations.value_becomes("select min(position)::int from consumer", 2)
        await stations.value_becomes("select status from dead_letter_events", "resolved")

    assert fragile.ledger.numbers() == [7, 7]


@pytest.mark.contract("S7")
@pytest.mark.parametrize("published", [True, False], ids=["published", "not yet"])
async def test_the_documents_sql_brings_back_what_was_discarded_behind_the_bus(stations: Shop, published: bool) -> None:
    """Also while another consumer still waits for the event, so that it is not published."""
    fragile, event_id = await failed_behind_bus(stations)
    other = Fragile(stations, 7, name="other", ledger=fragile.ledger)
    fragile.bad.add(7)
    if not published:
        await desk(stations).retry(Selection(consumer="index"))
        async with bus_on(stations):
            await stations.value_becomes(FAILED, 1)
    await desk(stations).discard(Selection(consumer="index"), reason="not wanted")
    if published:
        other.mend()
        async with bus_on(stations):
            await stations.value_becomes("select count(*)::int from outbox", 0)
    fragile.mend()
    other.mend()
    before = fragile.ledger.numbers()
    stations.rows(REPLAY.format(event_id=event_id))
    async with bus_on(stations):
        await stations.value_becomes("select count(*)::int from outbox", 0)
    assert fragile.ledger.numbers() == [*before, 7, *([] if published else [7])]
    assert {status for (status,) in letters(stations, "status")} == {"resolved"}


@pytest.mark.contract("S7")
async def test_the_documents_sql_brings_a_discarded_delivery_back_into_its_place(stations: Shop) -> None:
    transport = RecordingTransport(lambda record: ValueError("no route"))
    ids = stations.publish(OrderPlaced("o-1", 1), OrderPlaced("o-1", 2))
    async with relay_on(stations, transport=transport):
        await stations.value_becomes(FAILED, 2)
    await desk(stations).discard(Selection(event_ids=(ids[0],)), reason="a slip")
    transport.refuse = None
    stations.rows(REPLAY.format(event_id=ids[0]))
    stations.rows(REPLAY.format(event_id=ids[1]))
    async with relay_on(stations, transport=transport):
        await stations.value_becomes("select count(*)::int from outbox", 0)
    assert [number for _, _, number in stations.log()] == [1, 2]
    assert letters(stations, "status") == [("resolved",), ("resolved",)]


@pytest.mark.contract("S7")
async def test_the_documents_sql_replays_what_was_discarded_for_a_consumer_of_the_log(stations: Shop) -> None:
    fragile = Fragile(stations, 7)
    event_id = stations.place(number=7)
    async with relay_on(stations), LogWorker(stations.outbox, fragile.consumer, stations.database, probe=Signals()):
        await stations.value_becomes("select min(status) from dead_letter_events", "parked")
        await desk(stations).discard(Selection(consumer="index"), reason="not wanted")
        fragile.mend()
        stations.rows(REPLAY.format(event_id=event_id))
        await stations.value_becomes("select min(position)::int from consumer", 2)
        await stations.value_becomes("select status from dead_letter_events", "resolved")
    assert fragile.ledger.numbers() == [7]


@pytest.mark.contract("S7")
async def test_a_letter_is_replayed_from_python(stations: Shop) -> None:
    fragile, event_id = await failed_behind_bus(stations)
    repair = Repair(stations.outbox, stations.database)
    async with bus_on(stations):
        operation = await repair.start(Selection(event_ids=(event_id,), consumer="index"))
        done = await repair.drive(operation.id)
    assert done.is_whole
    assert fragile.ledger.numbers() == [7, 7]


@pytest.mark.contract("S5")
async def test_a_letter_counts_up_when_a_replay_fails_again(stations: Shop) -> None:
    fragile, event_id = await failed_behind_bus(stations)
    fragile.bad.add(7)
    async with bus_on(stations):
        operation = await desk(stations).start(Selection(event_ids=(event_id,), consumer="index"))
        done = await desk(stations).drive(operation.id)
    assert (done.status, done.failed) == ("done", 1)
    assert letters(stations, "status, attempts") == [("parked", 2)]
    assert stations.rows("select status from event_outbox") == [("failed",)]


@pytest.mark.contract("C4")
@pytest.mark.parametrize("one", [True, False], ids=["one", "many by filter"])
def test_failed_events_are_replayed_from_the_command_line_after_a_preview(
    shop: Shop, one: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path))
    shop.outbox = shop_outbox(max_attempts=1)
    ids = asyncio.run(_fail_three(shop))
    which = (
        [str(ids[0]), "--consumer", "index"] if one else ["--error-class", "ValueError", "--scope", "tenant_id=acme"]
    )
    expected = 1 if one else 3

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(cli, [*arguments, "--dsn", shop.dsn])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    assert run("replay", "start", *which, "--dry-run", "--json")["total"] == expected
    assert shop.value(FAILED) == 3
    assert run("dead", "retry", *which, "--yes", "--json")["done"] == expected
    assert shop.value(PENDING) == expected

    ledger = asyncio.run(_deliver(shop))
    assert len(ledger) == expected
    assert shop.value(FAILED) == 3 - expected


async def _fail_three(shop: Shop) -> tuple[UUID, ...]:
    Fragile(shop, 0, 1, 2)
    ids = shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(3)))
    async with bus_on(shop):
        await shop.value_becomes(FAILED, 3)
    return ids


async def _deliver(shop: Shop) -> list[int]:
    handled: list[int] = []
    shop.outbox = Outbox("shop", scope={"tenant_id": str}, max_attempts=1)
    shop.outbox.declare("order.placed", OrderPlaced, aggregate="order", key="order_id")

    @shop.outbox.on(OrderPlaced, consumer="index")
    async def handle(event: Event[OrderPlaced]) -> None:
        handled.append(event.payload.number)

    async with bus_on(shop, signals=Signals()):
        await shop.value_becomes(PENDING, 0)
    return handled
