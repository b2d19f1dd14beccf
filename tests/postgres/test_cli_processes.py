"""The command line as processes: what runs until it is told to stop, how it stops, and what keeps it from running."""

import json
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from aftercommit.embedded import EmbeddedPostgres
from aftercommit.schema import migrate
from aftercommit.testing.postgres import SETTINGS_FOR_TESTS, with_database
from tests.support.investigations import eventually
from tests.support.programs import Program, kept_port, running
from tests.support.shop import OrderPaid, Shop, shop_outbox

pytestmark = pytest.mark.newest

APP = "tests.support.shop_app:outbox"
WRONG_PASSWORD = "host all limited 127.0.0.1/32 scram-sha-256\n"


def logged(program: Program, event: str) -> Callable[[], str | None]:
    """Whether a log line of this name has come; every line of stderr must be JSON."""

    def look() -> str | None:
        return next((line for line in program.stderr if json.loads(line)["event"] == event), None)

    return look


def wait_for(program: Program, event: str) -> dict[str, Any]:
    """The log line of this name, once it is there."""
    found = program.until(logged(program, event))
    assert found is not None, f"{event} was not logged: {program}"
    line: dict[str, Any] = json.loads(found)
    return line


def answers(url: str) -> bool | None:
    """Whether a server answers there and is ready."""
    with suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
        return answer.status == 200 or None
    return None


class TestRelay:
    async def test_it_carries_events_and_stops_gracefully_when_it_is_told_to(self, shop: Shop) -> None:
        shop.place("o-1")
        with running("relay", "--app", APP, "--dsn", shop.dsn) as relay:
            succeeded = wait_for(relay, "outbox_publish_succeeded")
            relay.send(signal.SIGTERM)
            assert relay.ends() == 0, relay
        assert succeeded["count"] == 1
        assert json.loads(relay.stderr[0])["event"] == "relay_started"
        assert json.loads(relay.stderr[-1])["event"] == "relay_stopped"
        assert relay.stdout == []
        assert shop.value("select count(*) from log") == 1
        assert shop.value("select count(*) from lane where relay is not null") == 0
        assert shop.value("select count(*) from relay") == 0

    def test_metrics_are_served_where_its_first_line_says(self, shop: Shop) -> None:
        shop.place("o-1")
        with running("relay", "--app", APP, "--dsn", shop.dsn, "--metrics-port", "0") as relay:
            url = wait_for(relay, "relay_started")["metrics"]
            wait_for(relay, "outbox_publish_succeeded")
            with urllib.request.urlopen(url, timeout=60) as response:
                text = response.read().decode()
            relay.send(signal.SIGINT)
            assert relay.ends() == 0, relay
        assert 'outbox_publish_success_total{event_type="order.placed",outbox="shop"} 1.0' in text

    def test_a_taken_metrics_port_is_one_line(self, shop: Shop) -> None:
        with running("relay", "--app", APP, "--dsn", shop.dsn, "--metrics-port", "0") as first:
            port = wait_for(first, "relay_started")["metrics"].rpartition(":")[2].partition("/")[0]
            with running("relay", "--app", APP, "--dsn", shop.dsn, "--metrics-port", port) as second:
                assert second.ends() == 1
        (line,) = second.stderr
        assert line.startswith(f"error: cannot serve metrics on 127.0.0.1:{port}")

    @pytest.mark.parametrize("command", ["relay", "worker"])
    def test_a_schema_that_is_not_migrated_ends_it_at_once(self, command: str, database: str) -> None:
        with running(command, "--app", APP, "--dsn", database) as program:
            assert program.ends() == 3, program
        assert program.stderr[-1].startswith("error: schema 'shop' does not exist")
        assert program.stderr[-1].endswith(f"run `aftercommit migrate up --dsn '{database}' --app {APP}`")
        assert not [line for line in program.stderr if line.startswith("Traceback")], program

    @pytest.mark.parametrize("command", ["relay", "worker"])
    def test_a_database_that_does_not_exist_ends_it_at_once(self, command: str, shop: Shop) -> None:
        with running(command, "--app", APP, "--dsn", with_database(shop.dsn, "nowhere")) as program:
            assert program.ends() == 1, program
        assert 'database "nowhere" does not exist' in program.stderr[-1]
        assert program.stderr[-1].startswith("error: ")
        assert "never retrieved" not in str(program)

    def test_the_application_is_found_in_the_current_directory(self, shop: Shop, tmp_path: Path) -> None:
        (tmp_path / "my_shop.py").write_text(
            "from aftercommit import Outbox\n"
            "outbox = Outbox('shop', scope={'tenant_id': str})\n"
            "outbox.declare('order.placed', aggregate='order', key='order_id')\n"
        )
        shop.place("o-1")
        environment = {"AFTERCOMMIT_APP": "my_shop:outbox", "DATABASE_URL": shop.dsn}
        with running("relay", folder=tmp_path, **environment) as relay:
            wait_for(relay, "outbox_publish_succeeded")

    async def test_log_lines_can_be_text(self, shop: Shop) -> None:
        shop.place("o-1")
        with running("--log-format", "text", "relay", "--app", APP, "--dsn", shop.dsn) as relay:
            line = relay.line("outbox_publish_succeeded", relay.stderr)
        assert " INFO outbox_publish_succeeded outbox=shop transport=log count=1 " in line


