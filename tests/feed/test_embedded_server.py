"""A server within a program: however it is ended, nothing of it goes on."""

import asyncio
import socket

import httpx
import pytest

from aftercommit.http.asgi import Receive, Scope, Send, answer, connection_of
from aftercommit.server.http_server import HttpServer
from tests.feed.journal import Journal


async def test_a_server_that_is_cancelled_leaves_nothing_behind(journal: Journal):
    app = journal.app()
    server = HttpServer(app, drain_seconds=1.0, on_stop=app.drain)
    running = asyncio.create_task(server.run())
    await server.answers()
    async with httpx.AsyncClient(base_url=server.url, headers=journal.bearer(), timeout=60) as client:
        async with client.stream("GET", "/books/b-1/lines/stream") as answer:
            assert answer.status_code == 200
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert len(app.streams) == 0
        with pytest.raises(httpx.TransportError):
            await client.get("/books/b-1/lines")
    assert [each.name for each in app.services if each._task is None or not each._task.done()] == []
    assert [task for task in asyncio.all_tasks() if "Server" in repr(task.get_coro())] == []


async def test_small_answers_do_not_wait_for_each_other_on_asyncios_own_loop():
    delayed: list[int] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            bound = connection_of(scope).transport.get_extra_info("socket")  # type: ignore[union-attr]
            delayed.append(bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            await answer(send, 204, [])

    async with HttpServer(application, port=0) as server, httpx.AsyncClient(timeout=60) as client:
        await client.get(server.url)

    assert delayed == [1]
