"""The Python client against server processes that are killed."""

import asyncio
import signal
from contextlib import ExitStack, aclosing
from itertools import cycle
from urllib.parse import urlsplit

import pytest

from aftercommit.client import FeedEvent, FileBookmark, follow
from tests.clients.front import front
from tests.clients.test_follow import QUICK
from tests.support.investigations import ROOT, Service, serving, some

# Servers begin within it.
PATIENCE = 240.0


@pytest.mark.thorough
@pytest.mark.contract("L11", "L13")
async def test_a_server_that_is_killed_and_replaced_loses_and_repeats_nothing(investigations: Service, tmp_path):
    service = investigations
    key = await asyncio.to_thread(service.open)
    with ExitStack() as servers:
        first, url = await asyncio.to_thread(servers.enter_context, serving(service.dsn, workers=1))
        async with front(url) as gate:
            follower = follow(
                f"{gate.url}{ROOT}/{key}/logs",
                token=lambda: service.token(f"investigation:{key}:read"),
                bookmark=FileBookmark(tmp_path / "place"),
                start="1970-01-01T00:00:00.000Z#000",
                gapless=True,
                pace=QUICK,
            )
            seen: list[FeedEvent] = []
            async with asyncio.timeout(PATIENCE), aclosing(follower.with_gaps()) as items:
                await asyncio.to_thread(service.write, key, *some(20))
                await take_into(seen, items, 20)
                first.send(signal.SIGKILL)
                writing = asyncio.ensure_future(asyncio.to_thread(service.write, key, *some(30)))
                _, other = await asyncio.to_thread(servers.enter_context, serving(service.dsn, workers=2))
                gate.servers = cycle([other])
                await take_into(seen, items, 50)
                await writing

    assert urlsplit(url).port != urlsplit(other).port
    assert [event.number for event in seen] == list(range(1, 51))


async def take_into(seen: list[FeedEvent], items, total: int) -> None:
    while len(seen) < total:
        item = await anext(items)
        assert isinstance(item, FeedEvent), item
        seen.append(item)
