"""The doorbell: an idle relay is woken by the publisher, whoever publishes and whatever happens to the connection."""

import asyncio
import logging
from collections.abc import Iterator

import psycopg
import pytest

from aftercommit.backoff import Constant
from aftercommit.postgres import listen
from aftercommit.postgres.database import Database
from aftercommit.postgres.listen import Listener
from aftercommit.relay import Relay, RelaySettings, carrier_loop, control, doorbell
from aftercommit.testing.postgres import with_database
from tests.support.recording import RecordingTransport
from tests.support.relays import listening_relay_on, relay_on
from tests.support.shop import OrderPlaced, Shop

# A relay that looks round every 200 seconds: nobody in a test lives to see it.
LONG = RelaySettings(lease_seconds=600.0)


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody rings, nothing is found before the test has run out of patience."""
    monkeypatch.setattr(doorbell, "POLL", 600.0)
    monkeypatch.setattr(carrier_loop, "FIRST_LOOK", 600.0)
    monkeypatch.setattr(control, "MARK_INTERVAL", 600.0)
    monkeypatch.setattr(control, "REST_INTERVAL", 600.0)


def is_asleep(shop: Shop) -> bool:
    """Whether the database shows a relay that asks publishers to ring."""
    return bool(shop.value("select coalesce(bool_or(listening), false) from relay"))


async def falls_asleep(shop: Shop) -> None:
    """Until the relay has asked for the bell."""
    await shop.value_becomes("select count(*) from relay where listening", 1)


class Ears:
    """Somebody who hears what publishers send."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._connection = shop.connect(autocommit=True)
        self._connection.execute(f'listen "{shop.outbox.shape.publish_channel}"')

    def rings(self) -> int:
        """How often publishers have rung since the last time; what is sent later is heard later."""
        self._shop.rows("select pg_notify(%s, 'end')", [self._shop.outbox.shape.publish_channel])
        rings = 0
        for notification in self._connection.notifies(timeout=60):
            if notification.payload == "end":
                return rings
            rings += notification.payload == "" or notification.payload.isdigit()
        raise AssertionError("the end was not heard")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def ears(shop: Shop) -> Iterator[Ears]:
    listening = Ears(shop)
    yield listening
    listening.close()


async def test_an_idle_relay_is_woken_by_publish(shop: Shop) -> None:
    """No poll is due for ten minutes; the event is in the log all the same, and so is the next, and the next."""
    async with listening_relay_on(shop, settings=LONG):
        await falls_asleep(shop)
        for number in range(20):
            shop.place("o-1", number)
            await shop.signals.wait_total("relay.appended", number + 1)
    assert [number for _, _, number in shop.log()] == list(range(20))


async def test_a_long_transaction_that_published_before_the_relay_fell_asleep_is_found(shop: Shop, ears: Ears) -> None:
    """It saw nobody listening and will not ring when it commits; the relay knows of it and looks by itself."""
    async with listening_relay_on(shop, settings=LONG) as relay:
        await falls_asleep(shop)
        busy = shop.signals.hold("relay.appended")
        shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(doorbell.BUSY_EVENTS)))
        await busy.wait()
        dry = shop.signals.hold("relay.idle")
        busy.release()
        await dry.wait()
        assert not is_asleep(shop)
        # Nothing that was rung before may wake it by accident.
        relay._doorbells[0].rung.clear()
        with shop.connect() as slow:
            shop.outbox.publish(slow, OrderPlaced("slow", 1), tenant_id="acme")
            dry.release()
            await falls_asleep(shop)
            await shop.signals.next("relay.idle")
            slow.commit()
            await shop.signals.wait_total("relay.appended", doorbell.BUSY_EVENTS + 1)
        # The first publish rang, the long one did not.
        assert ears.rings() == 1


async def test_a_transaction_that_ends_while_the_relay_falls_asleep_is_found(shop: Shop) -> None:
    """Between the look that found nothing and the flag that asks for the bell, somebody commits without ringing."""
    async with listening_relay_on(shop, settings=LONG):
        for number in range(5):
            shop.publish(*(OrderPlaced(f"many-{index}", number) for index in range(doorbell.BUSY_EVENTS)))
            hold = shop.signals.hold("relay.idle")
            await hold.wait()
            assert not is_asleep(shop)
            shop.place("late", number)
            hold.release()
            await shop.signals.wait_total("relay.appended", (number + 1) * (doorbell.BUSY_EVENTS + 1))


