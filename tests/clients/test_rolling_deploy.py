"""Both clients while old and new code serve the same feed: nothing is skipped, nothing comes twice."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import cycle

import pytest

from aftercommit.client import FeedEvent, follow
from tests.clients.front import Front, front
from tests.clients.test_follow import QUICK
from tests.feed.journal import Journal
from tests.feed.newer import write_newer
from tests.feed.servers import program
from tools import web

pytestmark = [pytest.mark.contract("E4", "L13"), pytest.mark.timeout(240)]

PATIENCE = 200.0
BEGINNING = "1970-01-01T00:00:00.000Z#000"
LINES = 40


@asynccontextmanager
async def half_deployed(journal: Journal) -> AsyncIterator[tuple[Front, Callable[[], Awaitable[None]]]]:
    """An old and a new server process behind one address, which takes them in turn; and the end of the deployment."""
    async with AsyncExitStack() as stack:
        old, new = program(journal, 1), program(journal, 1, newer=True)
        process, old_url = await asyncio.to_thread(old.__enter__)
        stack.push_async_callback(asyncio.to_thread, old.__exit__, None, None, None)
        _, new_url = await asyncio.to_thread(new.__enter__)
        stack.push_async_callback(asyncio.to_thread, new.__exit__, None, None, None)
        gate = await stack.enter_async_context(front(old_url, new_url))

        async def finish() -> None:
            gate.servers = cycle([new_url])
            process.terminate()

        yield gate, finish


async def write_in_turn(journal: Journal) -> None:
    """Lines by old and by new code, a few at a time."""
    for number in range(1, LINES + 1, 2):
        await journal.write(f"old {number}")
        await write_newer(journal, f"new {number + 1}")


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [True, False])
async def test_the_python_client_skips_and_repeats_nothing(journal: Journal, stream: bool):
    async with asyncio.timeout(PATIENCE), half_deployed(journal) as (gate, finish):
        follower = follow(
            f"{gate.url}/books/b-1/lines",
            token=journal.token(),
            start=BEGINNING,
            gapless=True,
            pace=QUICK,
            stream=stream,
        )
        seen: list[FeedEvent] = []
        async with aclosing(follower.with_gaps()) as items:
            await journal.write("first")
            await take(seen, items, 1)
            writing = asyncio.ensure_future(write_in_turn(journal))
            await take(seen, items, LINES)
            await writing
            await finish()
            await write_newer(journal, "last")
            await take(seen, items, LINES + 2)
    assert [event.number for event in seen] == list(range(1, LINES + 3))
    moods = ["unknown", *["unknown", "glad"] * (LINES // 2), "glad"]
    # A line of the old version may have been shown by either.
    assert all(event.data.get("mood", "unknown") == mood for event, mood in zip(seen, moods, strict=True))


async def take(seen: list[FeedEvent], items, total: int) -> None:
    while len(seen) < total:
        item = await anext(items)
        assert isinstance(item, FeedEvent), item
        seen.append(item)


@pytest.mark.thorough
@pytest.mark.parametrize("streams", ["yes", "no"])
async def test_the_typescript_client_skips_and_repeats_nothing(journal: Journal, streams: str):
    built = await asyncio.to_thread(web.build_tests)
    async with asyncio.timeout(PATIENCE), half_deployed(journal) as (gate, finish):
        told = {"FEED": f"{gate.url}/books/b-1/lines", "TOKEN": journal.token(), "AFTER": BEGINNING}
        environment = {**os.environ, **told, "EVENT": "line", "STREAMS": streams}
        command = [*web.node(), str(built / "client" / "test" / "program.mjs")]
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            seen: list[int] = []
            await journal.write("first")
            writing = asyncio.ensure_future(write_in_turn(journal))
            await said(process.stdout, seen, LINES)
            await writing
            await finish()
            await write_newer(journal, "last")
            await said(process.stdout, seen, LINES + 2)
        finally:
            process.terminate()
            await process.wait()
    assert seen == list(range(1, LINES + 3))


async def said(output: asyncio.StreamReader, seen: list[int], total: int) -> None:
    while len(seen) < total:
        line = await output.readline()
        assert line, f"the client ended after {seen[-3:]}"
        told = json.loads(line)
        assert "gap" not in told, told
        assert "refused" not in told, told
        if "seq" in told:
            seen.append(told["seq"])
