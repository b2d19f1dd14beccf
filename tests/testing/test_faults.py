"""Faults on order: each does what it says, and a drain comes through it with every effect once."""

import threading
from typing import Any

import psycopg
import pytest

from aftercommit.errors import DatabaseError, DeclarationError, DrainFailed
from aftercommit.event.envelope import Event, Record
from aftercommit.relay.transports import LogTransport
from aftercommit.testing import PostgresServerForTests, RecordingTransport, UnreliableTransport, World
from tests.support.shop import OrderPaid, OrderPlaced, shop_outbox
from tests.testing.till import LEDGER, write_ledger, write_ledger_blocking


def ledger(world: World) -> list[Any]:
    with world.connect(autocommit=True) as connection:
        return connection.execute(LEDGER).fetchall()


@pytest.fixture
def world(aftercommit_world: World) -> World:
    """A world with one consumer and two placed orders."""
    write_ledger(aftercommit_world.outbox)
    aftercommit_world.publish(OrderPlaced("o-1"), OrderPlaced("o-2"), tenant_id="acme")
    return aftercommit_world


@pytest.mark.parametrize("point", ["relay.read", "relay.deliver", "consumer.read", "consumer.handled"])
def test_connections_of_services_are_cut_and_the_work_goes_on(world: World, point: str) -> None:
    cut: list[int] = []
    world.at(point, lambda: cut.append(world.faults.terminate_connections()))
    world.drain()
    assert cut[0] > 0
    assert sorted(ledger(world)) == [("o-1", ""), ("o-2", "")]
    assert world.points.counts["database.lost"] >= 1


def test_another_applications_sessions_are_spared_unless_named(world: World) -> None:
    with psycopg.connect(world.dsn, autocommit=True, application_name="web") as web:
        assert world.faults.terminate_connections() == 0
        assert web.execute("select 1").fetchone() == (1,)
        assert world.faults.terminate_connections("web") == 1
        with pytest.raises(psycopg.OperationalError):
            web.execute("select 1")


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["relay.deliver", "consumer.read"])
def test_a_database_that_crashes_in_the_middle_loses_nothing(point: str) -> None:
    outbox = shop_outbox()
    write_ledger(outbox)
    with PostgresServerForTests() as server:
        dsn = server.clone(server.template_for(outbox, _make_ledger))
        world = World(outbox, dsn, server=server)
        world.publish(OrderPlaced("o-1"), tenant_id="acme")
        world.at(point, world.faults.crash_database)
        world.drain()
        assert ledger(world) == [("o-1", "")]
        with world.faults.database_down(), pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn)
        assert world.drain().appended == 0


@pytest.mark.thorough
def test_what_was_committed_just_before_a_crash_is_still_there() -> None:
    """A test of a crash must not see commits undone that would survive in production."""
    outbox = shop_outbox()
    with PostgresServerForTests() as server:
        world = World(outbox, server.clone(server.template_for(outbox)), server=server)
        for number in range(1, 4):
            (event,) = world.publish(OrderPlaced(f"o-{number}"), tenant_id="acme")
            world.faults.crash_database()
            assert [each.event_id for each in world.published()][number - 1 :] == [event]


