"""The examples of README and guide are programs: what they say runs, and serves what was published."""

import importlib.util
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from aftercommit.access.token_keys import TOKEN_KEYS_VARIABLE, TokenKeys
from aftercommit.access.tokens import mint
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay
from aftercommit.relay.transports import LogTransport
from aftercommit.server.http_server import HttpServer
from aftercommit.testing.signals import Signals
from tests.support.investigations import HOUR, KEY_SET, TLS
from tests.support.programs import REPOSITORY, running


def block(page: str, wanted: str) -> str:
    """The python block of a page that has this text."""
    found: list[str] = re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)
    return next(each for each in found if wanted in each)


@pytest.fixture
def shop(tmp_path: Path, database: str) -> Path:
    """A folder with the README's two programs, as a newcomer has it after the first."""
    (tmp_path / "first.py").write_text(block("README.md", "OrderPlaced"))
    (tmp_path / "reading.py").write_text(block("README.md", "FeedApp("))
    return tmp_path


@pytest.mark.thorough
async def test_the_ten_lines_of_the_readme_serve_what_its_first_program_published(shop: Path, database: str) -> None:
    first = imported(shop / "first.py")
    await publish(first.outbox, database, first.OrderPlaced("o-1", 40), tenant_id="acme")
    keys = TokenKeys.for_development(shop / ".aftercommit")
    # The program reads DATABASE_URL, which `serve` sets: a newcomer has an embedded server and no such variable.
    arguments = ("serve", "--app", "reading:app", "--dsn", database, "--port", "0", "--log-format", "json")
    with running(*arguments, folder=shop) as server:
        url = json.loads(server.line("server_listening", server.stderr))["url"]
        headers = {"Authorization": f"Bearer {mint(keys, 'ada', ['tenant:acme:read'], HOUR)}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, verify=TLS) as reader:
            page = (await reader.get("/api/tenants/acme/orders")).json()
            [item] = page["items"]
            assert UUID(item.pop("event_id")).version == 7
            assert item == {"position": 1, "order": "o-1", "total": 40}
            assert (await reader.get("/api/tenants/other/orders")).status_code == 403
            async with reader.stream("GET", "/api/tenants/acme/orders/stream") as stream:
                told = [line async for line in until_data(stream.aiter_lines())]
                assert json.loads(told[-1].removeprefix("data: ")).items() >= item.items()


async def test_the_declaration_and_the_application_of_the_guide_are_a_program(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_KEYS_VARIABLE, KEY_SET)
    monkeypatch.setenv("DATABASE_URL", database)
    program = tmp_path / "logs_feed.py"
    program.write_text("\n".join(block("docs/guides/feeds.md", each) for each in ("class LogRecorded", "app.mount(")))
    guide = imported(program)
    await publish(guide.outbox, database, guide.LogRecorded("INV-1", "backend", "shop", "WARN", "slow"))
    server = HttpServer(guide.app, on_stop=guide.feeds.drain)
    headers = {"Authorization": f"Bearer {mint(TokenKeys.from_text(KEY_SET), 'ada', ['investigation:*:read'], HOUR)}"}
    async with server, httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60, verify=TLS) as reader:
        await server.answers()
        [line] = (await reader.get("/api/v1/investigations/INV-1/logs?minLevel=WARN")).json()["logs"]
        assert line.items() >= {"seq": 1, "level": "WARN", "message": "slow"}.items()
        assert (await reader.get("/api/v1/investigations/INV-2/logs")).status_code == 404


def imported(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Dataclasses look their module up by its name.
    sys.modules[module.__name__] = module
    specification.loader.exec_module(module)
    return module


async def publish(outbox: Outbox, dsn: str, payload: object, **scope: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        outbox.migrate(connection)
    with psycopg.connect(dsn) as connection:
        outbox.publish(connection, payload, **scope)
    signals = Signals()
    async with Relay(outbox, Database(dsn), LogTransport(), probe=signals):
        await signals.wait_total("relay.appended", 1)


async def until_data(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Up to the first line with an event."""
    async for line in lines:
        yield line
        if line.startswith("data: "):
            return
