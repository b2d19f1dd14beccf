"""Old and new code side by side: whoever meets an event that it does not know yet waits for newer code, and says so."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aftercommit.contrib.prometheus.collector import PrometheusCollector
from aftercommit.errors import NewerVersion, UnreadableEvent
from aftercommit.outbox import Outbox
from aftercommit.testing.signals import Signals
from tests.support.consuming import append, bus_on, checkpoint, letters, outbox_records, worker_on
from tests.support.programs import REPOSITORY, Program, running
from tests.support.shop import Shop
from tests.support.versions_app import LEDGER, Placed, declared

pytestmark = pytest.mark.contract("E4")

APP = ("--app", "tests.support.versions_app:outbox")


@pytest.fixture(autouse=True)
def ledger(shop: Shop) -> None:
    shop.rows(LEDGER)


def publish(shop: Shop, outbox: Outbox, *numbers: int, order_id: str = "o-1") -> None:
    with shop.connect() as connection:
        outbox.publish(connection, [Placed(order_id, number) for number in numbers], tenant_id="acme")


def handled(shop: Shop, order_id: str | None = None) -> list[tuple[int, int]]:
    """What was handled, in its order: by which version of the code, and which number."""
    return shop.rows(
        "select version, number from public.handled where %s::text is null or order_id = %s order by id",
        (order_id, order_id),
    )


def status(shop: Shop) -> tuple[int, dict[str, Any]]:
    """What `aftercommit status --json` says and how it exits."""
    command = [sys.executable, "-m", "aftercommit.cli", "status", "--json", "--schema", "shop", "--dsn", shop.dsn]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout)


def until(program: Program, event: str) -> dict[str, Any]:
    found = program.until(lambda: next((line for line in program.stderr if f'"{event}"' in line), None))
    assert found is not None, f"{event} was not logged: {program}"
    line: dict[str, Any] = json.loads(found)
    return line


def numbers_handled(shop: Shop, count: int) -> list[tuple[int, int]]:
    deadline = time.monotonic() + 60
    while len(handled(shop)) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return handled(shop)


@pytest.fixture
def relay(shop: Shop) -> Iterator[Program]:
    with running("relay", *APP, "--dsn", shop.dsn, SHOP_VERSION="1") as program:
        until(program, "relay_started")
        yield program


class TestRollout:
    """With real processes; a worker's lease is long, so that nobody takes over because it has run out."""

    def worker(self, shop: Shop, version: int) -> Any:
        return running("worker", *APP, "--dsn", shop.dsn, "--lease", "60", SHOP_VERSION=str(version))

    @pytest.mark.thorough
    def test_an_old_worker_waits_visibly_until_a_new_one_comes_and_nothing_is_parked(
        self, shop: Shop, relay: Program
    ) -> None:
        with self.worker(shop, 1) as old:
            until(old, "consumer_started")
            publish(shop, declared(1), 0, 1)
            publish(shop, declared(2), 2)
            publish(shop, declared(1), 3)
            told = until(old, "consumer_waiting_for_version")
            assert (told["event_type"], told["version"], told["known"]) == ("order.placed", 2, 1)
            assert numbers_handled(shop, 2) == [(1, 0), (1, 1)]
            assert checkpoint(shop, "index") == 2
            exit_status, seen = status(shop)
            assert (exit_status, seen["problems"]) == (0, [])
            (wait,) = seen["version_waits"]
            assert (wait["consumer"], wait["event_type"], wait["version"]) == ("index", "order.placed", 2)
            assert wait["since"][10] == wait["until"][10] == "T"
            with self.worker(shop, 2) as new:
                assert numbers_handled(shop, 4) == [(1, 0), (1, 1), (2, 2), (2, 3)]
                old.send(signal.SIGTERM)
                assert old.ends() == 0, old
                publish(shop, declared(2), 4)
                assert numbers_handled(shop, 5)[-1] == (2, 4)
                assert until(new, "consumer_started")["took_over"] is False
        assert letters(shop) == []
        assert shop.rows("select * from version_wait") == []
        assert sum('"consumer_waiting_for_version"' in line for line in old.stderr) == 1

    @pytest.mark.thorough
    def test_a_new_worker_that_stands_by_takes_over_at_once(self, shop: Shop, relay: Program) -> None:
        with self.worker(shop, 1) as old:
            until(old, "consumer_started")
            with self.worker(shop, 2) as new:
                until(new, "consumer_standing_by")
                publish(shop, declared(1), 0)
                # Read together, both events may be handled by the new one: it takes over before the old one has begun.
                assert numbers_handled(shop, 1) == [(1, 0)]
                publish(shop, declared(2), 1)
                assert numbers_handled(shop, 2) == [(1, 0), (2, 1)]
                # The old one stands by now, and takes nothing back.
                until(old, "consumer_standing_by")
                publish(shop, declared(1), 2)
                assert numbers_handled(shop, 3)[-1] == (2, 2)
        assert letters(shop) == []

    @pytest.mark.thorough
    def test_after_a_rollback_the_old_worker_waits_and_goes_on_with_the_next_rollout(
        self, shop: Shop, relay: Program
    ) -> None:
        with self.worker(shop, 2) as new:
            publish(shop, declared(2), 0)
            assert numbers_handled(shop, 1) == [(2, 0)]
            new.send(signal.SIGTERM)
            assert new.ends() == 0
        publish(shop, declared(1), 1)
        publish(shop, declared(2), 2)
        with self.worker(shop, 1) as old:
            until(old, "consumer_waiting_for_version")
            assert numbers_handled(shop, 2) == [(2, 0), (1, 1)]
            assert status(shop)[0] == 0
            with self.worker(shop, 2):
                assert numbers_handled(shop, 3) == [(2, 0), (1, 1), (2, 2)]
        assert letters(shop) == []


