"""A connection is handed out ready, or not at all."""

import asyncio
from typing import Any

import psycopg
import pytest

from aftercommit.postgres import database as database_module
from tests.shop import Shop


async def test_whoever_is_cancelled_while_connecting_leaves_no_connection_behind(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that is stopped may be opening one at that moment."""
    asked: asyncio.Future[psycopg.AsyncConnection[Any]] = asyncio.get_running_loop().create_future()

    async def never_answers(connection: psycopg.AsyncConnection[Any]) -> bool:
        asked.set_result(connection)
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(database_module, "_is_direct", never_answers)
    connecting = asyncio.create_task(shop.database.connect())
    connection = await asked
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert connection.closed
