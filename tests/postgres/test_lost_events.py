"""Retention was told to drop what a consumer had not read: it is said by its worker and by `status`, and passed by."""

import logging
from typing import Any

import pytest

from aftercommit.operate.health import HealthLimits, problems
from aftercommit.operate.overview import overview
from tests.support.consuming import append, checkpoint, handle_all, numbered, place_in_log
from tests.support.repairing import Fragile
from tests.support.shop import OrderPaid, OrderPlaced, Shop

LOST = "consumer_events_lost"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, "aftercommit.consumer")
    return lambda: [vars(record) for record in caplog.records if record.message == LOST]


async def begun(shop: Shop) -> Fragile:
    """A consumer with a checkpoint at the beginning of the log."""
    fragile = Fragile(shop, name="index")
    await fragile.work()
    assert checkpoint(shop, "index") == 0
    return fragile


@pytest.mark.parametrize("page_size", [1000, 2, 1])
async def test_a_worker_says_once_how_many_events_are_gone_and_handles_the_rest(
    shop: Shop, warned: Any, page_size: int
) -> None:
    fragile = await begun(shop)
    place_in_log(shop, *numbered(10))
    shop.rows("delete from log where position <= 7")

    await handle_all(shop, fragile.consumer, page_size=page_size)

    (line,) = warned()
    assert (line["consumer"], line["position"], line["lost"]) == ("index", 0, 7)
    assert "publish them again" in line["remedy"]
    assert fragile.ledger.numbers() == [7, 8, 9]


async def test_a_worker_before_an_empty_log_goes_on_at_its_head(shop: Shop, warned: Any) -> None:
    fragile = await begun(shop)
    place_in_log(shop, *numbered(10))
    shop.rows("delete from log")

    await handle_all(shop, fragile.consumer, page_size=3)
    place_in_log(shop, ("o-1", 10))
    await handle_all(shop, fragile.consumer)

    assert [line["lost"] for line in warned()] == [10]
    assert fragile.ledger.numbers() == [10]


async def test_events_of_other_types_are_not_taken_for_lost(shop: Shop, warned: Any) -> None:
    fragile = await begun(shop)
    shop.publish(*(OrderPaid("o-1", amount) for amount in range(5)), OrderPlaced("o-1", 5), OrderPaid("o-1", 6))
    append(shop)

    await handle_all(shop, fragile.consumer, page_size=2)

    assert warned() == []
    assert fragile.ledger.numbers() == [5]


@pytest.mark.parametrize(("dropped", "lost"), [(0, 0), (4, 4), (10, 10)])
async def test_status_counts_what_is_gone_also_when_nothing_is_left(shop: Shop, dropped: int, lost: int) -> None:
    await begun(shop)
    place_in_log(shop, *numbered(10))
    shop.rows("delete from log where position <= %s", [dropped])
    with shop.connect(autocommit=True) as connection:
        seen = overview(connection, shop.outbox.shape)

    (consumer,) = seen.consumers
    assert (consumer.lag, consumer.lost) == (10, lost)
    said = [str(problem) for problem in problems(seen, HealthLimits()) if "no longer in the log" in str(problem)]
    assert len(said) == (1 if lost else 0)
