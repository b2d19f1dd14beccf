"""Strict consumers: events behind an unhandled one of their aggregate wait, and go on in order when it is done."""

import asyncio
from typing import Any

import pytest

from aftercommit.backoff import Constant
from aftercommit.consumer import Dispatcher, log_worker
from aftercommit.errors import DeclarationError
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
from tests.support.shop import OrderPaid, OrderPlaced, Shop

STATES = "aggregate_id, (payload->>'number')::int, status"
HOUR = 3600.0


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What operators do by hand is noticed at once."""
    monkeypatch.setattr(log_worker, "POLL", 0.05)


class Strict:
    """A strict consumer that refuses some events until they are mended."""

    def __init__(self, shop: Shop, *bad: int, **options: Any) -> None:
        """Refuse these numbers of order o-1."""
        self.bad = set(bad)
        self.ledger = Ledger(shop)
        self.consumer: Consumer = shop.outbox.consumer(
            "index", ordering="strict", **{"retry_count": 0, "backoff": Constant(0.0), **options}
        )
        self.consumer.on(OrderPlaced)(self.handle)

    async def handle(self, event: Event[OrderPlaced], connection: Any) -> None:
        """Write, unless it is refused."""
        await self.ledger.write(event, connection)
        if event.payload.order_id == "o-1" and event.payload.number in self.bad:
            raise ValueError("bad")


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("page_size", [1000, 2])
async def test_events_behind_a_parked_one_wait_and_other_aggregates_flow(
    shop: Shop, concurrency: int, page_size: int
) -> None:
    """Within one page and across pages."""
    strict = Strict(shop, 2, concurrency=concurrency)
    place_in_log(shop, *numbered(5, "o-1"), *numbered(5, "o-2"), ("o-1", 5))
    async with worker_on(shop, strict.consumer, page_size=page_size):
        await settled(shop, "index")
        assert strict.ledger.numbers("o-1") == [0, 1]
        assert strict.ledger.numbers("o-2") == [0, 1, 2, 3, 4]
        assert letters(shop, STATES) == [
            ("o-1", 2, "parked"),
            ("o-1", 3, "waiting"),
            ("o-1", 4, "waiting"),
            ("o-1", 5, "waiting"),
        ]
        place_in_log(shop, ("o-1", 6), ("o-2", 5))
        await settled(shop, "index")
    assert strict.ledger.numbers("o-2") == [0, 1, 2, 3, 4, 5]
    assert letters(shop, STATES)[-1] == ("o-1", 6, "waiting")
    assert checkpoint(shop, "index") == 13


@pytest.mark.parametrize("state", ["resolved", "discarded"])
async def test_events_go_on_in_order_when_the_one_before_is_dealt_with_by_hand(shop: Shop, state: str) -> None:
    strict = Strict(shop, 1)
    place_in_log(shop, *numbered(5))
    async with worker_on(shop, strict.consumer):
        await settled(shop, "index")
        assert strict.ledger.numbers() == [0]
        shop.rows("update dead_letter_events set status = %s where status = 'parked'", (state,))
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'waiting'", 0)
        await settled(shop, "index")
    assert strict.ledger.numbers() == [0, 2, 3, 4]
    assert [status for _, _, status in letters(shop, STATES)] == [state, "resolved", "resolved", "resolved"]


async def test_events_go_on_in_order_when_the_one_before_is_mended_and_retried(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes the next one due, without anybody having to look for it."""
    monkeypatch.setattr(log_worker, "POLL", HOUR)
    strict = Strict(shop, 1)
    place_in_log(shop, *numbered(5))
    async with worker_on(shop, strict.consumer):
        await settled(shop, "index")
        strict.bad.clear()
        shop.rows("update dead_letter_events set status = 'retrying', next_retry_at = now() where status = 'parked'")
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'waiting'", 0)
        await settled(shop, "index")
        place_in_log(shop, ("o-1", 5))
        await settled(shop, "index")
    assert strict.ledger.numbers() == [0, 1, 2, 3, 4, 5]
    assert inbox(shop, "index") == 6


async def test_letters_all_retried_at_once_still_go_in_order(shop: Shop) -> None:
    """An operator makes every open letter due, with the times the wrong way round."""
    strict = Strict(shop, 1)
    place_in_log(shop, *numbered(5))
    async with worker_on(shop, strict.consumer):
        await settled(shop, "index")
        strict.bad.clear()
        shop.rows(
            "update dead_letter_events set status = 'retrying', next_retry_at = now() - position * interval '1 second'"
        )
        await settled(shop, "index")
    assert strict.ledger.numbers() == [0, 1, 2, 3, 4]


