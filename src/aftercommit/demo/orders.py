"""A small order service: its events, its tables, a consumer that keeps totals, and simulated customers.

Orders are rows of `demo_shop.orders`. Each change publishes its event in the same transaction, and `customer-totals`
adds them up. Now and then the bank is busy: the handler fails and is retried, and the totals are still right.
"""

import random
import zlib
from dataclasses import dataclass
from typing import Any

import psycopg

from aftercommit.application import Application
from aftercommit.backoff import Exponential
from aftercommit.event.correlation import correlation
from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from aftercommit.postgres.commits import committed, committed_async
from aftercommit.postgres.database import Database
from aftercommit.postgres.resilience import DatabaseService, close_quietly
from aftercommit.service import Probe

outbox = Outbox("demo_orders", scope={"customer_id": str})

CUSTOMERS = ("ada", "edsger", "grace", "barbara", "donald", "leslie", "margaret", "niklaus")
# For one payment in so many, the bank is busy once or twice.
BUSY_ONE_IN = 20


@outbox.event("order.placed", aggregate="order", key="order_id")
@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """A customer placed an order."""

    order_id: str
    items: int
    amount_cents: int


@outbox.event("order.paid", aggregate="order", key="order_id")
@dataclass(frozen=True, slots=True)
class OrderPaid:
    """An order was paid."""

    order_id: str
    amount_cents: int


@outbox.event("order.shipped", aggregate="order", key="order_id")
@dataclass(frozen=True, slots=True)
class OrderShipped:
    """An order left the warehouse."""

    order_id: str


@outbox.event("order.cancelled", aggregate="order", key="order_id")
@dataclass(frozen=True, slots=True)
class OrderCancelled:
    """An order was cancelled before it was paid."""

    order_id: str
    reason: str


class BankIsBusy(Exception):
    """The bank did not answer in time."""


totals = outbox.consumer("customer-totals", backoff=Exponential(base=0.5, maximum=10.0), start="earliest")


@totals.on(OrderPlaced)
async def count_order(event: Event[OrderPlaced], connection: psycopg.AsyncConnection[Any]) -> None:
    """Count an order."""
    await _add(connection, event.scope["customer_id"], placed=1)


@totals.on(OrderPaid)
async def add_payment(event: Event[OrderPaid], connection: psycopg.AsyncConnection[Any]) -> None:
    """Add a payment, if the bank confirms it."""
    await _add(connection, event.scope["customer_id"], paid=1, paid_cents=event.payload.amount_cents)
    # After the write, to show that a failed attempt is rolled back.
    if event.attempt <= bank_failures(event.payload.order_id):
        raise BankIsBusy(f"the bank did not confirm the payment of order {event.payload.order_id}")


@totals.on(OrderShipped)
async def count_shipment(event: Event[OrderShipped], connection: psycopg.AsyncConnection[Any]) -> None:
    """Count a shipment."""
    await _add(connection, event.scope["customer_id"], shipped=1)


@totals.on(OrderCancelled)
async def count_cancellation(event: Event[OrderCancelled], connection: psycopg.AsyncConnection[Any]) -> None:
    """Count a cancelled order."""
    await _add(connection, event.scope["customer_id"], cancelled=1)


