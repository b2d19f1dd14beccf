"""Feeds that have failed for good: what is said of it, and that our own server processes end and are replaced."""

import asyncio
import logging
import math
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from aftercommit.feed.app.service import service
from aftercommit.server import supervisor
from aftercommit.server.ending_server import ServerFailed
from aftercommit.server.http_server import Configuration, HttpServer
from aftercommit.server.protocol import Guards
from aftercommit.service import Service
from tests.feed.journal import KEYS, Followed, Journal, numbered, until
from tests.feed.servers import SECONDS, all_workers, client, in_another_server, program, workers_of
from tests.support.programs import running


async def test_a_database_that_was_not_migrated_is_said_and_seen_by_health(
    database: str, caplog: pytest.LogCaptureFixture
):
    journal = Journal(database)
    app = journal.app()
    async with in_another_server(service(app)) as url, client(journal, url) as reader:
        await until(lambda: app.failed is not None)
        health = await reader.get("/healthz")
        assert (health.status_code, health.json()["error"]) == (503, "unavailable")
        assert (await reader.get("/readyz")).status_code == 503
    assert any("migrate" in str(getattr(record, "error", "")) for record in caplog.records)


@pytest.mark.thorough
async def test_feeds_that_have_failed_for_good_do_not_blame_the_database(journal: Journal):
    async def failing(point: str, detail: dict[str, Any]) -> None:
        if point == "feed.read" and is_broken:
            raise psycopg.DataError("planted: this cannot be read")

    is_broken = False
    app = journal.app(probe=failing)
    async with in_another_server(service(app)) as url, client(journal, url) as reader:
        assert (await reader.get("/books/b-1/lines")).status_code == 200
        async with reader.stream("GET", "/books/b-1/lines/stream") as answer:
            stream = Followed(answer)
            await stream.block()
            is_broken = True
            assert (await stream.named("bye"))["item"]["reason"] == "unavailable"
        await until(lambda: app.failed is not None)
        for path in ("/books/b-1/lines", "/books/b-2/lines", "/books/b-1/lines/stream"):
            refused = await reader.get(path)
            assert refused.status_code == 503
            assert refused.json()["message"] == "The feeds of this server have failed: restart the server"
        ready = await reader.get("/readyz")
        assert (ready.status_code, ready.json()["message"].partition(":")[0]) == (503, "feeds failed")


async def test_a_service_that_has_failed_beside_the_feeds_is_not_ready(journal: Journal):
    app = journal.app()

    class Broken(Service):
        name = "figures"

        async def run(self) -> None:
            raise ValueError("planted")

    app.services.append(Broken())
    async with in_another_server(service(app)) as url, client(journal, url) as reader:
        await until(lambda: app.hub.is_following and app.failed is not None)
        ready = await reader.get("/readyz")
        assert (ready.status_code, ready.json()["message"].partition(":")[0]) == (503, "figures failed")


async def test_a_server_within_another_program_fails_with_its_feeds(database: str):
    journal = Journal(database)
    server = HttpServer(journal.app())
    await server.start()
    with pytest.raises(ServerFailed, match="run `aftercommit migrate up"):
        await asyncio.wait_for(server.wait(), SECONDS)


@pytest.mark.thorough
async def test_a_server_whose_feeds_have_failed_ends_with_an_error(journal: Journal, tmp_path: Path):
    await journal.write(*numbered(3))
    broken = tmp_path / "broken"
    with program(journal, workers=1, fails=broken) as (process, url):
        async with client(journal, url) as reader:
            assert len((await reader.get("/books/b-1/lines")).json()["lines"]) == 3
            async with reader.stream("GET", "/books/b-1/lines/stream") as answer:
                stream = Followed(answer)
                assert await stream.texts(3) == list(numbered(3))
                broken.touch()
                assert (await stream.named("bye"))["item"]["reason"] in ("unavailable", "shutdown")
        assert await asyncio.to_thread(process.wait, SECONDS) == 1


def test_the_command_ends_with_an_error_that_says_what_to_do(database: str):
    command = ("serve", "--app", "systems.site:application", "--port", "0")
    with running(*command, DATABASE_URL=database, AFTERCOMMIT_TOKEN_KEYS=KEYS) as server:
        assert server.ends() == 1, server
        assert "run `aftercommit migrate up" in server.stderr[-1]


def test_pauses_stay_long_while_workers_go_on_dying(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    now = 0.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))
    with socket.socket() as bound, caplog.at_level(logging.WARNING, "aftercommit.server"):
        watched = supervisor.Supervisor(Configuration("nobody:app", Guards(), 1.0, {}), bound, grace_seconds=1.0)
        for _ in range(12):
            watched._has_died(1)
            now = watched._begin_at + 1.0
        now += 60.0
        watched._has_died(1)
    pauses = [getattr(record, "replaced_in", math.nan) for record in caplog.records]
    assert pauses[0] == 0.0
    assert min(pauses[8:12]) > 10.0
    assert pauses[12] == 0.0, "one that has served for a while is replaced at once"


@pytest.mark.thorough
async def test_workers_whose_feeds_have_failed_are_replaced_until_they_work_again(journal: Journal, tmp_path: Path):
    await journal.write(*numbered(3))
    broken = tmp_path / "broken"
    with program(journal, workers=2, fails=broken) as (process, url):
        async with client(journal, url) as reader:
            assert len((await reader.get("/books/b-1/lines")).json()["lines"]) == 3
        before = await all_workers(process)
        broken.touch()
        await until(lambda: workers_of(process).isdisjoint(before), timeout=60)
        broken.unlink()

        async def both_follow() -> bool:
            async with client(journal, url) as reader:
                return (await reader.get("/readyz")).status_code == 200 and len(workers_of(process)) == 2

        await until(both_follow, timeout=60)
        async with client(journal, url) as reader:
            assert len((await reader.get("/books/b-1/lines")).json()["lines"]) == 3
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, SECONDS) == 0
