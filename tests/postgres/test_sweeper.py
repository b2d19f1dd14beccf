"""The sweeper beside a relay: whoever takes its turn, or its relay, away from it stops it within one statement."""

import asyncio
import threading
from typing import Any

import pytest

from aftercommit.relay import sweeper
from aftercommit.schema import retention
from aftercommit.schema.retention import Round
from aftercommit.service import Waker
from tests.support.shop import Shop

OLD = (
    "insert into processed_events select gen_random_uuid(), 'index', now() - interval '40 days' "
    "from generate_series(1, 5000)"
)
LEFT = "select count(*) from processed_events"


@pytest.fixture(autouse=True)
def page_by_page(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAGES_AT_ONCE", 1)
    monkeypatch.setattr(sweeper, "ROUND_INTERVAL", 0.0)
    monkeypatch.setattr(sweeper, "ROUND_SECONDS", 60.0)
    shop.rows(OLD)


def test_a_round_whose_turn_has_passed_to_another_program_ends(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    step = Round._step

    def taken_over(self: Round, *arguments: Any) -> int:
        steps.append(1)
        shop.rows("update upkeep set leased_until = now() + interval '1 hour' where task = 'sweep'")
        return step(self, *arguments)

    # So short that it is asked for before every statement.
    monkeypatch.setattr(sweeper, "ROUND_LEASE", 0.0001)
    monkeypatch.setattr(Round, "_step", taken_over)
    sweeper.Sweeper(shop.outbox.shape, shop.database).sweep()

    assert steps == [1]
    assert 0 < shop.value(LEFT) < 5000
    assert shop.value("select leased_until > now() from upkeep where task = 'sweep'"), "it is the other one's"


async def test_a_sweeper_that_is_cancelled_does_one_statement_more(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    steps: list[int] = []
    step = Round._step

    def held(self: Round, *arguments: Any) -> int:
        steps.append(1)
        reached.set()
        assert go_on.wait(60)
        return step(self, *arguments)

    monkeypatch.setattr(Round, "_step", held)
    keeping = asyncio.create_task(sweeper.Sweeper(shop.outbox.shape, shop.database).keep(Waker()))
    assert await asyncio.to_thread(reached.wait, 30)
    keeping.cancel()
    await asyncio.wait({keeping})
    go_on.set()
    await shop.value_becomes("select count(*) from upkeep where task = 'sweep' and leased_until is not null", 0)

    assert steps == [1]
    assert 0 < shop.value(LEFT) < 5000
