"""Something between the bot and the Bot API, as a proxy would be: it passes requests on, or answers itself."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aftercommit.server.http_server import HttpServer
from tests.support.investigations import TLS

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]


@asynccontextmanager
async def front(url: str, answer: Answer) -> AsyncIterator[str]:
    """The address of one. `answer` says what to answer to a body, or None to pass it on."""
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=TLS) as client:

        async def pass_on(request: Request) -> Response:
            body = await request.body()
            told = answer(json.loads(body or b"{}"))
            if told is not None:
                return JSONResponse(dict(told), int(told.get("error_code", 200)))
            passed = await client.post(request.url.path, content=body, headers={"content-type": "application/json"})
            return Response(passed.content, passed.status_code, media_type="application/json")

        async with HttpServer(
            Starlette(routes=[Route("/{path:path}", pass_on, methods=["POST"])]), drain_seconds=0.5
        ) as server:
            await server.answers()
            yield server.url
