"""A connection is handed out ready, or not at all."""

import asyncio
from typing import Any

import psycopg
import pytest

from aftercommit.postgres import database as database_module
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay
from aftercommit.relay.transports import LogTransport
from tests.support.shop import Shop


async def test_whoever_is_cancelled_while_connecting_leaves_no_connection_behind(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that is stopped may be opening one at that moment."""
    asked: asyncio.Future[psycopg.AsyncConnection[Any]] = asyncio.get_running_loop().create_future()

    async def never_answers(connection: psycopg.AsyncConnection[Any]) -> bool:
        asked.set_result(connection)
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(database_module, "_session", never_answers)
    connecting = asyncio.create_task(shop.database.connect())
    connection = await asked
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert connection.closed


@pytest.mark.contract("E8")
async def test_the_engine_runs_without_the_just_in_time_compiler_of_the_server(shop: Shop) -> None:
    """Servers that can compile did so for every append, which took seconds. Embedded servers cannot, so ask."""
    async with await shop.database.connect() as connection:
        row = await (await connection.execute("show jit")).fetchone()

    assert row == ("off",)
    with shop.database.connect_sync(autocommit=False) as blocking:
        blocking.rollback()
        assert blocking.execute("show jit").fetchone() == ("off",)


class Remembering(Database):
    """Keeps in mind what it has handed out."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.handed_out: list[psycopg.AsyncConnection[Any]] = []

    async def connect(
        self, *, autocommit: bool = True, listen: bool = False, bounded: bool = False
    ) -> psycopg.AsyncConnection[Any]:
        connection = await super().connect(autocommit=autocommit, listen=listen, bounded=bounded)
        self.handed_out.append(connection)
        return connection


async def test_a_relay_that_ends_while_a_carrier_makes_itself_ready_leaves_no_connection_behind(shop: Shop) -> None:
    database = Remembering(shop.dsn)
    relay = Relay(shop.outbox, database, LogTransport())
    relay._connections._carrying._opening = b"select pg_sleep(60)"
    running = asyncio.create_task(relay.run())
    await shop.value_becomes(
        "select count(*)::int from pg_stat_activity "
        "where datname = current_database() and state = 'active' and query = 'select pg_sleep(60)'",
        1,
    )
    running.cancel()
    await asyncio.wait({running})
    assert [connection for connection in database.handed_out if not connection.closed] == []
