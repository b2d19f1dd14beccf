"""deliver_twice(): a handler that is safe passes, and one that is not is found out, with what it did twice."""

from typing import Any
from uuid import uuid4

import pytest

from aftercommit.errors import DeclarationError
from aftercommit.event.envelope import Event
from aftercommit.testing import AsyncWorld, World
from tests.support.shop import OrderPaid, OrderPlaced
from tests.testing.till import LEDGER, write_ledger, write_ledger_blocking


@pytest.mark.thorough
@pytest.mark.parametrize("declare", [write_ledger, write_ledger_blocking])
def test_writes_in_the_handlers_transaction_happen_once(aftercommit_world: World, declare: Any) -> None:
    declare(aftercommit_world.outbox)
    deliveries = aftercommit_world.deliver_twice(
        "ledger", OrderPlaced("o-1"), tenant_id="acme", effects=LEDGER, expected=[("o-1", "")]
    )
    assert (deliveries.before, deliveries.crashed) == ([], [])
    assert deliveries.delivered == deliveries.repeated == deliveries.around == [("o-1", "")]
    assert deliveries.calls == 3
    assert aftercommit_world.drain().handled == (), "the inbox knows the event"
    assert len(aftercommit_world.published()) == 1


def test_an_effect_outside_the_transaction_is_found_out(aftercommit_world: World) -> None:
    mails: list[str] = []

    @aftercommit_world.outbox.on(OrderPlaced, consumer="mail")
    async def send(event: Event[OrderPlaced]) -> None:
        mails.append(event.payload.order_id)

    with pytest.raises(AssertionError, match="without its inbox row") as caught:
        aftercommit_world.deliver_twice(send, OrderPlaced("o-1"), tenant_id="acme", effects=lambda: list(mails))
    assert "once:  ['o-1', 'o-1']\n  twice: ['o-1', 'o-1', 'o-1']" in str(caught.value)
    assert "pass the event_id as an idempotency key" in str(caught.value)


def test_an_effect_that_only_the_crash_repeats_is_found_by_what_is_expected(aftercommit_world: World) -> None:
    mails: list[str] = []

    @aftercommit_world.outbox.on(OrderPlaced, consumer="mail")
    async def send_unless_sent(event: Event[OrderPlaced], connection: Any) -> None:
        sent = await (await connection.execute("select 1 from ledger")).fetchone()
        if sent is None:
            mails.append(event.payload.order_id)
            await connection.execute("insert into ledger (order_id) values ('sent')")

    with pytest.raises(AssertionError, match=r"(?s)\['o-1', 'o-1'\].*expected\n.*after the crash alone: .*\['o-1'\]"):
        aftercommit_world.deliver_twice(
            "mail", OrderPlaced("o-1"), tenant_id="acme", effects=lambda: list(mails), expected=["o-1"]
        )


def test_an_effect_that_knows_the_event_is_safe(aftercommit_world: World) -> None:
    mails: dict[Any, str] = {}

    @aftercommit_world.outbox.on(OrderPlaced, consumer="mail")
    def send(event: Event[OrderPlaced]) -> None:
        mails[event.event_id] = event.payload.order_id

    aftercommit_world.deliver_twice(send, OrderPlaced("o-1"), tenant_id="acme", effects=lambda: list(mails.values()))


def test_a_published_event_may_be_given_by_its_id_or_itself(aftercommit_world: World) -> None:
    write_ledger(aftercommit_world.outbox)
    first, second = aftercommit_world.publish(OrderPlaced("o-1"), OrderPlaced("o-2"), tenant_id="acme")
    aftercommit_world.deliver_twice("ledger", first, effects=LEDGER)
    aftercommit_world.deliver_twice(
        aftercommit_world.outbox.consumers["ledger"], aftercommit_world.published()[1], effects=LEDGER
    )
    with pytest.raises(DeclarationError, match=f"'ledger' has handled order.placed {second} already"):
        aftercommit_world.deliver_twice("ledger", second, effects=LEDGER)
    with pytest.raises(DeclarationError, match="is not in the outbox or the log"):
        aftercommit_world.deliver_twice("ledger", uuid4(), effects=LEDGER)


def test_what_makes_no_sense_is_refused_with_the_remedy(aftercommit_world: World) -> None:
    outbox = aftercommit_world.outbox
    write_ledger(outbox)
    write_ledger(outbox, "fold", inbox=False)
    with pytest.raises(DeclarationError, match=r"'ledger' has no handler that takes order\.paid"):
        aftercommit_world.deliver_twice("ledger", OrderPaid("o-1", 1), tenant_id="acme", effects=LEDGER)
    with pytest.raises(DeclarationError, match=r"inbox=False.*faults\.rewind"):
        aftercommit_world.deliver_twice("fold", OrderPlaced("o-1"), tenant_id="acme", effects=LEDGER)
    with pytest.raises(DeclarationError, match="'nobody' is not declared"):
        aftercommit_world.deliver_twice("nobody", OrderPlaced("o-1"), tenant_id="acme", effects=LEDGER)
    with pytest.raises(DeclarationError, match="is not a handler"):
        aftercommit_world.deliver_twice(print, OrderPlaced("o-1"), tenant_id="acme", effects=LEDGER)


def test_the_handlers_own_error_comes_out(aftercommit_world: World) -> None:
    @aftercommit_world.outbox.on(OrderPlaced, consumer="broken")
    async def fail(event: Event[OrderPlaced]) -> None:
        raise ZeroDivisionError("no price")

    with pytest.raises(ZeroDivisionError, match="no price"):
        aftercommit_world.deliver_twice("broken", OrderPlaced("o-1"), tenant_id="acme", effects=LEDGER)


async def test_in_an_event_loop_the_effects_may_be_awaited(aftercommit_async_world: AsyncWorld) -> None:
    world = aftercommit_async_world
    write_ledger(world.outbox, ordering="strict")

    async def effects() -> Any:
        async with await world.connect() as connection:
            return await (await connection.execute(LEDGER)).fetchall()

    deliveries = await world.deliver_twice("ledger", OrderPlaced("o-1"), tenant_id="acme", effects=effects)
    assert deliveries.around == [("o-1", "")]
