"""Who may act is never inferred from where a request seems to come from: only a development server believes its
machine.
"""

import json
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path

import httpx
import psycopg
import pytest

from aftercommit.access import service_tokens
from aftercommit.access.token_keys import TOKEN_KEYS_VARIABLE
from aftercommit.testing.postgres import PostgresServerForTests
from systems.tasks import outbox
from tests.support.investigations import KEY_SET, PATIENCE, TLS, eventually, serving
from tests.support.nginx import nginx
from tests.support.programs import REPOSITORY, running
from tests.support.tasks import ADA, EVENTS, ROOT, prepared, signed

pytestmark = [pytest.mark.contract("E5", "T7"), pytest.mark.newest]

NAMED = {"X-User-Id": str(ADA)}
APP = "systems.site:application"


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresServerForTests) -> Iterator[str]:
    """A database of its own, without a service token."""
    with prepared(postgres_server) as dsn:
        yield dsn


def statuses(url: str, headers: dict[str, str]) -> set[int]:
    """What the routes that need a user answer, reading and writing."""
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE, verify=TLS) as client:
        read = {client.get(path).status_code for path in (EVENTS, ROOT, f"{ROOT}/me", f"{ROOT}/users")}
        made = client.post(ROOT, json={"title": "x", "assignee_user_id": 3, "supervisor_role_ids": [2]}).status_code
        redeemed = client.post(f"{ROOT}/link-codes/redeem", json={"code": "x"}).status_code
        with client.stream("GET", f"{EVENTS}/stream") as stream:
            return read | {made, redeemed, stream.status_code}


@pytest.mark.needs("nginx")
def test_behind_a_proxy_that_hides_itself_a_header_alone_names_nobody(dsn: str, tmp_path: Path):
    with serving(dsn, workers=1) as (_, url), nginx(url, tmp_path) as front:
        for address in (front, url):
            for host in ({}, {"Host": "localhost"}, {"Host": "127.0.0.1"}):
                assert statuses(address, {**NAMED, **host}) == {401}, (address, host)
        with psycopg.connect(dsn, autocommit=True) as connection:
            made = service_tokens.create(connection, outbox.shape, "bot", ["act-as-user"])
            program = {"Authorization": f"Bearer {made.token}", **NAMED}
            eventually(lambda: httpx.get(f"{front}{EVENTS}", headers=program, verify=TLS).status_code == 200 or None)

            # The last token goes while the server runs: nothing is opened by that.
            for token in service_tokens.list_all(connection, outbox.shape):
                service_tokens.revoke(connection, outbox.shape, token.id)
        eventually(lambda: httpx.get(f"{front}{EVENTS}", headers=program, verify=TLS).status_code == 401 or None)
        for address in (front, url):
            assert statuses(address, NAMED) == {401}
        own = {"Authorization": f"Bearer {signed(ADA)}"}
        assert httpx.get(f"{front}{ROOT}/me", headers=own, verify=TLS).status_code == 200


@pytest.mark.thorough
def test_without_a_service_token_a_server_does_not_start_and_says_how_to_make_one(
    postgres_server: PostgresServerForTests,
):
    with prepared(postgres_server) as empty:
        told = {"DATABASE_URL": empty, TOKEN_KEYS_VARIABLE: KEY_SET}
        with running("doctor", "--app", APP, "--schema", "tasks_events", folder=REPOSITORY, **told) as doctor:
            assert doctor.ends() == 3, doctor
            doctor.line("no service token allows a program to send it", doctor.stdout)
        for more in ((), ("--development", "--host", "0.0.0.0")):
            with running("serve", "--app", APP, "--port", "0", *more, folder=REPOSITORY, **told) as server:
                assert server.ends() == 1
                said = " ".join(server.stderr)
                assert "are identified by the header X-User-Id" in said
                assert "aftercommit token create bot --may act-as-user --schema tasks_events" in said
        command = ("token", "create", "bot", "--may", "act-as-user", "--schema", "tasks_events")
        with running(*command, folder=REPOSITORY, **told) as making:
            assert making.ends() == 0
        with running("serve", "--app", APP, "--port", "0", folder=REPOSITORY, **told) as server:
            assert "http://127.0.0.1:" in server.line("server_listening", server.stderr)
        everywhere = ("serve", "--app", APP, "--port", "0", "--host", "0.0.0.0")
        with running(*everywhere, folder=REPOSITORY, **told) as server:
            assert "http://0.0.0.0:" in server.line("server_listening", server.stderr)


def test_a_server_whose_tokens_have_all_expired_starts_and_names_them(postgres_server: PostgresServerForTests):
    """It starts: users with a JWT of their own do not need them, and a new token counts at once."""
    with prepared(postgres_server) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        arguments = ("serve", "--app", APP, "--port", "0")
        told = {"DATABASE_URL": dsn, TOKEN_KEYS_VARIABLE: KEY_SET, "AFTERCOMMIT_LOG_FORMAT": "json"}
        brief = timedelta(microseconds=1)
        expired = service_tokens.create(connection, outbox.shape, "night bot", ["act-as-user"], lifetime=brief)
        with running(*arguments, folder=REPOSITORY, **told) as server:
            said = json.loads(server.line("service_tokens_expired", server.stderr))
            server.line("server_listening", server.stderr)
        assert expired.expires_at is not None
        assert (said["level"], said["outbox"]) == ("warning", "tasks_events")
        until = f"{expired.expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
        assert said["tokens"] == [f"night bot ({expired.id}), expired {until}"]
        assert "aftercommit token create bot --may act-as-user --schema tasks_events" in said["remedy"]

        service_tokens.create(connection, outbox.shape, "bot", ["act-as-user"])
        with running(*arguments, folder=REPOSITORY, **told) as server:
            server.line("server_listening", server.stderr)
            assert "service_tokens_expired" not in "".join(server.stderr)


def test_figures_are_for_those_who_may_read_them_unless_the_server_was_told_otherwise(dsn: str):
    told = {"DATABASE_URL": dsn, TOKEN_KEYS_VARIABLE: KEY_SET, "AFTERCOMMIT_LOG_FORMAT": "json"}
    with psycopg.connect(dsn, autocommit=True) as connection:
        service_tokens.create(connection, outbox.shape, "bot", ["act-as-user"])
        scraper = service_tokens.create(connection, outbox.shape, "prometheus", ["metrics:read"]).token
    arguments = ("serve", "--app", APP, "--port", "0", "--no-docs")
    with running(*arguments, folder=REPOSITORY, **told) as server:
        url = json.loads(server.line("server_listening", server.stderr))["url"]

        def asked(path: str, token: str | None = None) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
            return httpx.get(f"{url}{path}", headers=headers, timeout=PATIENCE, verify=TLS)

        eventually(lambda: asked("/metrics", scraper).status_code == 200 or None)
        assert "feed_following" in asked("/metrics", scraper).text
        assert asked("/metrics").status_code == 401
        assert asked("/metrics", "act_nobody").status_code == 401
        assert asked("/metrics", signed(ADA)).status_code == 403
        assert asked("/metrics", signed(ADA, permissions=("metrics:read",))).status_code == 200
        assert {asked(path).status_code for path in ("/docs", "/openapi.json")} == {404}
        assert {asked(path).status_code for path in ("/healthz", "/readyz")} == {200}