async def test_with_several_carriers_each_one_is_woken_for_its_own_lanes(shop: Shop) -> None:
    """One carrier's business silences the bell for nobody who is asleep; nobody is found by looking now and then."""
    settings = RelaySettings(lease_seconds=600.0, carriers=4)
    hot = next(name for name in map(str, range(100)) if lane(shop, name) % 4 == 0)
    cold = next(name for name in map(str, range(100)) if lane(shop, name) % 4 == 3)
    async with listening_relay_on(shop, transport=RecordingTransport(), settings=settings):
        await falls_asleep(shop)
        total = 0
        for number in range(10):
            shop.publish(*(OrderPlaced(hot, index) for index in range(doorbell.BUSY_EVENTS)))
            shop.place(cold, number)
            total += doorbell.BUSY_EVENTS + 1
            await shop.signals.wait_total("relay.appended", total)


async def test_a_single_event_wakes_the_carrier_of_its_lane(shop: Shop) -> None:
    """The bell says for which lane it rings. Whoever slept on would look again after ten minutes."""
    settings = RelaySettings(lease_seconds=600.0, carriers=4)
    async with listening_relay_on(shop, transport=RecordingTransport(), settings=settings):
        await falls_asleep(shop)
        for count, carrier in enumerate((3, 1, 0, 2), 1):
            shop.place(next(name for name in map(str, range(100)) if lane(shop, name) % 4 == carrier))
            await shop.signals.wait_total("relay.appended", count)


def lane(shop: Shop, order: str) -> int:
    return int(shop.value("select hashtextextended('order/' || %s, 0) & 63", [order]))


async def test_publishers_do_not_ring_while_the_relay_is_busy(shop: Shop, ears: Ears) -> None:
    """A NOTIFY in every transaction would cost them half their throughput."""
    async with listening_relay_on(shop, settings=LONG):
        await falls_asleep(shop)
        shop.place("wake", 0)
        await shop.signals.wait_total("relay.appended", 1)
        assert ears.rings() == 1
        hold = shop.signals.hold("relay.appended")
        shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(doorbell.BUSY_EVENTS)))
        await hold.wait()
        done = shop.signals.hold("relay.idle")
        hold.release()
        await done.wait()
        assert not is_asleep(shop)
        ears.rings()
        for number in range(20):
            shop.place("silent", number)
        assert ears.rings() == 0
        done.release()
        await shop.signals.wait_total("relay.appended", 1 + doorbell.BUSY_EVENTS + 20)
        await falls_asleep(shop)
        shop.place("rung", 0)
        assert ears.rings() == 1
        await shop.signals.wait_total("relay.appended", 2 + doorbell.BUSY_EVENTS + 20)


async def test_work_that_drips_without_a_pause_silences_the_bell_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches one after another are business as well."""
    # A busy machine makes pauses of its own.
    monkeypatch.setattr(doorbell, "BUSY_SECONDS", 60.0)
    async with listening_relay_on(shop, settings=RelaySettings(lease_seconds=600.0, batch_size=1)):
        await falls_asleep(shop)
        shop.publish(*(OrderPlaced("o-1", number) for number in range(100)))
        await shop.signals.wait_total("relay.appended", doorbell.BUSY_EVENTS + 2)
        hold = shop.signals.hold("relay.appended")
        await hold.wait()
        assert not is_asleep(shop)
        hold.release()


async def test_a_few_at_a_time_silence_the_bell_too_and_then_gather(
    shop: Shop, ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is how many come in a while. Nobody rings then, and what is published meanwhile is found."""
    # A busy machine makes pauses of its own.
    monkeypatch.setattr(doorbell, "BUSY_SECONDS", 60.0)
    few, times = 4, doorbell.BUSY_EVENTS // 4
    async with listening_relay_on(shop, settings=LONG):
        await falls_asleep(shop)
        gathering = shop.signals.hold("relay.gathering")
        for number in range(times):
            assert is_asleep(shop)
            shop.publish(*(OrderPlaced(f"o-{number}", index) for index in range(few)))
            await shop.signals.wait_total("relay.appended", (number + 1) * few)
        await gathering.wait()
        assert not is_asleep(shop)
        assert ears.rings() == times
        shop.place("gathered", 0)
        assert ears.rings() == 0
        gathering.release()
        await shop.signals.wait_total("relay.appended", doorbell.BUSY_EVENTS + 1)
        await falls_asleep(shop)


async def test_what_is_left_of_a_backlog_is_not_kept_waiting(shop: Shop) -> None:
    """A look that its limit has ended is followed by the next at once: whatever gathers there has done so already."""
    settings = RelaySettings(lease_seconds=60.0, batch_size=doorbell.BUSY_EVENTS)
    async with listening_relay_on(shop, settings=settings):
        await falls_asleep(shop)
        shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(4 * doorbell.BUSY_EVENTS)))
        await shop.signals.wait_total("relay.appended", 4 * doorbell.BUSY_EVENTS)
        await falls_asleep(shop)
    assert shop.signals.counts["relay.gathering"] == 0


