"""`aftercommit up` and `aftercommit serve` with the systems: what a newcomer opens, and what stays closed."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from aftercommit.access.token_keys import TOKEN_KEYS_VARIABLE
from tests.support.investigations import (
    KEY_SET,
    PATIENCE,
    ROOT,
    STARTING,
    TLS,
    answers,
    eventually,
    figures_of,
    make_service_token,
    prepare,
)
from tests.support.programs import REPOSITORY, Program, is_free, kept_port, running

pytestmark = pytest.mark.newest

APP = "systems.site:application"
# Somebody who tries things out beside the tests may have the usual port.
FREE = ("--port", "0")


def address(up: Program) -> str:
    """Where it serves, once it answers."""
    said = up.line("open in a browser:", up.stderr)
    url = said.split("open in a browser:")[1].split()[0]
    eventually(lambda: answers(url), timeout=STARTING)
    return url


def sample(url: str, host: str | None = None) -> dict[str, object]:
    headers = {"Host": host} if host is not None else {}
    found: dict[str, object] = httpx.get(f"{url}/sample.json", headers=headers, timeout=PATIENCE, verify=TLS).json()
    return found


def tokens(url: str) -> dict[str, str]:
    """The tokens of the sample users."""
    return {user["user"]: user["token"] for user in sample(url)["users"]}  # type: ignore[attr-defined]


def status(url: str, path: str, token: str) -> int:
    answer = httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE, verify=TLS)
    return answer.status_code


@pytest.mark.thorough
@pytest.mark.contract("L8", "L12")
def test_up_has_sample_users_live_traffic_and_its_own_documentation(database: str, tmp_path: Path) -> None:
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path / "home")}
    with running("up", "--app", APP, "--port", "0", "--rate", "50", folder=REPOSITORY, **told) as up:
        url = address(up)
        ada, grace, mallory = (tokens(url)[name] for name in ("ada", "grace", "mallory"))
        path = f"{ROOT}/INV-123/logs"

        def total() -> int:
            answer = httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {ada}"}, timeout=PATIENCE, verify=TLS)
            return int(answer.headers.get("X-Total-Count", 0)) if answer.status_code == 200 else 0

        # Whoever looks too often is told to wait for up to a minute.
        begun = eventually(lambda: total() or None, timeout=STARTING)
        eventually(lambda: total() > begun or None, timeout=STARTING)
        assert [status(url, path, each) for each in (grace, mallory)] == [200, 403]
        assert status(url, f"{ROOT}/INV-124/logs", grace) == 403
        for page, expected in (("/healthz", "ok"), ("/readyz", "ready"), ("/docs", "openapi.json")):
            assert expected in httpx.get(f"{url}{page}", timeout=PATIENCE, verify=TLS).text
        figures = httpx.get(f"{url}/metrics", timeout=PATIENCE, verify=TLS).text
        assert 'outbox_publish_success_total{event_type="log.recorded"' in figures
        assert "feed_following 1" in figures
        up.send(signal.SIGINT)
        assert up.ends() == 0, up
    assert not [each for each in up.stderr if "Traceback" in each or "rror" in each], up
    keys = tmp_path / "home" / "token-keys.json"
    assert keys.stat().st_mode & 0o777 == 0o600


@pytest.mark.thorough
@pytest.mark.contract("L8")
def test_tokens_are_handed_to_this_machine_alone_and_only_in_development(database: str, tmp_path: Path) -> None:
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path / "home")}
    with running("up", "--app", APP, "--port", "0", "--rate", "0", folder=REPOSITORY, **told) as up:
        url = address(up)
        assert sample(url)["users"]
        # Another name for this machine, as a page elsewhere could give it to reach us through a browser.
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8090", "[::1].evil.example"):
            assert "users" not in sample(url, host)
        make_service_token(database)
        production = {**told, TOKEN_KEYS_VARIABLE: KEY_SET, "AFTERCOMMIT_CORS_ORIGINS": "https://shop.example.com"}
        with running("serve", "--app", APP, "--port", "0", folder=REPOSITORY, **production) as serve:
            listening = json.loads(serve.line("server_listening", serve.stderr))["url"]
            eventually(lambda: answers(listening), timeout=STARTING)
            assert "users" not in sample(listening)
            assert sample(listening)["systems"]
            assert allowed_origin(listening, "https://shop.example.com") == "https://shop.example.com"
            assert allowed_origin(listening, "https://evil.example") is None
            serve.send(signal.SIGTERM)
            assert serve.ends() == 0, serve


def allowed_origin(url: str, origin: str) -> str | None:
    """Whose pages may write logs, as a browser asks before it does."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"{url}{ROOT}/INV-123/logs", headers=headers, timeout=PATIENCE, verify=TLS)
    allowed: str | None = answer.headers.get("Access-Control-Allow-Origin")
    return allowed


