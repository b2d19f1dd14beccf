"""Whether a relay or worker lives and works, asked over HTTP beside its metrics; and what it says when it starts."""

import http.client
import json
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from aftercommit.contrib.prometheus import serve
from aftercommit.embedded import EmbeddedPostgres
from aftercommit.schema import migrate
from aftercommit.testing.postgres import SETTINGS_FOR_TESTS
from tests.support.programs import Program, running
from tests.support.shop import Shop, shop_outbox

pytestmark = pytest.mark.contract("E7")

APP = ("--app", "tests.support.shop_app:outbox")
PATIENCE = 60.0


def get(url: str, path: str) -> tuple[int, str]:
    """What a probe is answered."""
    try:
        with urllib.request.urlopen(url.replace("/metrics", path), timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def becomes(look: Callable[[], Any], expected: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while (seen := look()) != expected:
        assert time.monotonic() < deadline, f"it is {seen!r} and not {expected!r}"
        time.sleep(0.05)


def started(program: Program, event: str) -> dict[str, Any]:
    found = program.until(lambda: next((line for line in program.stderr if f'"{event}"' in line), None))
    assert found is not None, f"{event} was not logged: {program}"
    line: dict[str, Any] = json.loads(found)
    return line


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, which can be stopped."""
    tmp_path.chmod(0o755)
    with EmbeddedPostgres(tmp_path / "server", settings=SETTINGS_FOR_TESTS) as server:
        with psycopg.connect(server.dsn) as connection:
            migrate.up(connection, shop_outbox().shape)
        yield server


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["relay", "worker"])
def test_ready_while_the_database_answers_and_not_ready_while_it_is_away(
    server: EmbeddedPostgres, command: str
) -> None:
    with running(command, *APP, "--dsn", server.dsn, "--metrics-port", "0") as program:
        url = started(program, f"{command}_started")["metrics"]
        assert get(url, "/readyz") == (200, "ready\n")
        assert get(url, "/livez") == (200, "alive\n")
        assert get(url, "/metrics")[0] == 200
        assert {get(url, path)[0] for path in ("/", "/healthz", "/metrics/", "/readyz/x")} == {404}
        server.stop("fast")
        becomes(lambda: get(url, "/readyz")[0], 503)
        assert "the database is unavailable" in get(url, "/readyz")[1]
        assert get(url, "/livez")[0] == 200
        server.start()
        becomes(lambda: get(url, "/readyz"), (200, "ready\n"))


@pytest.mark.thorough
def test_not_ready_while_the_database_hangs(server: EmbeddedPostgres) -> None:
    """Its connections are there, and nobody answers: a server that is stopped, a network that swallows everything."""
    with (
        running("worker", *APP, "--dsn", server.dsn, "--metrics-port", "0") as worker,
        psycopg.connect(server.dsn) as holder,
    ):
        url = started(worker, "worker_started")["metrics"]
        # Every look of the workers waits for this.
        holder.execute("lock table shop.dead_letter_events, shop.consumer in access exclusive mode")
        becomes(lambda: get(url, "/readyz")[0], 503)
        assert "no answer from the database for" in get(url, "/readyz")[1]
        holder.rollback()
        becomes(lambda: get(url, "/readyz")[0], 200)


def test_a_figures_server_without_an_engine_is_alive_and_not_ready() -> None:
    served = serve(0, shop_outbox())
    try:
        assert get(served.url, "/livez")[0] == 200
        assert get(served.url, "/readyz") == (503, "not started yet\n")
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE)
        connection.request("HEAD", "/readyz")
        assert connection.getresponse().status == 503
        connection.close()
    finally:
        served.stop()


@pytest.mark.parametrize("command", ["relay", "worker"])
def test_nothing_is_said_to_have_started_where_the_tables_are_missing(database: str, command: str) -> None:
    with running(command, *APP, "--dsn", database) as program:
        assert program.ends() == 3, program
    assert not any("_started" in line for line in program.stderr)
    assert "aftercommit migrate up" in program.stderr[-1]


def drop_schema(shop: Shop) -> None:
    """Drop takes its locks one by one: it can meet a deadlock with the program, and is asked again then."""
    try:
        shop.rows("drop schema shop cascade")
    except psycopg.errors.DeadlockDetected:
        drop_schema(shop)


@pytest.mark.parametrize("command", ["relay", "worker"])
def test_tables_that_are_dropped_under_a_running_program_are_said_to_be_gone(shop: Shop, command: str) -> None:
    with running(command, *APP, "--dsn", shop.dsn) as program:
        started(program, f"{command}_started")
        drop_schema(shop)
        assert program.ends() == 3, program
    assert "Traceback" not in str(program)
    # Whoever looks first says what is missing: the tables, or the function that makes partitions.
    assert re.search(
        "the tables of the outbox are gone|has no function make_partitions|schema .shop. does not exist",
        program.stderr[-1],
    )
    assert "aftercommit migrate up" in program.stderr[-1]


@pytest.mark.parametrize("command", [("dead", "list"), ("consumers", "pause", "x"), ("replay", "list"), ("status",)])
def test_commands_say_that_the_tables_are_gone(shop: Shop, command: tuple[str, ...]) -> None:
    shop.rows("drop table shop.consumer, shop.dead_letter_events, shop.operation cascade")
    with running(*command, "--schema", "shop", "--dsn", shop.dsn) as program:
        assert program.ends() == 3, program
    assert "Traceback" not in str(program)
    assert "aftercommit migrate up" in program.stderr[-1]


def test_a_worker_without_consumers_says_which_module_to_name(shop: Shop) -> None:
    with running("worker", "--app", "tests.support.no_handlers_app:outbox", "--dsn", shop.dsn) as program:
        assert program.ends() == 1, program
    assert "name a module that imports them all" in program.stderr[-1]


def test_times_in_json_are_those_of_rfc_3339(shop: Shop) -> None:
    shop.rows("update upkeep set horizon = '2026-01-02 03:04:05+00', ran_at = now() where task = 'inbox'")
    with running("status", "--json", "--schema", "shop", "--dsn", shop.dsn) as program:
        assert program.ends() == 0, program
    told = json.loads("\n".join(program.stdout))
    (inbox,) = [each for each in told["upkeep"] if each["task"] == "inbox"]
    assert inbox["horizon"] == "2026-01-02T03:04:05.000000Z"


def test_a_stopped_worker_is_gone_from_its_port(shop: Shop) -> None:
    with running("worker", *APP, "--dsn", shop.dsn, "--metrics-port", "0") as program:
        url = started(program, "worker_started")["metrics"]
        program.send(signal.SIGTERM)
        assert program.ends() == 0
        with pytest.raises(urllib.error.URLError):
            get(url, "/livez")