async def test_of_several_carriers_each_is_silenced_by_its_share(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four that share what would be bulk for one are as busy as that one; who is not busy still hears the bell."""
    # A busy machine makes pauses of its own.
    monkeypatch.setattr(doorbell, "BUSY_SECONDS", 60.0)
    hot = next(name for name in map(str, range(100)) if lane(shop, name) % 4 == 0)
    settings = RelaySettings(lease_seconds=60.0, carriers=4)
    async with listening_relay_on(shop, transport=RecordingTransport(), settings=settings) as relay:
        bells = relay._doorbells
        await shop.signals.until(lambda: all(map(relay.lanes.flag.is_listening, bells)), "not all carriers fell asleep")
        gathering = shop.signals.hold("relay.gathering")
        shop.publish(*(OrderPlaced(hot, number) for number in range(doorbell.BUSY_EVENTS // 4)))
        await gathering.wait()
        assert [relay.lanes.flag.is_listening(each) for each in bells] == [False, True, True, True]
        gathering.release()


async def test_a_few_now_and_then_never_silence_the_bell(
    shop: Shop, ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they become: whoever publishes some of them is heard at once, each time."""
    monkeypatch.setattr(doorbell, "BUSY_SECONDS", 0.0)
    few, times = 4, 2 * doorbell.BUSY_EVENTS // 4
    async with listening_relay_on(shop, settings=LONG):
        await falls_asleep(shop)
        for number in range(times):
            shop.publish(*(OrderPlaced(f"o-{number}", index) for index in range(few)))
            await shop.signals.wait_total("relay.appended", (number + 1) * few)
        assert is_asleep(shop)
        assert ears.rings() == times


async def test_a_lost_listener_comes_back_and_nothing_is_missed(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """The LISTEN connection is ended by an administrator; meanwhile the relay polls, then the bell works again."""
    async with listening_relay_on(shop, settings=LONG) as relay:
        await falls_asleep(shop)
        hold = shop.signals.hold("database.lost")
        shop.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where query ilike 'listen %' and datname = current_database() and pid <> pg_backend_pid()"
        )
        await hold.wait()
        for number in range(5):
            shop.place("meanwhile", number)
        hold.release()
        await shop.signals.wait("listener.working", 2)
        await shop.signals.wait_total("relay.appended", 5)
        await falls_asleep(shop)
        shop.place("after", 0)
        await shop.signals.wait_total("relay.appended", 6)
        assert relay.lanes.are_valid
    lost = [record for record in caplog.records if record.getMessage() == "database_is_unavailable"]
    assert [record.__dict__["service"] for record in lost] == ["listener"]


async def test_without_a_listener_the_relay_polls(shop: Shop) -> None:
    """Nobody is asked to ring, and events are found all the same."""
    async with relay_on(shop):
        for number in range(3):
            await shop.signals.next("relay.idle")
            shop.place("o-1", number)
            await shop.signals.wait_total("relay.appended", number + 1)
            assert not is_asleep(shop)


async def test_a_retry_falls_due_while_the_relay_sleeps(shop: Shop) -> None:
    """It sleeps until the next retry at most."""
    shop.outbox.backoff = Constant(0.3)
    transport = RecordingTransport(lambda record: RuntimeError("once") if record.retry_count == 0 else None)
    async with listening_relay_on(shop, transport=transport, settings=LONG):
        shop.place()
        await shop.signals.wait_total("relay.appended", 1)


async def test_the_flag_goes_with_the_relay(shop: Shop, ears: Ears) -> None:
    """After a graceful stop no publisher rings for a relay that is gone."""
    async with listening_relay_on(shop, settings=LONG):
        await falls_asleep(shop)
    ears.rings()
    shop.place()
    assert ears.rings() == 0


async def test_a_new_session_of_a_relay_begins_awake(shop: Shop) -> None:
    """After a lost database connection the flag in the table is not left on by accident while the relay is busy."""
    async with listening_relay_on(shop, settings=LONG):
        await falls_asleep(shop)
        hold = shop.signals.hold("relay.ready")
        shop.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'aftercommit' and datname = current_database()"
        )
        await hold.wait()
        assert not is_asleep(shop)
        hold.release()
        await falls_asleep(shop)
        shop.place()
        await shop.signals.wait_total("relay.appended", 1)


@pytest.mark.thorough
async def test_the_first_event_of_a_new_outbox_is_found_however_late_it_commits(shop: Shop) -> None:
    """The sequence shows 1 before anything was drawn; taking that for resolved would hide the first event for good."""
    async with relay_on(shop) as relay:
        async with asyncio.timeout(60):
            while relay._marks.resolved == 0 and shop.signals.counts["relay.idle"] < 30:
                await shop.signals.next("relay.idle")
        with shop.connect() as slow:
            shop.outbox.publish(slow, OrderPlaced("first", 1), tenant_id="acme")
            shop.place("second", 2)
            await shop.signals.wait_total("relay.appended", 1)
            slow.commit()
        await shop.signals.wait_total("relay.appended", 2)


