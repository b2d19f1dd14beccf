"""Several aggregates at a time: a slow one delays nobody, the checkpoint waits for it, and nothing is handled twice."""

import asyncio
from typing import Any, Literal

import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer.names import set_paused
from aftercommit.consumer.side_by_side import MOST_PAGES
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Consumer
from tests.support.consuming import (
    Ledger,
    checkpoint,
    handle_all,
    inbox,
    kill,
    letters,
    numbered,
    place_in_log,
    settled,
    worker_on,
)
from tests.support.shop import OrderPlaced, Shop

PAGE = 20
WRITTEN = "select count(*)::int from public.ledger where order_id <> 'slow'"


class Slow:
    """A consumer that stands still in every event of the order `slow` until it is let go."""

    def __init__(self, shop: Shop, *bad: int, concurrency: int = 3, **options: Any) -> None:
        """Refuse these numbers of the slow order."""
        self.ledger = Ledger(shop)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.bad = bad
        self.consumer: Consumer = shop.outbox.consumer("index", concurrency=concurrency, timeout=600, **options)
        self.consumer.on(OrderPlaced)(self.handle)

    async def handle(self, event: Event[OrderPlaced], connection: Any) -> None:
        """Write, and wait if it is the slow one."""
        await self.ledger.write(event, connection)
        if event.payload.order_id == "slow":
            self.reached.set()
            await self.go_on.wait()
            if event.payload.number in self.bad:
                raise ValueError("bad")


def others(count: int) -> list[tuple[str, int]]:
    """Events of seven other orders."""
    return [(f"o-{number % 7}", number) for number in range(count)]


async def stand_still(shop: Shop, slow: Slow, count: int = 10 * PAGE) -> None:
    """The slow order is at work with its first event, and all events of others that came later are handled."""
    place_in_log(shop, *numbered(3, "slow"))
    await asyncio.wait_for(slow.reached.wait(), 60)
    place_in_log(shop, *others(count))
    await shop.value_becomes(WRITTEN, count)


def require_order(slow: Slow, count: int) -> None:
    """Every event of the others was handled once, in the order of its aggregate."""
    for order in range(7):
        mine = [number for number in range(count) if number % 7 == order]
        assert slow.ledger.numbers(f"o-{order}") == mine


async def test_a_slow_aggregate_delays_only_itself_and_the_checkpoint(shop: Shop) -> None:
    """Ten pages pass it, and the checkpoint stays before it until it is done."""
    slow = Slow(shop)
    async with worker_on(shop, slow.consumer, page_size=PAGE):
        await stand_still(shop, slow)
        assert checkpoint(shop, "index") == 0
        slow.go_on.set()
        await settled(shop, "index")
    require_order(slow, 10 * PAGE)
    assert slow.ledger.numbers("slow") == [0, 1, 2]
    assert (checkpoint(shop, "index"), inbox(shop, "index")) == (203, 203)


async def test_after_a_takeover_nothing_that_passed_the_checkpoint_is_handled_again(shop: Shop) -> None:
    slow = Slow(shop)
    async with worker_on(shop, slow.consumer, page_size=PAGE, lease_seconds=0.5) as dying:
        await stand_still(shop, slow)
        await kill(dying)
    assert (checkpoint(shop, "index"), slow.ledger.numbers("slow")) == (0, [])
    slow.go_on.set()
    await handle_all(shop, slow.consumer, page_size=PAGE, lease_seconds=0.5)
    require_order(slow, 10 * PAGE)
    assert slow.ledger.numbers("slow") == [0, 1, 2]


async def test_a_stop_drops_what_was_read_ahead_and_the_next_worker_reads_it_again(shop: Shop) -> None:
    slow = Slow(shop)
    async with worker_on(shop, slow.consumer, page_size=PAGE) as worker:
        await stand_still(shop, slow)
        worker.stopping.set()
        slow.go_on.set()
        await worker.stop()
    # The event at work came to its end; whether its followers did depends on who was first.
    assert checkpoint(shop, "index") in (1, 2, 203)
    await handle_all(shop, slow.consumer, page_size=PAGE)
    require_order(slow, 10 * PAGE)
    assert (slow.ledger.numbers("slow"), checkpoint(shop, "index")) == ([0, 1, 2], 203)


