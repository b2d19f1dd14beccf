"""What the harness measures must not depend on what else it does to the database."""

import asyncio

import psycopg
import pytest

from tests.faults import questions
from tests.faults.overseer import Overseer
from tests.faults.questions import APPLICATION

TABLES = """
    create schema book; create table book.head as select 7 as position;
    create table book.consumer as select false as paused;
    create schema post; create table post.head as select 9 as position
"""
WAITS = "select from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"


async def test_a_look_does_not_wait_behind_an_order_that_waits_for_somebody_stopped(
    database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(questions, "PATIENCE", 600.0)
    overseer = Overseer(database, takeover_limit=2.0)
    with psycopg.connect(database, autocommit=True) as eyes, psycopg.connect(database) as stopped:
        eyes.execute(TABLES)
        stopped.execute("update book.consumer set paused = paused")
        order = asyncio.ensure_future(overseer.ask("update book.consumer set paused = true"))
        async with asyncio.timeout(60):
            while eyes.execute(WAITS, [APPLICATION]).fetchone() is None:
                assert not order.done(), "the row is not held"
                await asyncio.sleep(0)
            heads = await overseer.heads()
        assert not order.done(), "the order was not waiting any more"
        assert heads == {"book": 7, "post": 9}
        stopped.rollback()
        assert await order == []
    await overseer.close()
