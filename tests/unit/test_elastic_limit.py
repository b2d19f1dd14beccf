"""A limit that one who hangs cannot turn into a standstill."""

import asyncio

import pytest

from aftercommit.postgres import elastic_limit
from aftercommit.postgres.elastic_limit import ElasticLimit


def never_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_limit, "STUCK_SECONDS", 3600.0)


async def waiting(limit: ElasticLimit, *owners: object) -> list["asyncio.Task[None]"]:
    """Tasks that wait for a place, in this order."""
    tasks = [asyncio.create_task(limit.acquire(owner)) for owner in owners]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


async def test_those_who_wait_go_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    never_stuck(monkeypatch)
    limit = ElasticLimit(1)
    await limit.acquire()
    first, second = await waiting(limit, None, None)
    limit.release()
    await first
    assert not second.done()
    limit.release()
    await second
    limit.release()
    assert limit.used == 0


async def test_an_owner_with_fewer_places_goes_before_the_rest_of_a_long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    never_stuck(monkeypatch)
    limit = ElasticLimit(2)
    await limit.acquire("busy")
    await limit.acquire("busy")
    *busy, other = await waiting(limit, "busy", "busy", "busy", "other")
    limit.release("busy")
    await other
    assert not any(task.done() for task in busy)
    limit.release("other")
    await busy[0]
    for task in busy:
        task.cancel()


async def test_who_is_cut_off_while_a_place_is_granted_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    never_stuck(monkeypatch)
    limit = ElasticLimit(1)
    await limit.acquire("a")
    cut, other = await waiting(limit, "b", "c")
    limit.release("a")
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    await asyncio.wait_for(other, 60)
    limit.release("c")
    assert limit.used == 0


async def test_who_is_cut_off_while_waiting_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    never_stuck(monkeypatch)
    limit = ElasticLimit(1)
    await limit.acquire()
    (cut,) = await waiting(limit, None)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    limit.release()
    assert limit.used == 0
    await asyncio.wait_for(limit.acquire(), 60)


async def test_where_nothing_moves_an_owner_without_a_place_gets_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_limit, "STUCK_SECONDS", 0.01)
    limit = ElasticLimit(2)
    await limit.acquire("hangs")
    await limit.acquire("hangs")
    more, other, another = await waiting(limit, "hangs", "other", "another")
    await asyncio.wait_for(asyncio.gather(other, another), 60)
    assert not more.done()
    assert limit.used == 4
    limit.release("other")
    limit.release("another")
    await asyncio.sleep(0)
    assert not more.done()
    limit.release("hangs")
    await asyncio.wait_for(more, 60)
    assert limit.used == 2
