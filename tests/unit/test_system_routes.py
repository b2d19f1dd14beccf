"""What every route of a system does before FastAPI does anything, and what it refuses."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.applications import Starlette

from aftercommit.errors import Unauthorized
from aftercommit.http.error_handlers import exception_handlers
from systems.host.routes import Body, SystemRoute, served

router = APIRouter(route_class=SystemRoute)


class Named(Body):
    """A body with one field."""

    name: str


@router.get("/things")
async def things(limit: int = 5) -> dict[str, int]:
    """So many."""
    return {"limit": limit}


@router.post("/things", status_code=201)
async def make(named: Named) -> dict[str, str]:
    """One more."""
    return {"name": named.name}


async def reader(authorization: str | None, headers: Any, peer: str | None) -> object:
    if authorization is None:
        raise Unauthorized("there is no token")
    return object()


@pytest.fixture
def client() -> httpx.AsyncClient:
    part: Any = SimpleNamespace(access=SimpleNamespace(reader=reader))
    app = Starlette(routes=served(router, part), exception_handlers=exception_handlers())
    known = {"Authorization": "Bearer x"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://site", headers=known)


async def test_who_is_not_known_is_told_so_before_the_body_is_read(client: httpx.AsyncClient):
    del client.headers["Authorization"]
    for content in (b"{", b'{"name": 7}', b'{"name": "x"}'):
        assert (await client.post("/things", content=content)).status_code == 401


async def test_a_body_is_json_whatever_its_type_is_called(client: httpx.AsyncClient):
    for kind in ("application/json", "application/x-www-form-urlencoded", "text/plain"):
        made = await client.post("/things", content=b'{"name": "x"}', headers={"Content-Type": kind})
        assert (made.status_code, made.json()) == (201, {"name": "x"}), kind
    assert (await client.post("/things", content=b'{"name": "x"}')).status_code == 201


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The body is missing: send a JSON object"),
        (b'{"name": 7}', "name: Input should be a valid string"),
        (b'{"name": "x", "more": 1}', "more: Extra inputs are not permitted"),
        (b'{"name": "x", "name": "y"}', "The field 'name' appears more than once: send it once"),
    ],
)
async def test_what_is_wrong_is_400_in_the_common_body(client: httpx.AsyncClient, content: bytes, message: str):
    refused = await client.post("/things", content=content)
    assert (refused.status_code, refused.json()["error"], refused.json()["message"]) == (400, "bad_request", message)


async def test_a_parameter_is_known_and_given_once(client: httpx.AsyncClient):
    assert (await client.get("/things?limit=2")).json() == {"limit": 2}
    for query in ("limit=2&limit=3", "limt=2", "limit=x"):
        assert (await client.get(f"/things?{query}")).status_code == 400, query


async def test_head_is_answered_like_get_and_nothing_is_kept(client: httpx.AsyncClient):
    asked = await client.head("/things")
    assert (asked.status_code, asked.headers["Cache-Control"]) == (200, "no-store")
    refused = await client.put("/things")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, HEAD, POST")
