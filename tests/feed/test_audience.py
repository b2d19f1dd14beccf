"""What a reader hears of, over HTTP: everybody asks at one address and gets their own, and nobody another's."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import TokenVerifier, mint
from aftercommit.feed import ByAudience
from aftercommit.feed.app import FeedApp
from aftercommit.server.http_server import HttpServer
from aftercommit.testing.postgres import PostgresServerForTests
from tests.feed.journal import KEYS, TIMES, Followed, until
from tests.support.hearing import TaskChanged, Tasks, changes, mine, task_outbox

_KEYS = TokenKeys.from_text(KEYS)


@pytest.fixture
def tasks(postgres_server: PostgresServerForTests) -> Iterator[Tasks]:
    dsn = postgres_server.clone(postgres_server.template_for(task_outbox()))
    yield Tasks(dsn)
    postgres_server.drop(dsn)


def bearer(user: str, *permissions: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {mint(_KEYS, user, permissions, timedelta(hours=1))}"}


@asynccontextmanager
async def served(tasks: Tasks, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The same feed at an address without a key, at one with it, and at one with a permission."""
    feeds = {
        "/tasks/me/events": mine(tasks.outbox, **options),
        "/users/{user}/events": mine(tasks.outbox, "of_user", **options),
        "/watched/{user}/events": mine(tasks.outbox, "watched", permission="user:{key}:watch", **options),
    }
    app = FeedApp(tasks.database, feeds, BearerAccess(TokenVerifier(_KEYS)), times=TIMES)
    async with tasks.relay(), HttpServer(app, drain_seconds=1.0, on_stop=app.drain) as server:
        await server.answers()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            yield client


async def numbers(client: httpx.AsyncClient, user: str, **parameters: Any) -> list[int]:
    answer = await client.get("/tasks/me/events", headers=bearer(user), params=parameters)
    assert answer.status_code == 200, answer.text
    return [item["number"] for item in answer.json()]


@pytest.mark.thorough
@pytest.mark.contract("T4", "T5")
async def test_at_one_address_everybody_gets_their_own_and_a_tag_is_good_for_one(tasks: Tasks):
    async with served(tasks) as client:
        await tasks.record(*changes("t-1", range(3)), audience=["user:17"])
        await tasks.record(*changes("t-2", range(3, 5)), audience=["user:17", "user:23"])
        await tasks.record(TaskChanged("t-3", 5), audience=[])

        async def caught_up() -> bool:
            return await numbers(client, "17") == [0, 1, 2, 3, 4] and await numbers(client, "23") == [3, 4]

        await until(caught_up)
        assert await numbers(client, "99") == []
        assert await numbers(client, "17", after_id=2, limit=2) == [2, 3]
        assert await numbers(client, "17", after_id=2, limit=2) == [2, 3]
        assert await numbers(client, "23", after_id=4) == [4]

        tag = (await client.get("/tasks/me/events", headers=bearer("17"))).headers["etag"]
        for user, status in (("17", 304), ("23", 200), ("99", 200)):
            held = {**bearer(user), "If-None-Match": tag}
            assert (await client.get("/tasks/me/events", headers=held)).status_code == status


@pytest.mark.contract("T5")
async def test_nobody_reads_anothers_unless_a_permission_says_so(tasks: Tasks):
    async with served(tasks) as client:
        await tasks.record(TaskChanged("t-1", 1, text="canary"), audience=["user:17"])
        for path in ("/users/17/events", "/users/17/events/stream"):
            refused = await client.get(path, headers=bearer("23", "user:*:watch"))
            assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
            assert (await client.get(path)).status_code == 401
        for user, permissions, path, status in (
            ("17", (), "/users/17/events", 200),
            ("23", (), "/watched/17/events", 403),
            ("17", (), "/watched/17/events", 403),
            ("23", ("user:17:watch",), "/watched/17/events", 200),
            ("23", ("user:17:watch",), "/watched/99/events", 403),
        ):
            answer = await client.get(path, headers=bearer(user, *permissions))
            assert (path, answer.status_code) == (path, status), answer.text


@pytest.mark.contract("T3", "T5")
async def test_a_stream_brings_what_its_reader_hears_of_and_nothing_else(tasks: Tasks):
    async with served(tasks) as client:
        await tasks.record(TaskChanged("t-1", 1), audience=["user:17", "user:23"])
        async with client.stream("GET", "/tasks/me/events/stream?after_id=0", headers=bearer("17")) as answer:
            followed = Followed(answer)
            assert [event["item"]["number"] for event in await followed.events(1)] == [1]
            await tasks.record(TaskChanged("t-2", 2), audience=["user:23"])
            await tasks.record(TaskChanged("t-3", 3), audience=["user:17"])
            (event,) = await followed.events(1)
            assert (event["item"]["number"], event["id"]) == (3, "3")


async def test_a_name_that_cannot_be_a_reader_is_refused_and_breaks_nothing(tasks: Tasks):
    async with served(tasks, select=ByAudience()) as client:
        for key in ("%00", "x" * 256):
            answer = await client.get(f"/watched/{key}/events", headers=bearer("17", "user:*:watch"))
            assert answer.status_code in (400, 404), answer.text
            assert json.loads(answer.text)["error"] in ("bad_request", "not_found")