class TestWorker:
    async def test_it_handles_events_of_the_named_consumer_alone(self, shop: Shop) -> None:
        shop.place("o-1")
        shop.publish(OrderPaid("o-1", 5))
        with (
            running("relay", "--app", APP, "--dsn", shop.dsn),
            running("worker", "order-index", "--app", APP, "--dsn", shop.dsn) as worker,
        ):
            assert wait_for(worker, "consumer_started")["consumer"] == "order-index"
            await shop.value_becomes("select count(*) from processed_events", 1)
            worker.send(signal.SIGINT)
            assert worker.ends() == 0, worker
        assert shop.rows("select order_id from public.indexed") == [("o-1",)]
        assert shop.rows("select name, worker from consumer") == [("order-index", None)]

    @pytest.mark.thorough
    async def test_a_second_signal_ends_it_on_the_spot(self, shop: Shop) -> None:
        """The handler of this consumer never returns, so a graceful stop would take as long as its timeout."""
        shop.publish(OrderPaid("o-1", 5))
        with (
            running("relay", "--app", APP, "--dsn", shop.dsn) as relay,
            running("worker", "slow", "--app", APP, "--dsn", shop.dsn) as worker,
        ):
            wait_for(relay, "outbox_publish_succeeded")
            wait_for(worker, "consumer_started")
            await shop.value_becomes(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and application_name = 'aftercommit worker (slice)' and state = 'idle in transaction'",
                1,
            )
            worker.send(signal.SIGTERM)
            wait_for(worker, "worker_stopping")
            assert worker.process.poll() is None
            worker.send(signal.SIGTERM)
            assert worker.ends() == -signal.SIGTERM


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop and start."""
    server = EmbeddedPostgres(tmp_path / "own", settings=SETTINGS_FOR_TESTS, port=0)
    server.start()
    yield server
    server.stop("immediate")


class TestDatabaseThatComesAndGoes:
    @pytest.mark.thorough
    def test_each_part_of_up_that_loses_it_says_so_and_that_it_is_back(self, own_server: EmbeddedPostgres) -> None:
        def services(event: str) -> Counter[str]:
            said = [json.loads(line) for line in up.stderr if line.startswith("{") and event in line]
            return Counter(record["service"] for record in said)

        def over() -> str | None:
            lost, back = services("database_is_unavailable"), services("database_is_back")
            return "over" if lost == back and lost.keys() >= {"listener", "access", "rate limiter"} else None

        arguments = ("up", "--app", "systems.site:application", "--rate", "0", "--workers", "2", "--port")
        with kept_port(neighbours=2) as port, running(*arguments, str(port), DATABASE_URL=own_server.dsn) as up:
            url = up.line("open in a browser:", up.stderr).split()[-1]
            eventually(lambda: answers(url))
            own_server.stop("immediate")
            up.line("database_is_unavailable", up.stderr)
            own_server.start()
            assert up.until(over), (services("database_is_unavailable"), services("database_is_back"))
            up.send(signal.SIGTERM)
            assert up.ends() == 0, up

    @pytest.mark.thorough
    def test_it_is_waited_for_and_that_is_said_once(self, own_server: EmbeddedPostgres) -> None:
        with psycopg.connect(own_server.dsn, autocommit=True) as connection:
            migrate.up(connection, shop_outbox().shape)
        shop = Shop(own_server.dsn)
        shop.place("o-1")
        own_server.stop()
        with running("relay", "--app", APP, "--dsn", own_server.dsn) as relay:
            assert "cannot connect" in wait_for(relay, "database_is_unavailable")["error"]
            own_server.start()
            wait_for(relay, "database_is_back")
            wait_for(relay, "outbox_publish_succeeded")
            relay.send(signal.SIGTERM)
            assert relay.ends() == 0, relay
        outages = [json.loads(line)["service"] for line in relay.stderr if "database_is_unavailable" in line]
        assert len(outages) == len(set(outages)), relay
        assert shop.value("select count(*) from log") == 1

    @pytest.mark.thorough
    def test_a_wrong_password_ends_it_at_once(self, own_server: EmbeddedPostgres) -> None:
        with psycopg.connect(own_server.dsn, autocommit=True) as connection:
            connection.execute("create role limited login password 'right'")
            rules = own_server.cluster.data / "pg_hba.conf"
            rules.write_text(WRONG_PASSWORD + rules.read_text())
            connection.execute("select pg_reload_conf()")
        dsn = f"postgresql://limited:wr0ng@127.0.0.1:{own_server.port}/postgres"
        with running("relay", "--app", APP, "--dsn", dsn) as relay:
            assert relay.ends() == 1, relay
        assert 'password authentication failed for user "limited"' in relay.stderr[-1]
        assert "wr0ng" not in str(relay)

    @pytest.mark.thorough
    def test_a_missing_privilege_ends_it_with_the_remedy(self, own_server: EmbeddedPostgres) -> None:
        with psycopg.connect(own_server.dsn, autocommit=True) as connection:
            migrate.up(connection, shop_outbox().shape)
            connection.execute("create role limited login")
        dsn = f"postgresql://limited@127.0.0.1:{own_server.port}/postgres"
        with running("relay", "--app", APP, "--dsn", dsn) as relay:
            assert relay.ends() == 1, relay
        assert f"`aftercommit migrate grants limited --dsn {dsn} --app {APP}` prints what to grant" in relay.stderr[-1]

        with psycopg.connect(own_server.dsn, autocommit=True) as connection:
            for statement in migrate.grants(shop_outbox().shape, "limited"):
                connection.execute(statement.encode())
        with running("relay", "--app", APP, "--dsn", dsn) as relay:
            Shop(own_server.dsn).place("o-1")
            wait_for(relay, "outbox_publish_succeeded")


class TestStatus:
    def test_watching_goes_on_until_it_is_interrupted(self, shop: Shop) -> None:
        with running("status", "--watch", "--json", "--interval", "0.1", "--dsn", shop.dsn) as status:
            status.until(lambda: "enough" if len(status.stdout) >= 3 else None)
            status.send(signal.SIGINT)
            assert status.ends() == 0, status
        assert {json.loads(line)["outbox"] for line in status.stdout} == {"shop"}

    @pytest.mark.thorough
    def test_watching_survives_an_outage(self, own_server: EmbeddedPostgres) -> None:
        with psycopg.connect(own_server.dsn, autocommit=True) as connection:
            migrate.up(connection, shop_outbox().shape)
        with running("status", "--watch", "--interval", "0.1", "--dsn", own_server.dsn) as status:
            status.line("pending=0", status.stdout)
            own_server.stop()
            status.line("problem: cannot connect", status.stderr)
            before = len(status.stdout)
            own_server.start()
            assert status.until(lambda: next(iter(status.stdout[before:]), None)), status