@pytest.fixture
def port() -> Iterator[int]:
    with kept_port() as kept:
        yield kept


@pytest.mark.thorough
def test_up_with_several_server_processes_ends_all_of_them_also_when_it_is_killed(
    database: str, tmp_path: Path, port: int
) -> None:
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path / "home")}
    arguments = ("up", "--app", APP, "--port", str(port), "--workers", "2", "--rate", "0")
    with running(*arguments, folder=REPOSITORY, **told) as up:
        url = address(up)
        assert sample(url)["users"]
        up.send(signal.SIGTERM)
        assert up.ends() == 0, up
    assert is_free(port)
    with running(*arguments, folder=REPOSITORY, **told) as up:
        address(up)
        os.kill(up.process.pid, signal.SIGKILL)
        up.ends()
        eventually(lambda: is_free(port) or None)


@pytest.mark.thorough
def test_several_server_processes_on_a_free_port_tell_the_figures_of_all_and_of_the_relay(
    database: str, tmp_path: Path
) -> None:
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path / "home")}
    arguments = ("up", "--app", APP, "--port", "0", "--workers", "2", "--rate", "50")
    with running(*arguments, folder=REPOSITORY, **told) as up:
        url = address(up)
        assert not url.endswith(":0")

        def figures() -> str:
            return httpx.get(f"{url}/metrics", timeout=PATIENCE, verify=TLS).text

        def all_tell() -> str | None:
            page = figures()
            return (
                page if all(f'feed_worker_answers{{worker="{each}"}} 1' in page for each in ("1", "2", "up")) else None
            )

        page = eventually(all_tell, timeout=STARTING)
        for each in ("1", "2"):
            assert f'feed_streams_open{{worker="{each}"}} 0' in page
        relayed = 'outbox_publish_success_total{worker="up",event_type="log.recorded",outbox="investigation_events"} '
        eventually(
            lambda: any(row.startswith(relayed) and row != f"{relayed}0.0" for row in figures().splitlines()) or None
        )


@pytest.mark.thorough
def test_every_server_process_logs_as_it_was_told_and_hears_how_long_a_drain_takes(
    database: str, tmp_path: Path
) -> None:
    prepare(database)
    make_service_token(database)
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path), TOKEN_KEYS_VARIABLE: KEY_SET}
    options = ("--port", "0", "--workers", "2", "--drain", "0.25", "--log-format", "json", "--open-metrics")
    arguments = ("serve", "--app", APP, *options)
    with running(*arguments, folder=REPOSITORY, **told) as serve:
        url = json.loads(serve.line("server_listening", serve.stderr))["url"]
        eventually(lambda: figures_of(url, "feed_worker_answers.*") == [1, 1] or None, timeout=STARTING)
        serve.send(signal.SIGTERM)
        assert serve.ends() == 0, serve
    logged = [json.loads(line) for line in serve.stderr]
    assert [line["seconds"] for line in logged if line["event"] == "streams_draining"] == [0.25, 0.25]


