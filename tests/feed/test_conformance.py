"""The server's part of `conformance/`: requests and answers for the logs of an investigation, on a running server."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest
import pytest_asyncio

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import TokenVerifier, mint
from aftercommit.event.identity import uuid7
from aftercommit.feed.app import FeedApp
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay
from aftercommit.relay.transports import LogTransport
from aftercommit.schema import migrate
from aftercommit.server.http_server import HttpServer
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from systems.investigations.events import LogRecorded, outbox
from systems.investigations.feeds import logs
from tests.clients.cases import document
from tests.feed.journal import KEYS, TIMES, Followed, until

DOCUMENT = document("server")
CASES = {case["name"]: case for case in DOCUMENT["cases"]}
OTHER_KEYS = KEYS.replace("c2VjcmV0", "b3RoZXIt", 1)

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _migrate(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, outbox.shape)


@dataclass
class Stage:
    """A running server with the logs' feed, and its database."""

    dsn: str
    app: FeedApp
    client: httpx.AsyncClient
    signals: Signals
    written: int = 0
    keys: set[str] = field(default_factory=set)

    async def append(self, key: str, produced: list[dict[str, Any]]) -> None:
        """Logs that the server knows when this returns."""
        events = [LogRecorded(investigation_id=key, event_id=uuid7(), **each) for each in produced]
        with psycopg.connect(self.dsn) as connection:
            outbox.publish(connection, events)
        self.keys.add(key)
        self.written += len(events)
        await self.signals.wait_total("relay.appended", self.written)
        count = await _count(self.dsn, key)
        strand = await self.app.hub.strand(logs, key)
        await until(lambda: strand.head >= count)

    async def cursors(self, key: str) -> dict[int, str]:
        page = await self.client.get(_address(key, "logs"), params={"limit": 1000}, headers=_bearer("reader", key))
        return {line["seq"]: f"{line['ts']}#{line['seq']:03d}" for line in page.json()["logs"]}

    async def values(self, key: str) -> dict[str, str]:
        """What stands for the cursors and times of logs in the cases."""
        values: dict[str, str] = {}
        for number, cursor in (await self.cursors(key)).items():
            values |= {f"{{cursor:{number}}}": cursor, f"{{ts:{number}}}": cursor.partition("#")[0]}
        return values


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(postgres_server: PostgresServerForTests) -> AsyncIterator[Stage]:
    """One server for all cases; each has an investigation of its own."""
    dsn = postgres_server.clone(postgres_server.template("conformance", prepare=_migrate))
    keys: set[str] = set()
    signals = Signals()

    async def exists(feed: Any, key: str) -> bool:
        return key in keys

    access = BearerAccess(TokenVerifier(TokenKeys.from_text(KEYS), leeway_seconds=0))
    app = FeedApp(
        Database(dsn), {"/api/v1/investigations/{investigation_id}/logs": logs}, access, exists=exists, times=TIMES
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Relay(outbox, Database(dsn), LogTransport(), probe=signals))
        server = await stack.enter_async_context(HttpServer(app, drain_seconds=1.0, on_stop=app.drain))
        await server.answers()
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=60))
        yield Stage(dsn, app, client, signals, keys=keys)
    postgres_server.drop(dsn)


@pytest.mark.contract("L1", "L2", "L3", "L5", "L6", "L7", "L8", "L11")
@pytest.mark.parametrize("name", CASES)
async def test_the_server_answers_as_the_protocol_says(stage: Stage, name: str):
    key = f"INV-{list(CASES).index(name) + 1}"
    await stage.append(key, DOCUMENT["logs"])
    etag = ""
    for step in CASES[name]["steps"]:
        if "append" in step:
            await stage.append(key, step["append"])
            continue
        values = {"{etag}": etag, **await stage.values(key)}
        expected = _filled(step["expect"], values)
        method, url, headers = _request(_filled(step["request"], values), key)
        async with stage.client.stream(method, url, headers=headers) as answer:
            await _compare(answer, expected)
        etag = answer.headers.get("etag", etag)


