"""Ten lines in a team's own application: FastAPI, Starlette, Litestar, or none; under a prefix, with the lifespan."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from aftercommit.feed.app import FeedApp
from aftercommit.http.asgi import Asgi
from tests.feed.journal import PATH, Journal, Reading, numbered, until


def in_fastapi(feeds: FeedApp) -> Any:
    app = FastAPI(lifespan=feeds.lifespan)
    app.mount("/api/v1", feeds)
    return app


def in_starlette(feeds: FeedApp) -> Any:
    return Starlette(routes=[Mount("/api/v1", app=feeds)], lifespan=feeds.lifespan)


def among_routes_of_starlette(feeds: FeedApp) -> Any:
    return Starlette(routes=[Mount("/api/v1", routes=feeds.routes)], lifespan=feeds.lifespan)


def in_litestar(feeds: FeedApp) -> Any:
    return Litestar(route_handlers=[asgi("/api/v1", is_mount=True, copy_scope=False)(feeds)], lifespan=[feeds.lifespan])


@pytest.mark.parametrize("around", [in_fastapi, in_starlette, among_routes_of_starlette, in_litestar])
async def test_feeds_are_served_under_a_prefix_of_another_application(
    journal: Journal, around: Callable[[FeedApp], Asgi]
):
    feeds = journal.app()
    await journal.write(*numbered(3))
    async with journal.served(feeds, around(feeds)) as reading:
        page = await reading.client.get("/api/v1/books/b-1/lines", params={"limit": 2})
        assert [line["text"] for line in page.json()["lines"]] == ["line 2", "line 3"]
        again = await reading.client.get(
            "/api/v1/books/b-1/lines", params={"limit": 2}, headers={"If-None-Match": page.headers["etag"]}
        )
        assert again.status_code == 304
        refused = await reading.client.get("/api/v1/books/b-1/lines", headers={"Authorization": ""})
        assert (refused.status_code, refused.json()["error"]) == (401, "unauthorized")
        prefixed = Reading(feeds, reading.server, reading.client)
        reading.client.base_url = f"{reading.server.url}/api/v1"
        async with prefixed.stream(limit=1) as stream:
            assert await stream.texts(1) == ["line 3"]
            await journal.write("line 4")
            assert await stream.texts(1) == ["line 4"]


async def test_a_feed_and_a_route_for_writing_share_a_path(journal: Journal):
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    async def take(request: Request) -> JSONResponse:
        return JSONResponse({"book": request.path_params["book_id"]}, 201)

    feeds = journal.app()
    routes = [Route(PATH, take, methods=["POST"]), *feeds.routes]
    app = Starlette(routes=[*routes, Mount("/below", routes=routes)], lifespan=feeds.lifespan)
    async with journal.served(feeds, app) as reading:
        assert (await reading.client.post("/books/b-9/lines")).json() == {"book": "b-9"}
        assert (await reading.poll("b-9")).json()["lines"] == []
        for path in ("/books/b-9/lines", "/below/books/b-9/lines"):
            assert (await reading.client.options(path)).headers["allow"] == "GET, HEAD, OPTIONS, POST"


async def test_behind_middleware_that_wraps_every_message_a_reader_that_leaves_is_noticed(journal: Journal):
    """Other servers do not tell us about their connections: then it is asked for, as ASGI has it."""
    feeds = journal.app()

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        await feeds({key: value for key, value in scope.items() if key != "extensions"}, receive, send)

    async with journal.served(feeds, plain) as reading:
        async with reading.stream() as stream:
            await stream.block()
            await journal.write("one")
            assert await stream.texts(1) == ["one"]
        await until(lambda: len(feeds.streams) == 0)
        assert feeds.streams.ended == {"left": 1}


async def test_a_prefix_is_a_whole_part_of_a_path(journal: Journal):
    """Some servers leave it out of the path: what is left may begin with the same letters."""
    feeds = journal.app(path="/apiary/{book_id}/lines")

    async def under_prefix(scope: Any, receive: Any, send: Any) -> None:
        await feeds({**scope, "root_path": "/api"}, receive, send)

    async with journal.served(feeds, under_prefix) as reading:
        for path in ("/apiary/b-1/lines", "/api/apiary/b-1/lines", "/api/docs", "/docs"):
            assert (await reading.client.get(path)).status_code == 200, path
        for path in ("/apidocs", "/api", "/api/b-1/lines"):
            assert (await reading.client.get(path)).status_code == 404, path