@pytest.mark.thorough
@pytest.mark.contract("L11")
def test_a_quiet_stream_is_kept_alive_by_heartbeats(database: str, tmp_path: Path) -> None:
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path / "home")}
    with running("up", "--app", APP, "--port", "0", "--rate", "0", folder=REPOSITORY, **told) as up:
        url = address(up)
        headers = {"Authorization": f"Bearer {tokens(url)['ada']}"}
        opened = httpx.post(f"{url}{ROOT}", json={"title": "quiet"}, headers=headers, timeout=PATIENCE, verify=TLS)
        stream = f"{url}{ROOT}/{opened.json()['investigation_id']}/logs/stream"
        with httpx.stream("GET", stream, headers=headers, timeout=PATIENCE, verify=TLS) as answer:
            assert ": hb" in answer.iter_lines(), "the stream has ended"
            up.send(signal.SIGTERM)
            assert up.ends() == 0, up


@pytest.mark.thorough
def test_an_address_with_a_slash_too_many_leads_to_the_one_without(database: str, tmp_path: Path) -> None:
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path / "home")}
    with running("up", "--app", APP, "--port", "0", "--rate", "0", folder=REPOSITORY, **told) as up:
        url = address(up)
        for path in ("/investigations/INV-123", "/tasks/board", "/docs", "/metrics", "/healthz", f"{ROOT}/INV-123"):
            moved = httpx.get(f"{url}{path}/?at=4", timeout=PATIENCE, verify=TLS)
            assert (moved.status_code, moved.headers["Location"]) == (308, f"{path}?at=4")
        posted = httpx.post(f"{url}/healthz", timeout=PATIENCE, verify=TLS)
        assert (posted.status_code, posted.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.thorough
def test_what_cannot_be_served_is_said_in_a_line(database: str, tmp_path: Path) -> None:
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(tmp_path)}
    for arguments, said in (
        (("serve",), "name your Application or ASGI application"),
        (("serve", "--app", "systems.investigations:outbox"), "neither an Application nor an ASGI application"),
        (("serve", "--app", "aftercommit.demo.orders:application"), "has no HTTP routes"),
        (("serve", "--app", "nonsense"), "should look like package.module:name"),
        (("serve", "--app", "nonsense:app"), "there is no module 'nonsense'"),
        (("serve", "--app", "systems.site:nothing"), "has no attribute 'nothing'"),
        (("serve", "--app", "os:getcwd", *FREE), "the application could not start"),
        (("serve", "--app", "os:getcwd", "--workers", "2", *FREE), "the application could not start"),
        (("up", "--app", APP, "--host", ""), "the host to listen on is empty"),
        (("serve", "--app", APP, *FREE), "no keys to check tokens with"),
        (("serve", "--app", APP, "--workers", "2", *FREE), "no keys to check tokens with"),
        (("serve", "--app", APP, "--host", "203.0.113.1"), "cannot listen on 203.0.113.1:8090"),
        (("up", "--app", APP, "--host", "203.0.113.1"), "cannot listen on 203.0.113.1:8090"),
    ):
        extra = {TOKEN_KEYS_VARIABLE: KEY_SET} if "--host" in arguments else {}
        with running(*arguments, folder=REPOSITORY, **told, **extra) as program:
            assert program.ends() != 0, arguments
        assert said in "\n".join(program.stderr), program
        # What an application says that cannot start is its own, and in its log lines.
        assert not [each for each in program.stderr if each.startswith("Traceback")], program


def test_a_port_that_is_taken_is_all_that_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        other = port + 2 if port + 2 <= 65_535 else 0
        for through, remedy in (("", ""), ("make up", f", as in make up ARGS='--port {other}'")):
            told = {"AFTERCOMMIT_HOME": str(home), "AFTERCOMMIT_STARTED_BY": through}
            with running("up", "--app", APP, "--port", str(port), folder=REPOSITORY, **told) as up:
                assert up.ends() == 1, up
            holder = f"{Path('/proc/self/comm').read_text().strip()} (process {os.getpid()})"
            said = f"error: cannot listen on 127.0.0.1:{port}: Address already in use by {holder}. "
            assert up.stderr == [f"{said}Choose another --port or --host{remedy}"]
    assert not home.exists()