def bank_failures(order_id: str) -> int:
    """How often the bank is busy for this order: mostly 0, sometimes 1 or 2, and always the same."""
    draw = zlib.crc32(order_id.encode())
    return 0 if draw % BUSY_ONE_IN else 1 + (draw // BUSY_ONE_IN) % 2


async def _add(connection: psycopg.AsyncConnection[Any], customer_id: str, **amounts: int) -> None:
    values = {name: amounts.get(name, 0) for name in ("placed", "paid", "paid_cents", "shipped", "cancelled")}
    await connection.execute(_ADD_TO_TOTALS, {"customer_id": customer_id, **values})


_ADD_TO_TOTALS = """
    insert into demo_shop.customer_totals as total (customer_id, placed, paid, paid_cents, shipped, cancelled)
    values (%(customer_id)s, %(placed)s, %(paid)s, %(paid_cents)s, %(shipped)s, %(cancelled)s)
    on conflict (customer_id) do update
    set placed = total.placed + excluded.placed, paid = total.paid + excluded.paid,
        paid_cents = total.paid_cents + excluded.paid_cents, shipped = total.shipped + excluded.shipped,
        cancelled = total.cancelled + excluded.cancelled
"""

_TABLES = """
    select pg_advisory_xact_lock(hashtext('demo_shop'));
    create schema if not exists demo_shop;
    create table if not exists demo_shop.orders (
        number bigint generated always as identity primary key,
        customer_id text not null,
        items integer not null,
        amount_cents bigint not null,
        status text not null default 'placed' check (status in ('placed', 'paid', 'shipped', 'cancelled'))
    );
    create index if not exists orders_open on demo_shop.orders (number) where status in ('placed', 'paid');
    create table if not exists demo_shop.customer_totals (
        customer_id text primary key,
        placed bigint not null,
        paid bigint not null,
        paid_cents bigint not null,
        shipped bigint not null,
        cancelled bigint not null
    );
"""

_PLACE = """
    insert into demo_shop.orders (customer_id, items, amount_cents) values (%s, %s, %s) returning number
"""

_OLDEST_OPEN = """
    select number, customer_id, amount_cents, status from demo_shop.orders
    where status in ('placed', 'paid') order by number limit 1 for update skip locked
"""


def create_tables(connection: psycopg.Connection[Any]) -> None:
    """Create the tables of the service, if they do not exist."""
    with committed(connection):
        connection.execute(_TABLES)


class Trickle(DatabaseService):
    """Simulates customers: places orders and moves old ones on, `rate` steps per second, until stopped."""

    name = "trickle"

    def __init__(self, database: Database, *, rate: float = 6.0, seed: int = 7, probe: Probe | None = None) -> None:
        """The same seed gives the same orders."""
        super().__init__(probe)
        self._database = database
        self._rate = rate
        self._random = random.Random(seed)

    async def session(self) -> None:
        """Work on one connection."""
        connection = await self._database.connect(autocommit=False)
        try:
            self.session_is_up()
            while not self.stopping.is_set():
                await self.step(connection)
                await self.reach("trickle.stepped")
                # Exponential, like the arrival of real customers.
                await self.pause(self._random.expovariate(self._rate))
        finally:
            await close_quietly(connection)

    async def step(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """One transaction: a new order, or the next step of the oldest open one."""
        async with committed_async(connection):
            # Two steps of three are for open orders, so that all of them are shipped or cancelled in time.
            if self._random.random() < 1 / 3 or not await self._move_on(connection):
                await self._place(connection)

    async def _place(self, connection: psycopg.AsyncConnection[Any]) -> None:
        customer, items = self._random.choice(CUSTOMERS), self._random.randint(1, 5)
        amount = items * self._random.randint(199, 9999)
        row = await (await connection.execute(_PLACE, (customer, items, amount))).fetchone()
        assert row is not None
        await _publish(connection, row[0], customer, OrderPlaced(str(row[0]), items, amount))

    async def _move_on(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        row = await (await connection.execute(_OLDEST_OPEN)).fetchone()
        if row is None:
            return False
        number, customer, amount, status = row
        event: OrderPaid | OrderShipped | OrderCancelled
        if status == "paid":
            event, status = OrderShipped(str(number)), "shipped"
        elif self._random.random() < 0.1:
            event, status = OrderCancelled(str(number), "changed their mind"), "cancelled"
        else:
            event, status = OrderPaid(str(number), amount), "paid"
        await connection.execute("update demo_shop.orders set status = %s where number = %s", (status, number))
        await _publish(connection, number, customer, event)
        return True


async def _publish(connection: psycopg.AsyncConnection[Any], number: int, customer_id: str, event: Any) -> None:
    with correlation(f"order-{number}"):
        await outbox.publish(connection, event, customer_id=customer_id)


application = Application(
    about=(
        "the order example (aftercommit.demo.orders)\n"
        "  now and then the bank is busy: a payment fails and is retried automatically"
    ),
    outboxes=(outbox,),
    create_tables=create_tables,
    traffic=lambda database, rate: [Trickle(database, rate=rate)] if rate > 0 else [],
)