async def _compare(answer: httpx.Response, expected: dict[str, Any]) -> None:
    if "blocks" in expected:
        assert answer.status_code == expected["status"]
        await _compare_blocks(Followed(answer), expected)
    else:
        body = await answer.aread()
        assert answer.status_code == expected["status"], body
        if expected.get("empty"):
            assert body == b""
        _compare_body(json.loads(body) if body else {}, expected)
    for name, value in expected.get("headers", {}).items():
        assert _matches(answer.headers.get(name), value), (name, answer.headers.get(name))


def _compare_body(body: Any, expected: dict[str, Any]) -> None:
    if "numbers" in expected:
        assert [line["seq"] for line in body["logs"]] == expected["numbers"]
    for part in ("pagination", "body"):
        found = body.get("pagination", {}) if part == "pagination" else body
        for name, value in expected.get(part, {}).items():
            assert _matches(found.get(name), value), (name, found.get(name), value)
    assert expected.get("message_has", "") in body.get("message", "")


async def _compare_blocks(stream: Followed, expected: dict[str, Any]) -> None:
    for wanted in expected["blocks"]:
        block = await stream.block()
        while block is not None and not {"id", "event", "data"} & set(block):
            block = await stream.block()
        assert block is not None, f"the stream ended before {wanted}"
        if "number" in wanted:
            assert json.loads(block["data"])["seq"] == wanted["number"]
        for name in ("event", "id"):
            assert name not in wanted or block.get(name) == wanted[name]
    if expected.get("ends"):
        assert await stream.block() is None


def _request(asked: dict[str, Any], key: str) -> tuple[str, str, dict[str, str]]:
    url = _address("INV-absent" if asked.get("key") == "absent" else key, asked.get("path", "logs"))
    query = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in asked.get("query", {}).items())
    query = asked.get("raw_query", query)
    headers = {**_bearer(asked.get("as", "reader"), key), **asked.get("headers", {})}
    return asked.get("method", "GET"), f"{url}?{query}" if query else url, headers


def _address(key: str, path: str) -> str:
    return f"/api/v1/investigations/{key}/{path}"


def _bearer(who: str, key: str) -> dict[str, str]:
    if who == "nobody":
        return {}
    keys = TokenKeys.from_text(OTHER_KEYS if who == "forger" else KEYS)
    granted = ["investigation:elsewhere:read"] if who == "stranger" else ["investigation:*:read"]
    token = EXPIRED if who == "late" else mint(keys, f"{who}-{key}", granted, timedelta(hours=1))
    return {"Authorization": f"Bearer {token}"}


def _expired() -> str:
    """A token that was good a long time ago."""
    import jwt

    key = TokenKeys.from_text(KEYS).current.signing()
    claims = {
        "iss": "tests",
        "aud": "feeds",
        "sub": "late",
        "iat": 1,
        "exp": 2,
        "permissions": ["investigation:*:read"],
    }
    return jwt.encode(claims, key.signing, algorithm=key.algorithm, headers={"kid": key.kid})


EXPIRED = _expired()


def _filled(value: Any, values: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, values) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    if isinstance(value, str):
        return re.sub(r"\{etag\}|\{(?:cursor|ts):\d+\}", lambda found: values[found[0]], value)
    return value


def _matches(found: Any, wanted: Any) -> bool:
    if wanted == "{any}":
        return found is not None
    if wanted == "{weak}":
        return isinstance(found, str) and re.fullmatch(r'W/"[^"]+"', found) is not None
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_matches(found.get(name), each) for name, each in wanted.items())
    return bool(found == wanted)


async def _count(dsn: str, key: str) -> int:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        query = f"select count(*) from {outbox.schema}.log where aggregate_type = 'investigation' and aggregate_id = %s"
        row = await (await connection.execute(query.encode(), (key,))).fetchone()
        return int(row[0]) if row else 0
