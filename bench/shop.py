"""What is published here: one typed event of about 500 bytes, and the same row as somebody writes it by hand."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import psycopg

from aftercommit import Outbox
from aftercommit.schema import migrate

TENANT: Final = "acme"
# Two schemas from the same migrations: one is ours to publish into, the other is the floor's, table for table the same.
OURS: Final = "bench"
RAW: Final = "bench_raw"
AGGREGATES: Final = 5000
# Time-ordered, as our own ids are: with random ones every index on them would be another.
NEW_ID: Final = "uuidv7()"

NOTE: Final = (
    "Leave it with the neighbours at number 12 if nobody answers, please ring twice, and mind the dog in the yard: he "
    "is friendly but loud. The gate code is the same as last time. We would rather have the delivery before noon, "
    "and the empty crates from the previous order are ready to be taken back."
)
PLACE_ORDER: Final = "insert into public.orders (customer, total) values ({0}, {1})"
INSERT_EVENT: Final = """
    insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id)
    values ({0}, {1}, {2}, {3}, {4}, {5}, {6})
"""
COLUMNS: Final = ("id", "aggregate_type", "aggregate_id", "event_type", "correlation_id", "payload", "tenant_id")
ORDERS_TABLE: Final = """
    create table if not exists public.orders (
        id bigint generated always as identity primary key, customer text not null, total integer not null,
        placed_at timestamptz not null default now()
    )
"""
FILL: Final = """
    insert into {schema}.outbox (
        id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id {names}
    )
    select {new_id}, 'order', 'o-' || mod(n, {aggregates}), 'order.placed', n::text,
           json_build_object(
               'order_id', 'o-' || mod(n, {aggregates}), 'number', n, 'customer', 'customer-' || mod(n, 997),
               'currency', 'EUR', 'total', 12500, 'expedited', false, 'channel', 'web', 'note', %s::text
           ),
           'acme' {values}
    from generate_series(1, %s) n
"""


@dataclass(frozen=True)
class OrderPlaced:
    """A typed event: flat, as most are, and about 500 bytes of JSON."""

    order_id: str
    number: int
    customer: str
    currency: str
    total: int
    expedited: bool
    channel: str
    note: str


EVENTS: Final = [
    OrderPlaced(f"o-{n % AGGREGATES}", n, f"customer-{n % 997}", "EUR", 12500, n % 7 == 0, "web", NOTE)
    for n in range(10_000)
]


def declared(schema: str = OURS) -> Outbox:
    """A new declaration: consumers belong to one."""
    outbox = Outbox(schema, scope={"tenant_id": str})
    outbox.declare("order.placed", OrderPlaced, aggregate="order", key="order_id")
    return outbox


def prepare(dsn: str, *schemas: str) -> None:
    """Migrate the schemas and make the table of the business rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for schema in schemas:
            migrate.up(connection, declared(schema).shape)
        connection.execute(ORDERS_TABLE)


def fill(connection: psycopg.Connection[Any], schema: str, events: int, scopes: Sequence[str] = ()) -> None:
    """A backlog in the outbox, with statistics, and everything on disk that was written before.

    `scopes` are further columns of text; each has so many values as its place in the list, and seven more.
    """
    names = "".join(f", {name}" for name in scopes)
    values = "".join(f", 'value-' || mod(n, {count})" for count, _ in enumerate(scopes, 7))
    statement = FILL.format(schema=schema, aggregates=AGGREGATES, new_id=NEW_ID, names=names, values=values)
    connection.execute(statement.encode(), (NOTE, events))
    connection.execute(f"vacuum analyze {schema}.outbox".encode())
    connection.execute("checkpoint")


def by_hand(event: OrderPlaced) -> tuple[Any, ...]:
    """The row of an event as a careful person makes it: an id, the payload dumped, the columns that need a value."""
    event_id = uuid4()
    return (
        event_id,
        "order",
        event.order_id,
        "order.placed",
        str(event_id),
        json.dumps(vars(event)),
        TENANT,
    )


READY: Final = json.dumps(vars(EVENTS[0]))


def with_ready_payload(event: OrderPlaced) -> tuple[Any, ...]:
    """The same row where the payload is text already: what the database and the driver alone cost."""
    event_id = uuid4()
    return (event_id, "order", event.order_id, "order.placed", str(event_id), READY, TENANT)


def insert_statement(marks: str, schema: str = RAW) -> str:
    """The raw INSERT with a driver's placeholders: `%s`, or `$` for numbered ones."""
    casts = ("uuid", "varchar", "varchar", "varchar", "varchar", "json", "varchar")
    numbered = [f"${n}" if marks == "$" else marks for n in range(1, len(casts) + 1)]
    if marks == "$":
        numbered[5] += "::text"
    return INSERT_EVENT.format(*(f"{mark}::{cast}" for mark, cast in zip(numbered, casts, strict=True)), schema=schema)


def order_statement(marks: str) -> str:
    """The business row's INSERT with a driver's placeholders."""
    return PLACE_ORDER.format("$1", "$2") if marks == "$" else PLACE_ORDER.format(marks, marks)