async def test_one_waiting_event_that_fails_in_its_turn_holds_back_those_behind_it(shop: Shop) -> None:
    strict = Strict(shop, 1, 3)
    place_in_log(shop, *numbered(6))
    async with worker_on(shop, strict.consumer):
        await settled(shop, "index")
        shop.rows("update dead_letter_events set status = 'discarded' where status = 'parked'")
        await shop.value_becomes("select count(*)::int from dead_letter_events where status = 'parked'", 1)
        await settled(shop, "index")
    assert strict.ledger.numbers() == [0, 2]
    assert [status for _, _, status in letters(shop, STATES)] == [
        "discarded",
        "resolved",
        "parked",
        "waiting",
        "waiting",
    ]


async def test_a_retry_that_is_due_later_holds_back_its_aggregate_meanwhile(shop: Shop) -> None:
    """The worker does not spin while the first letter of the aggregate is not due."""
    strict = Strict(shop, 0, retry_count=3, backoff=Constant(HOUR))
    place_in_log(shop, *numbered(3))
    async with worker_on(shop, strict.consumer):
        await shop.signals.wait_total("consumer.handled", 3)
        shop.rows("update dead_letter_events set status = 'retrying', next_retry_at = now() where status = 'waiting'")
        await shop.signals.next("consumer.idle")
        before = shop.signals.counts["consumer.idle"]
        await shop.signals.wait("consumer.idle", before + 3)
        assert shop.signals.counts["consumer.retried"] == 0
        assert strict.ledger.numbers() == []
        strict.bad.clear()
        shop.rows("update dead_letter_events set next_retry_at = now()")
        await settled(shop, "index")
    assert strict.ledger.numbers() == [0, 1, 2]


@pytest.mark.parametrize("also_bad", [(), (1,)], ids=["the next succeeds", "the next fails too"])
async def test_a_crash_between_setting_aside_and_the_checkpoint_blocks_nothing_for_ever(
    shop: Shop, also_bad: tuple[int, ...]
) -> None:
    """Waiting letters are written, the page's checkpoint is not; meanwhile the letter before them is resolved."""
    strict = Strict(shop, 0, *also_bad)
    blocked, go_on = asyncio.Event(), asyncio.Event()

    @strict.consumer.on("order.paid")
    async def stand_still(event: Event[Any], connection: Any) -> None:
        blocked.set()
        await go_on.wait()

    place_in_log(shop, *numbered(1))
    await handle_all(shop, strict.consumer)
    shop.publish(OrderPlaced("o-1", 1), OrderPlaced("o-1", 2), OrderPaid("o-9", 1), OrderPlaced("o-1", 3))
    place_in_log(shop, ("o-2", 1))
    async with worker_on(shop, strict.consumer, lease_seconds=0.3, wait_for=None) as dying:
        await asyncio.wait_for(blocked.wait(), 60)
        await kill(dying)
    assert [status for _, _, status in letters(shop, STATES)] == ["parked", "waiting", "waiting", "waiting"]
    assert checkpoint(shop, "index") == 1
    shop.rows("update dead_letter_events set status = 'discarded' where status = 'parked'")
    go_on.set()
    async with worker_on(shop, strict.consumer, lease_seconds=0.3):
        await settled(shop, "index")
        await shop.signals.wait("consumer.idle", shop.signals.counts["consumer.idle"] + 4)
    assert strict.ledger.numbers("o-2") == [1]
    if also_bad:
        assert strict.ledger.numbers("o-1") == []
        assert letters(shop) == [("discarded", 1), ("parked", 1), ("waiting", 0), ("waiting", 0)]
    else:
        assert strict.ledger.numbers("o-1") == [1, 2, 3]
        assert letters(shop) == [("discarded", 1), ("resolved", 0), ("resolved", 0), ("resolved", 0)]


async def test_a_relaxed_consumer_does_not_wait(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 0:
            raise ValueError("bad")

    place_in_log(shop, *numbered(3))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [1, 2]


async def test_a_strict_consumer_behind_a_relaxed_bus_is_refused(shop: Shop) -> None:
    strict = Strict(shop)
    with pytest.raises(DeclarationError, match=r"declare Outbox\(ordering='strict'\)"):
        Dispatcher(shop.outbox, shop.database, [strict.consumer])