async def test_a_listener_that_hears_nothing_says_so_once_and_tries_again_later(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Notifications stay within a database; as soon as it listens in the right one, it works."""
    monkeypatch.setattr(listen, "PROVING_SECONDS", 0.05)
    monkeypatch.setattr(listen, "PROVE_AGAIN_SECONDS", 0.01)
    database = Database(shop.dsn, listen_dsn=with_database(shop.dsn, "postgres"))
    async with Listener(database, shop.signals) as listener:
        await shop.signals.wait("listener.deaf", 3)
        assert not listener.working
        monkeypatch.setattr(listen, "PROVING_SECONDS", 60.0)
        database.listen_dsn = shop.dsn
        await shop.signals.wait("listener.working")
        assert listener.working
    deaf = [record for record in caplog.records if record.getMessage() == "notifications_do_not_arrive"]
    assert len(deaf) == 1
    assert "listen_dsn" in deaf[0].__dict__["remedy"]


async def test_a_listener_that_was_kept_from_hearing_for_a_moment_is_not_deaf_for_a_minute(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that stood still while it was proved looks like a pooler; soon after it proves to be none."""
    monkeypatch.setattr(listen, "PROVING_SECONDS", 0.05)
    database = Database(shop.dsn, listen_dsn=with_database(shop.dsn, "postgres"))
    async with Listener(database, shop.signals):
        await shop.signals.wait("listener.deaf")
        monkeypatch.setattr(listen, "PROVING_SECONDS", 60.0)
        database.listen_dsn = shop.dsn
        await shop.signals.wait("listener.working", timeout=listen.PROVE_AGAIN_SECONDS / 2)


async def test_an_idle_relay_with_a_listener_asks_the_database_little(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Asleep means asleep: the carrier looks once more, and then not until somebody rings."""
    caplog.set_level(logging.INFO)
    async with (
        listening_relay_on(shop, settings=RelaySettings(lease_seconds=600.0, gauge_seconds=0.2)),
        asyncio.timeout(100),
    ):
        await falls_asleep(shop)
        looks = -1
        while shop.signals.counts["relay.idle"] != looks:
            looks = shop.signals.counts["relay.idle"]
            await shop.signals.next("relay.measured")


def test_a_relay_can_be_made_before_its_listener_is_started(shop: Shop) -> None:
    """Everybody subscribes first; the listener then listens to all of it."""

    async def make() -> None:
        listener = Listener(shop.database)
        Relay(shop.outbox, shop.database, RecordingTransport(), listener=listener)
        assert set(listener._events) == {shop.outbox.shape.publish_channel}

    asyncio.run(make())


RINGS = "select pg_sequence_last_value('doorbell'::regclass) is not null"
LISTENS = "insert into shop.relay (id, name, listening) values (gen_random_uuid(), %s, true)"


async def test_a_relay_that_stops_listening_does_not_silence_one_that_begins_to(shop: Shop) -> None:
    """It cannot see the other's row yet, so it waits for it."""
    begins, stops = shop.connect(), shop.connect()
    shop.rows("insert into relay (id, name, listening) values (gen_random_uuid(), 'stops', true) returning 1")
    with begins, stops:
        begins.execute(LISTENS, ["begins"])
        stopping = asyncio.create_task(
            asyncio.to_thread(stops.execute, "update shop.relay set listening = false where name = 'stops'")
        )
        await shop.value_becomes("select count(*) from pg_stat_activity where wait_event = 'advisory'", 1)
        begins.commit()
        await stopping
        stops.commit()
        assert shop.value(RINGS)
        stops.execute("delete from shop.relay where listening")
        stops.commit()
        assert not shop.value(RINGS)


def test_a_transaction_with_an_older_snapshot_rings(shop: Shop, ears: Ears) -> None:
    """The doorbell is read past the snapshot, in which nobody listens yet."""
    with shop.connect() as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from shop.relay")
        with shop.connect() as relay:
            relay.execute(LISTENS, ["asleep"])
        shop.outbox.publish(connection, OrderPlaced("old", 1), tenant_id="acme")
    assert ears.rings() == 1


def test_a_heartbeat_sets_a_doorbell_that_was_lost(shop: Shop) -> None:
    """As after a failover to a logical replica, which has the rows of tables but not the values of sequences."""
    with shop.connect(autocommit=True) as relay:
        relay.execute(LISTENS, ["asleep"])
        relay.execute("select setval('shop.doorbell', 1, false)")
        assert not shop.value(RINGS)
        relay.execute("update shop.relay set seen_at = clock_timestamp(), listening = listening")
    assert shop.value(RINGS)
