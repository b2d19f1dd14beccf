"""What tests of repair share: consumers that fail until they are mended, letters of every kind of owner, replays."""

from typing import Any

from aftercommit.backoff import Constant
from aftercommit.event.envelope import Event
from aftercommit.operate import Operation, Repair, Selection
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.shape import Shape
from tests.support.consuming import Ledger, handle_all
from tests.support.shop import OrderPlaced, Shop

BULK = """
    with events as (
        select gen_random_uuid() as id, number, 'o-' || number %% %(aggregates)s as order_id,
               (select position from shop.head) + row_number() over (order by number) as position
        from generate_series(0, %(count)s - 1) number
    ),
    tip as (update shop.head set position = position + %(count)s returning ts),
    logged as (
        insert into shop.log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,
                              occurred_at, correlation_id, payload, retry_count, created_at, tenant_id)
        select position, ts, id, position, 0, 'order', order_id, 'order.placed', 1, now(), id::text,
               json_build_object('order_id', order_id, 'number', number, 'note', ''), 0, now(), 'acme'
        from events, tip
    ),
    letters as (
        insert into shop.dead_letter_events (
            event_id, consumer_name, status, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
            correlation_id, payload, seq, position, created_at, error, error_class, attempts, tenant_id
        )
        select id, %(consumer)s, 'parked', 'order.placed', 1, 'order', order_id, now(), id::text,
               json_build_object('order_id', order_id, 'number', number, 'note', ''), position, position, now(),
               'down', 'Down', 4, 'acme'
        from events
    )
    insert into shop.consumer (name, position, declared_by)
    select %(consumer)s, max(position), 'order.placed' from events
    on conflict (name) do update set position = excluded.position
"""


class Fragile:
    """A consumer that refuses some orders until it is mended."""

    def __init__(
        self, shop: Shop, *bad: int, name: str = "index", ledger: Ledger | None = None, **options: Any
    ) -> None:
        """Refuse these numbers."""
        self.shop = shop
        self.bad = set(bad)
        self.name = name
        self.ledger = ledger or Ledger(shop)
        options = {"retry_count": 0, "backoff": Constant(0.0), **options}
        self.consumer: Consumer = shop.outbox.consumer(name, **options)
        self.consumer.on(OrderPlaced)(self.handle)

    async def handle(self, event: Event[OrderPlaced], connection: Any) -> None:
        """Write, unless it is refused."""
        if event.payload.number in self.bad:
            raise ValueError(f"order {event.payload.number} is bad")
        await self.ledger.write(event, connection)

    def mend(self) -> None:
        """From now on everything is taken."""
        self.bad.clear()

    async def work(self) -> None:
        """Run a worker until it has nothing to do."""
        await handle_all(self.shop, self.consumer)


def desk(shop: Shop, *, declared: bool = True) -> Repair:
    """The repair desk of the shop; without the declaration it knows the schema's name alone."""
    return Repair(shop.outbox if declared else Shape("shop"), shop.database, by="tester")


async def replay(shop: Shop, selection: Selection, **options: Any) -> Operation:
    """Start and drive."""
    operation = await desk(shop).start(selection, **options)
    return await desk(shop).drive(operation.id)


def bulk_letters(shop: Shop, consumer: str, count: int, aggregates: int = 100) -> None:
    """So many parked letters of a log consumer, made in one statement."""
    with shop.connect(autocommit=True) as connection:
        connection.execute(BULK.encode(), {"consumer": consumer, "count": count, "aggregates": aggregates})
        connection.execute("analyze shop.dead_letter_events, shop.log")


def outbox_rows(shop: Shop) -> list[tuple[Any, ...]]:
    """What is left in the outbox: id, status, attempts."""
    return shop.rows("select id, status, retry_count from outbox order by seq")


def orders_in_ledger(ledger: Ledger) -> dict[str, list[int]]:
    """For each order the numbers as they were written."""
    found: dict[str, list[int]] = {}
    for order_id, number in ledger.shop.rows("select order_id, number from public.ledger order by id"):
        found.setdefault(order_id, []).append(number)
    return found


def forget_inbox_before(shop: Shop, moment: str) -> None:
    """Retention has removed what was handled before this moment."""
    shop.rows(
        "with gone as (delete from processed_events where processed_at < %s) "
        "update upkeep set horizon = %s where task = 'inbox'",
        (moment, moment),
    )