@pytest.mark.parametrize(
    "options", [{}, {"ordering": "strict"}, {"concurrency": 4}, {"inbox": False}], ids=lambda each: str(each)
)
async def test_every_kind_of_consumer_stops_before_the_event_and_keeps_the_order(
    shop: Shop, options: dict[str, Any]
) -> None:
    old, new = declared(1, **options), declared(2, **options)
    publish(shop, old, 0, 1)
    publish(shop, old, 0, order_id="o-2")
    publish(shop, new, 2)
    publish(shop, old, 3)
    append(shop)
    shop.outbox = old
    async with worker_on(shop, old.consumers["index"]):
        await shop.signals.wait("consumer.waiting")
        await shop.value_becomes("select position from consumer", 3)
        shop.outbox = new
        async with worker_on(shop, new.consumers["index"], signals=Signals()):
            await shop.value_becomes("select position from consumer", 5)
    assert handled(shop, "o-1") == [(1, 0), (1, 1), (2, 2), (2, 3)]
    assert handled(shop, "o-2") == [(1, 0)]
    assert letters(shop) == []


@pytest.mark.thorough
async def test_when_the_wait_is_over_the_event_is_parked_and_newer_code_takes_it_up(shop: Shop) -> None:
    old, new = declared(1, version_wait_seconds=1.0), declared(2)
    publish(shop, new, 0)
    publish(shop, old, 1)
    publish(shop, new, 2)
    append(shop)
    shop.outbox = old
    async with worker_on(shop, old.consumers["index"], lease_seconds=1.0):
        await shop.signals.wait("consumer.waiting")
        assert letters(shop) == []
        await shop.value_becomes("select position from consumer", 3)
        # The wait for this version is over: the next event of it is parked without another.
        assert letters(shop, "status, attempts, error_class") == [("parked", 1, "NewerVersion")] * 2
    assert handled(shop) == [(1, 1)]
    shop.outbox = new
    async with worker_on(shop, new.consumers["index"], signals=Signals()):
        await shop.value_becomes("select count(*) from dead_letter_events where status = 'resolved'", 2)
    assert sorted(handled(shop)) == [(1, 1), (2, 0), (2, 2)]