def _make_ledger(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table ledger (id bigint generated always as identity, order_id text, note text)")


def test_a_server_given_by_its_address_cannot_be_stopped(aftercommit_dsn: str) -> None:
    with pytest.raises(DatabaseError, match="can stop an embedded server only"):
        World(shop_outbox(), aftercommit_dsn).faults.crash_database()


@pytest.mark.parametrize(("transport", "point"), [("log", "relay.deliver"), ("bus", "relay.delivered")])
def test_a_relay_whose_lanes_were_stolen_is_fenced_and_another_delivers(
    world: World, transport: Any, point: str
) -> None:
    stolen: list[int] = []
    world.at(point, lambda: stolen.append(world.faults.steal_lanes()))
    drained = world.drain(transport=transport)
    assert stolen == [64]
    assert world.points.counts["relay.fenced"] >= 1
    assert drained.appended == 2
    assert sorted(ledger(world)) == [("o-1", ""), ("o-2", "")]


def test_a_worker_whose_consumer_was_stolen_is_fenced_and_another_handles(world: World) -> None:
    world.at("consumer.read", lambda: world.faults.steal_consumer("ledger"))
    world.drain()
    assert world.points.counts["consumer.fenced"] == 1
    assert sorted(ledger(world)) == [("o-1", ""), ("o-2", "")]
    assert world.faults.steal_consumer("ledger") == 0, "nobody works for it"
    with pytest.raises(DeclarationError, match="'nobody' is not declared"):
        world.faults.steal_consumer("nobody")


def test_a_rewound_consumer_gets_its_events_again_and_the_inbox_knows_them(world: World) -> None:
    with pytest.raises(DeclarationError, match="has no checkpoint yet"):
        world.faults.rewind("ledger")
    world.drain()
    assert world.faults.rewind("ledger") == 0
    assert world.drain().handled == ()
    assert len(ledger(world)) == 2


@pytest.mark.parametrize("transport", ["log", "bus"])
@pytest.mark.parametrize("declare", [write_ledger, write_ledger_blocking])
def test_a_handler_that_is_too_late_has_its_writes_undone(
    aftercommit_world: World, transport: Any, declare: Any
) -> None:
    declare(aftercommit_world.outbox)
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    aftercommit_world.faults.slow_handler("ledger")
    drained = aftercommit_world.drain(transport=transport, through_retries=True)
    assert [type(attempt.error).__name__ for attempt in drained.failed] == ["HandlerTimeout"]
    assert ledger(aftercommit_world) == [("o-1", "")]


@pytest.mark.parametrize("transport", ["log", "bus"])
def test_a_transport_that_is_down_spends_no_attempt(world: World, transport: Any) -> None:
    with world.faults.transport.outage():
        with pytest.raises(DrainFailed, match="the transport is down"):
            world.drain(transport=transport)
        drained = world.drain(transport=transport, raise_errors=False)
        assert drained.outage is not None
        assert {event.record.retry_count for event in world.published()} == {0}
    assert world.drain(transport=transport).appended == 2


@pytest.mark.parametrize("transport", ["log", "bus"])
@pytest.mark.thorough
def test_poisoned_events_are_refused_and_the_others_pass(world: World, transport: Any) -> None:
    world.faults.transport.poison(lambda record: record.aggregate_id == "o-1", lambda: ValueError("too sweet"))
    with pytest.raises(DrainFailed, match=r"'@relay' failed on order\.placed .* ValueError: too sweet") as caught:
        world.drain(transport=transport)
    assert isinstance(caught.value.__cause__, ValueError)
    assert ledger(world) == [("o-2", "")]
    world.faults.transport.cure()
    world.drain(transport=transport, through_retries=True)
    assert ledger(world) == [("o-2", ""), ("o-1", "")]


@pytest.mark.parametrize("fault", ["repeat", "lose_answers"])
def test_events_handed_over_twice_have_one_effect_behind_the_bus(world: World, fault: str) -> None:
    getattr(world.faults.transport, fault)()
    world.drain(transport="bus")
    assert sorted(ledger(world)) == [("o-1", ""), ("o-2", "")]


def test_an_unreliable_transport_shows_duplicates_to_who_does_not_deduplicate(world: World) -> None:
    recording = RecordingTransport()
    transport = UnreliableTransport(recording)
    transport.faults.repeat()
    world.drain(transport=transport)
    assert [record.aggregate_id for record in recording.records] == ["o-1", "o-2", "o-1", "o-2"]


async def test_an_unreliable_log_is_handed_its_events() -> None:
    transport = UnreliableTransport(LogTransport())
    assert transport.capabilities.carries
    transport.faults.poison(_everything)
    assert not transport.faults.is_down
    assert list(await transport.deliver([])) == []


def _everything(record: Record) -> bool:
    return True


@pytest.mark.parametrize("blocking", [False, True])
def test_a_lock_held_by_another_session_is_waited_for(aftercommit_world: World, blocking: bool) -> None:
    world = aftercommit_world
    (write_ledger_blocking if blocking else write_ledger)(world.outbox)
    world.publish(OrderPlaced("o-1"), tenant_id="acme")
    with world.faults.locked("lock table ledger in exclusive mode") as holder:

        def release() -> None:
            world.faults.wait_until_blocked()
            holder.rollback()

        releasing = threading.Thread(target=release)
        releasing.start()
        world.drain()
        releasing.join()
    assert ledger(world) == [("o-1", "")]


def test_waiting_for_somebody_who_never_waits_has_a_deadline(aftercommit_world: World) -> None:
    with pytest.raises(AssertionError, match=r"0 sessions wait for a lock after 0\.01 s, not 1"):
        aftercommit_world.faults.wait_until_blocked(timeout=0.01)


@pytest.mark.thorough
def test_faults_can_be_called_by_a_handler(aftercommit_world: World) -> None:
    world = aftercommit_world
    cut: list[int] = []

    @world.outbox.on(OrderPaid, consumer="clumsy")
    def handle(event: Event[OrderPaid], connection: Any) -> None:
        if not cut:
            cut.append(world.faults.terminate_connections())
        connection.execute("insert into ledger (order_id) values (%s)", [event.payload.order_id])

    world.publish(OrderPaid("o-1", 1), tenant_id="acme")
    world.drain()
    assert ledger(world) == [("o-1", None)]
