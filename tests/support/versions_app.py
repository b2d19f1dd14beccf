"""The shop in two versions, as `tests.support.versions_app:outbox`: the environment says which one is deployed."""

import os
from dataclasses import dataclass
from typing import Any

import psycopg

from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from tests.support.shop import SCHEMA, SCOPE

VERSION = "SHOP_VERSION"
LEDGER = """
    create table public.handled (id bigint generated always as identity, version int, order_id text, number int)
"""


@dataclass(frozen=True)
class Placed:
    """An order was placed."""

    order_id: str
    number: int


def declared(version: int, **options: Any) -> Outbox:
    """The outbox as the code of this version declares it; its consumer writes down what it has handled."""
    ordering = {"ordering": options["ordering"]} if "ordering" in options else {}
    outbox = Outbox(SCHEMA, scope=SCOPE, **ordering)
    outbox.declare("order.placed", Placed, version=version, aggregate="order", key="order_id")
    if version == 2:
        outbox.upcast("order.placed", from_version=1)(lambda payload: payload)

    async def handle(event: Event[Placed], connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(
            "insert into public.handled (version, order_id, number) values (%s, %s, %s)",
            (version, event.payload.order_id, event.payload.number),
        )

    outbox.consumer("index", **options).on(Placed)(handle)
    return outbox


outbox = declared(int(os.environ.get(VERSION, "1")))