async def test_a_wait_outlives_its_worker_and_begins_anew_when_nothing_was_met_for_as_long(shop: Shop) -> None:
    old = declared(1, version_wait_seconds=600.0)
    publish(shop, declared(2), 0)
    append(shop)
    shop.outbox = old
    async with worker_on(shop, old.consumers["index"]):
        await shop.signals.wait("consumer.waiting")
    shop.rows("update version_wait set since = since - interval '599 s'")
    signals = Signals()
    async with worker_on(shop, old.consumers["index"], signals=signals, lease_seconds=1.0):
        await shop.value_becomes("select count(*) from dead_letter_events", 1)
    shop.rows("update version_wait set since = since - interval '1 h', seen_at = seen_at - interval '1 h'")
    publish(shop, declared(2), 1)
    append(shop)
    async with worker_on(shop, old.consumers["index"], signals=Signals()):
        await shop.value_becomes("select until > clock_timestamp() + interval '500 s' from version_wait", True)
    assert len(letters(shop)) == 1


async def test_a_consumer_of_any_type_waits_for_code_that_declares_the_type(shop: Shop) -> None:
    old, new = declared(1), declared(1)
    seen: list[str] = []
    shipped = new.declare("order.shipped")
    for outbox in (old, new):

        async def take(event: Any) -> None:
            seen.append(event.type)

        outbox.consumer("every", start="earliest").on(can_handle=lambda event: True)(take)
    with shop.connect() as connection:
        new.publish(connection, [Placed("o-1", 0), shipped.draft({"a": 1}), Placed("o-1", 1)], tenant_id="acme")
    append(shop)
    shop.outbox = old
    async with worker_on(shop, old.consumers["every"]):
        await shop.signals.wait("consumer.waiting")
        assert shop.rows("select event_type, version, known from version_wait") == [("order.shipped", 1, 0)]
        shop.outbox = new
        async with worker_on(shop, new.consumers["every"], signals=Signals()):
            await shop.value_becomes("select position from consumer", 3)
    assert seen == ["order.placed", "order.shipped", "order.placed"]
    assert letters(shop) == []


async def test_a_lane_of_a_divided_consumer_waits_and_newer_code_takes_it(shop: Shop) -> None:
    """The other lanes go on. Old and new workers share the lanes, and the one with the event goes to the new one."""
    old, new = declared(1, lanes=4), declared(2, lanes=4)
    publish(shop, new, 0)
    for number in range(8):
        publish(shop, old, number, order_id=f"o-{number + 2}")
    publish(shop, old, 1)
    append(shop)
    shop.outbox = old
    async with worker_on(shop, old.consumers["index"], lease_seconds=1.0):
        await shop.signals.wait("consumer.waiting")
        lane = shop.value("select mod(lane, 4) from log where position = 1")
        others = (
            f"select count(*)::int from consumer where name like 'index#%' and name <> 'index#{lane}' and position = 10"
        )
        await shop.value_becomes(others, 3)
        assert shop.rows("select consumer_name from version_wait") == [(f"index#{lane}",)]
        _, seen = status(shop)
        assert [wait["consumer"] for wait in seen["version_waits"]] == ["index"]
        shop.outbox = new
        async with worker_on(shop, new.consumers["index"], lease_seconds=1.0, signals=Signals(), wait_for=None):
            await shop.value_becomes("select count(*)::int from public.handled", 10)
    assert [number for _, number in handled(shop, "o-1")] == [0, 1]
    assert letters(shop) == []


@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
async def test_a_dead_letter_keeps_its_attempts_while_old_code_has_it(shop: Shop, ordering: str) -> None:
    """An operator retries it, or a replay feeds it, while the old worker is at work."""
    old = declared(1, ordering=ordering, version_wait_seconds=0.0)
    publish(shop, declared(2), 0)
    append(shop)
    shop.outbox = old
    async with worker_on(shop, old.consumers["index"]):
        await shop.value_becomes("select status from dead_letter_events", "parked")
    old = shop.outbox = declared(1, ordering=ordering)
    signals = Signals()
    async with worker_on(shop, old.consumers["index"], signals=signals):
        shop.rows("update dead_letter_events set status = 'retrying', next_retry_at = clock_timestamp()")
        await signals.wait("consumer.put_back")
        publish(shop, old, 7, order_id="o-2")
        publish(shop, old, 8)
        append(shop)
        await shop.value_becomes("select count(*) from public.handled where order_id = 'o-2'", 1)
        ((state, attempts, error_class), *behind) = letters(shop, "status, attempts, error_class")
        assert (state, attempts, error_class) == ("retrying", 1, "NewerVersion")
        assert len(behind) == (1 if ordering == "strict" else 0)
        shop.outbox = new = declared(2, ordering=ordering)
        async with worker_on(shop, new.consumers["index"], signals=Signals()) as worker:
            await shop.value_becomes("select count(*) from public.handled", 3)
            assert worker.active
    assert shop.value("select count(*) from dead_letter_events where status <> 'resolved'") == 0
    if ordering == "strict":
        assert handled(shop, "o-1") == [(2, 0), (2, 8)]


