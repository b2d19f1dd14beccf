"""Operators, workers and a relay at one another's heels; afterwards nothing is lost, doubled or left over."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from aftercommit.backoff import Constant
from aftercommit.errors import RepairError
from aftercommit.event.envelope import Event
from aftercommit.operate import Selection
from aftercommit.outbox.handlers import Consumer
from tests.support.consuming import WRITE, Ledger, bus_on, letters, place_in_log, row_of, worker_on
from tests.support.repairing import desk
from tests.support.shop import OrderPlaced, Shop, shop_outbox

EVENTS = 90
ORDERS = [(f"o-{number % 7}", number) for number in range(EVENTS)]
OPERATORS = 5
DEEDS = 10
PARKED = Selection(statuses=("parked",))
AT_REST = ("parked", "discarded")
UNSETTLED = """
    select (select count(*) from outbox where status = 'pending')
         + (select count(*) from dead_letter_events where status in ('retrying', 'waiting', 'parked'))
         + (select count(*) from consumer, head where consumer.position < head.position)
"""
EVERY_DISCARD = """
    select item.event_id, item.consumer_name from operation_event item
    join operation on operation.id = item.operation_id
    where operation.kind = 'discard' and item.state = 'done'
"""


class Stage:
    """Consumers whose handlers fail now and then while it storms, and what they have written."""

    def __init__(self, shop: Shop, names: Sequence[str], seed: int) -> None:
        """Stormy."""
        self.shop = shop
        self.names = names
        self.chance = random.Random(seed)
        self.stormy = True
        self.ledger = Ledger(shop)
        self.consumers = [self._declare(name) for name in names]

    def _declare(self, name: str) -> Consumer:
        options: dict[str, Any] = {"retry_count": 0, "backoff": Constant(0.01), "ordering": "strict", "concurrency": 3}
        consumer = self.shop.outbox.consumer(name, start="earliest", **options)

        @consumer.on(OrderPlaced)
        async def handle(event: Event[OrderPlaced], connection: Any) -> None:
            await connection.execute(WRITE, row_of(event, name))
            await asyncio.sleep(0)
            if self.stormy and self.chance.random() < 0.5:
                raise ValueError("a bad day")

        return consumer

    async def open(self) -> None:
        """One of every deed, while there are letters at rest for it and nobody is faster."""
        first, second, *_ = (await desk(self.shop).letters(PARKED)).letters
        await self.edit_one(first.event_id, first.consumer, "the first")
        await desk(self.shop).discard(Selection(event_ids=(second.event_id,)), reason="had enough")
        await self.drive(self.chance, Selection(statuses=AT_REST), None)

    async def operate(self, seed: int) -> None:
        """What an operator does who has no plan."""
        chance = random.Random(seed)
        for _ in range(DEEDS):
            deed = chance.choice([self.retry, self.discard, self.edit, self.replay_letters, self.replay_log])
            try:
                await deed(chance)
            except RepairError:
                # Refused, with a reason: somebody else was faster.
                continue

    async def retry(self, chance: random.Random) -> None:
        """Of one consumer all, or of all consumers those that were given up too."""
        one = Selection(consumer=chance.choice(self.names))
        await desk(self.shop).retry(chance.choice([one, Selection(statuses=AT_REST)]))

    async def discard(self, chance: random.Random) -> None:
        """Of one aggregate."""
        order_id = chance.choice(ORDERS)[0]
        consumer = chance.choice([None, *self.names])
        chosen = Selection(aggregate_id=order_id, statuses=("parked", "waiting"), consumer=consumer)
        await desk(self.shop).discard(chosen, reason="had enough")

    async def edit(self, chance: random.Random) -> None:
        """One letter, if there is one at rest."""
        page = await desk(self.shop).letters(Selection(statuses=AT_REST), limit=20)
        if page.letters:
            letter = chance.choice(page.letters)
            await self.edit_one(letter.event_id, letter.consumer, f"edited {chance.random()}")

    async def edit_one(self, event_id: UUID, consumer: str, note: str) -> None:
        """Give it another note."""
        (detail,) = await desk(self.shop).letter(event_id, consumer)
        payload = {**json.loads(detail.payload), "note": note}
        await desk(self.shop).edit(event_id, json.dumps(payload).encode(), consumer=consumer)

    async def replay_letters(self, chance: random.Random) -> None:
        """All that is at rest, and half of the times it is broken off."""
        await self.drive(chance, Selection(statuses=AT_REST), None)

    async def replay_log(self, chance: random.Random) -> None:
        """All that is published, to one consumer: what it has handled is skipped."""
        await self.drive(chance, Selection(from_position=1), chance.choice(self.names))

    async def drive(self, chance: random.Random, selection: Selection, to: str | None) -> None:
        """To the end, or until somebody thinks better of it."""
        operation = await desk(self.shop).start(selection, to=to)
        driving = asyncio.create_task(desk(self.shop).drive(operation.id))
        if chance.random() < 0.5:
            await desk(self.shop).abort(operation.id)
        await asyncio.gather(driving, return_exceptions=True)
        await desk(self.shop).drive(operation.id)

    async def calm(self) -> None:
        """From now on everything is taken, and what is parked is retried until nothing is."""
        self.stormy = False
        async with asyncio.timeout(200):
            while self.shop.value(UNSETTLED):
                await desk(self.shop).retry(PARKED)
                await asyncio.sleep(0.1)

    def check(self, ids: Sequence[UUID]) -> None:
        """Once or given up; nothing open; in order, but for what was given up at some time."""
        written: dict[tuple[str, UUID], int] = {}
        orders: dict[tuple[str, str], list[int]] = {}
        given_up = {(event_id, name) for event_id, name in self.shop.rows(EVERY_DISCARD)}
        for name, event_id, order_id, number in self.shop.rows(
            "select consumer, event_id, order_id, number from public.ledger order by id"
        ):
            written[name, event_id] = written.get((name, event_id), 0) + 1
            if (event_id, name) not in given_up:
                orders.setdefault((name, order_id), []).append(number)
        known = {
            (name, event_id): status for name, event_id, status in letters(self.shop, "consumer_name, event_id, status")
        }
        for name in self.names:
            for event_id in ids:
                once = 0 if known.get((name, event_id)) == "discarded" else 1
                assert written.get((name, event_id), 0) == once, (name, event_id, known.get((name, event_id)))
        assert set(known.values()) <= {"resolved", "discarded"}
        assert self.shop.rows("select id, status from outbox") == []
        assert self.shop.rows("select id, status from operation where finished_at is null") == []
        for key, numbers in orders.items():
            assert numbers == sorted(numbers), key


@asynccontextmanager
async def log_stage(shop: Shop, seed: int) -> AsyncIterator[tuple[Stage, Sequence[UUID]]]:
    """A worker on the log."""
    stage = Stage(shop, ["index"], seed)
    ids = place_in_log(shop, *ORDERS)
    async with worker_on(shop, stage.consumers[0]):
        yield stage, ids


@asynccontextmanager
async def bus_stage(shop: Shop, seed: int) -> AsyncIterator[tuple[Stage, Sequence[UUID]]]:
    """Two consumers behind the bus."""
    shop.outbox = shop_outbox(max_attempts=1, ordering="strict")
    stage = Stage(shop, ["first", "second"], seed)
    ids = shop.publish(*(OrderPlaced(order_id, number) for order_id, number in ORDERS))
    async with bus_on(shop):
        yield stage, ids


@pytest.mark.thorough
@pytest.mark.parametrize("staged", [log_stage, bus_stage], ids=["log", "bus"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_every_event_is_handled_once_or_given_up_whatever_operators_do(
    shop: Shop, staged: Any, seed: int
) -> None:
    async with staged(shop, seed) as (stage, ids):
        await shop.value_becomes("select count(*) > 2 from dead_letter_events where status = 'parked'", True)
        await stage.open()
        await asyncio.gather(*(stage.operate(seed * 100 + number) for number in range(OPERATORS)))
        await stage.calm()
        stage.check(ids)
        kinds = {kind for (kind,) in shop.rows("select distinct kind from operation")}
        assert kinds == {"retry", "discard", "edit", "replay"}, "a run in which too little happened shows nothing"