async def test_what_is_read_ahead_is_bounded_whatever_is_slow(shop: Shop) -> None:
    """The whole backlog belongs to the slow order."""
    slow = Slow(shop)
    place_in_log(shop, *numbered(2 * MOST_PAGES * PAGE, "slow"))
    async with worker_on(shop, slow.consumer, page_size=PAGE) as worker:
        await asyncio.wait_for(slow.reached.wait(), 60)
        reads = shop.signals.counts["consumer.read"]
        assert reads <= MOST_PAGES
        assert worker._followers["index"]._side.queues.events <= MOST_PAGES * PAGE
        slow.go_on.set()
        await settled(shop, "index")
    assert slow.ledger.numbers("slow") == list(range(2 * MOST_PAGES * PAGE))


@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
async def test_a_slow_event_that_fails_holds_back_its_followers_under_strict_ordering(
    shop: Shop, ordering: Literal["relaxed", "strict"]
) -> None:
    """Its followers were read ahead, some in its slice and some behind it."""
    slow = Slow(shop, 0, ordering=ordering, retry_count=0)
    async with worker_on(shop, slow.consumer, page_size=PAGE):
        await stand_still(shop, slow)
        place_in_log(shop, ("slow", 3))
        slow.go_on.set()
        await settled(shop, "index")
        expected = [1, 2, 3] if ordering == "relaxed" else []
        assert slow.ledger.numbers("slow") == expected
        states = [status for status, _ in letters(shop)]
        assert states == (["parked"] if ordering == "relaxed" else ["parked", "waiting", "waiting", "waiting"])
        slow.bad = ()
        shop.rows("update dead_letter_events set status = 'retrying', next_retry_at = now() where status = 'parked'")
        await shop.value_becomes("select count(*)::int from dead_letter_events where status <> 'resolved'", 0)
        await settled(shop, "index")
    assert slow.ledger.numbers("slow") == ([1, 2, 3, 0] if ordering == "relaxed" else [0, 1, 2, 3])
    require_order(slow, 10 * PAGE)


async def test_a_letter_of_another_aggregate_is_retried_while_one_is_slow(shop: Shop) -> None:
    slow = Slow(shop)
    failed = iter([True])

    async def fail_once(event: Event[OrderPlaced], connection: Any) -> None:
        await slow.handle(event, connection)
        if event.payload.order_id == "o-1" and next(failed, False):
            raise ValueError("not yet")

    slow.consumer.handlers.clear()
    slow.consumer.backoff = Constant(0.0)
    slow.consumer.on(OrderPlaced)(fail_once)
    async with worker_on(shop, slow.consumer, page_size=PAGE):
        await stand_still(shop, slow, 7)
        await shop.value_becomes("select max(status) from dead_letter_events", "resolved")
        assert checkpoint(shop, "index") == 0
        slow.go_on.set()
        await settled(shop, "index")
    require_order(slow, 7)


async def test_a_pause_takes_effect_while_an_aggregate_is_slow(shop: Shop) -> None:
    slow = Slow(shop)
    async with worker_on(shop, slow.consumer, page_size=PAGE, lease_seconds=0.5) as worker:
        await stand_still(shop, slow, 7)
        connection = await shop.database.connect()
        async with connection:
            await set_paused(connection, shop.outbox.shape, "index", True)
            await shop.signals.next("consumer.heartbeat")
            await shop.signals.next("consumer.heartbeat")
            place_in_log(shop, *others(7))
            slow.go_on.set()
            await shop.signals.wait("consumer.paused")
            assert shop.value(WRITTEN) == 7
            assert worker.active
            await set_paused(connection, shop.outbox.shape, "index", False)
        await settled(shop, "index")
    assert slow.ledger.numbers("slow") == [0, 1, 2]
    assert shop.value(WRITTEN) == 14