@pytest.mark.thorough
@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
async def test_behind_the_bus_the_delivery_is_put_back_and_others_go_on(shop: Shop, ordering: str) -> None:
    old, new = declared(1, ordering=ordering), declared(2, ordering=ordering)
    publish(shop, old, 0)
    publish(shop, new, 1)
    if ordering == "strict":
        publish(shop, old, 2)
    publish(shop, old, 0, order_id="o-2")
    shop.outbox = old
    async with bus_on(shop, signals=Signals()):
        await shop.value_becomes("select count(*) from log", 2)
        await shop.value_becomes("select status from dead_letter_events", "retrying")
        assert letters(shop, "attempts, error_class, history::text") == [(0, "NewerVersion", "[]")]
        assert shop.rows("select max(retry_count) from outbox") == [(0,)]
        shop.rows("update outbox set created_at = created_at - interval '5 min'")
        exit_status, seen = status(shop)
        assert (exit_status, seen["problems"]) == (0, [])
        assert seen["version_waits"][0]["behind_the_bus"] is True
        relay_gauge = [*PrometheusCollector(old).collect()]
        waits = next(each for each in relay_gauge if each.name == "consumer_version_wait_seconds")
        assert [sample.labels["consumer"] for sample in waits.samples] == ["index"]
    shop.outbox = new
    async with bus_on(shop, signals=Signals()):
        await shop.value_becomes("select count(*) from outbox", 0)
    assert handled(shop, "o-1") == [(1, 0), (2, 1), *([(2, 2)] if ordering == "strict" else [])]
    assert handled(shop, "o-2") == [(1, 0)]
    assert letters(shop, "status") == [("resolved",)]
    assert shop.rows("select * from version_wait") == []


@pytest.mark.thorough
async def test_behind_the_bus_the_wait_is_bounded_too(shop: Shop) -> None:
    old, new = declared(1, version_wait_seconds=1.0), declared(2)
    publish(shop, new, 0)
    shop.outbox = old
    async with bus_on(shop, signals=Signals()):
        await shop.value_becomes("select status from dead_letter_events", "retrying")
        await shop.value_becomes("select status from dead_letter_events", "parked")
    assert status(shop)[0] == 3
    shop.outbox = new
    async with bus_on(shop, signals=Signals()):
        await shop.value_becomes("select status from dead_letter_events", "resolved")
    assert handled(shop) == [(2, 0)]


@pytest.mark.thorough
async def test_the_old_worker_does_not_take_the_consumer_back(shop: Shop) -> None:
    """Two workers that know no more than each other leave the lease where it is."""
    old = declared(1)
    publish(shop, declared(2), 0)
    append(shop)
    shop.outbox = old
    first, second = Signals(), Signals()
    async with worker_on(shop, old.consumers["index"], signals=first, lease_seconds=1.0):
        await first.wait("consumer.waiting")
        async with worker_on(shop, declared(1).consumers["index"], signals=second, lease_seconds=1.0, wait_for=None):
            await second.wait("consumer.standing_by", 5)
    assert second.counts["consumer.active"] == 0
    assert first.counts["consumer.active"] == 1


def test_the_error_says_which_version_of_which_type(shop: Shop) -> None:
    publish(shop, declared(2), 0)
    (record,) = outbox_records(shop)
    with pytest.raises(NewerVersion) as refused:
        declared(1).registry.read(record)
    assert isinstance(refused.value, UnreadableEvent)
    assert (refused.value.event_type, refused.value.version, refused.value.known) == ("order.placed", 2, 1)
