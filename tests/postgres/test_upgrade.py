"""An upgrade with data, writers that go on and on, and programs of the old and the new version side by side."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.engine import Engine, connected, wait_until
from tests.support.old_schema import migrate_up_to
from tests.support.programs import REPOSITORY
from tests.support.releases import NEWEST, Release, next_release, this_release
from tests.support.shop import OrderPlaced, Shop, shop_outbox
from tests.support.sizes import size

# A writer that waits for a lock longer than this fails. A migration asks for one second at a time.
WRITERS_WAIT = "30s"
# Every seventh moment of about 110, in turns before and after a statement; all of them in a campaign.
STRIDE = size("7", "1")
LEASE = ("--lease", "2")
# Between two events of a writer: a hundred a second or, in a campaign, some hundreds, which still leaves the programs
# that are watched room to start.
PAUSE = size(0.01, 0.002)
PARKED = "where consumer_name = 'recorder' and status = 'parked'"
MIGRATIONS_THAT_WAIT = """
    select count(*) from pg_stat_activity
    where datname = current_database() and application_name = 'aftercommit migrate' and wait_event_type = 'Lock'
"""


def with_data(dsn: str) -> None:
    """A log, pending and failed events, letters, an inbox and a checkpoint."""
    with connected(dsn) as connection:
        connection.execute("create table recorded (id bigint generated always as identity, order_id text, number int)")
        engine = Engine(connection, shop_outbox().shape)
        payload = '{"order_id": "old", "number": 1, "note": ""}'
        columns = {"aggregate_type": "order", "aggregate_id": "old", "tenant_id": "acme", "payload": payload}
        delivered, failed, _ = (engine.publish("order.placed", **columns) for _ in range(3))
        engine.deliver(delivered)
        # In plain SQL: our own statements are those of the newest tables.
        connection.execute(
            "update shop.outbox set status = 'failed', retry_count = 1, last_error = 'broken' where id = %s", [failed]
        )
        connection.execute(
            """
            insert into shop.dead_letter_events (event_id, consumer_name, status, event_type, schema_version,
                aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, created_at, error,
                error_class, attempts, tenant_id)
            select id, '@relay', 'parked', event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
                   correlation_id, payload, seq, created_at, 'broken', 'RuntimeError', 1, tenant_id
            from shop.outbox where status = 'failed';
            insert into shop.processed_events (event_id, consumer_name) select id, 'recorder' from shop.log;
            insert into shop.consumer (name, position, declared_by) values ('recorder', 1, '');
            insert into shop.dead_letter_events (event_id, consumer_name, status, event_type, schema_version,
                aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, position, created_at, error,
                error_class, attempts, tenant_id)
            select id, 'recorder', 'parked', event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
                   correlation_id, payload, seq, position, created_at, 'broken', 'RuntimeError', 3, tenant_id
            from shop.log;
            update shop.lane set relay = null, token = null, leased_until = null;
            """
        )


class Writers:
    """Threads that publish all the time, each for an order of its own; to wait too long for a lock is an error."""

    def __init__(self, shop: Shop, count: int = 2) -> None:
        self.published = [0] * count
        self.problems: list[Exception] = []
        self._shop = shop
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(count)]

    def __enter__(self) -> Self:
        """At work."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Finished, with the last one committed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def go_on(self, events: int = 20) -> None:
        """Until each of them has published some more."""
        wanted = [count + events for count in self.published]
        wait_until(lambda: self.problems or all(map(int.__ge__, self.published, wanted)), timeout=60)
        assert self.problems == []

    def _write(self, number: int) -> None:
        try:
            with psycopg.connect(self._shop.dsn, options=f"-c lock_timeout={WRITERS_WAIT}") as connection:
                while not self._stop.wait(PAUSE):
                    event = OrderPlaced(f"o-{number}", self.published[number] + 1)
                    self._shop.outbox.publish(connection, event, tenant_id="acme")
                    connection.commit()
                    self.published[number] += 1
        except psycopg.Error as problem:
            self.problems.append(problem)


@pytest.fixture
def newer(tmp_path: Path) -> Release:
    return next_release(tmp_path)


@pytest.fixture
def busy_shop(shop: Shop) -> Shop:
    with_data(shop.dsn)
    return shop


def grows(shop: Shop, query: str) -> None:
    """Until a count is higher than it is now."""
    before = shop.value(query)
    wait_until(lambda: shop.value(query) > before, timeout=60)


def relays_and_workers_go_on(shop: Shop) -> None:
    grows(shop, "select position from head")
    grows(shop, "select position from consumer where name = 'recorder'")


def alive(shop: Shop, count: int) -> None:
    """Until this many relays have said that they are there."""
    query = "select count(*) from relay where seen_at > clock_timestamp() - interval '10 seconds'"
    wait_until(lambda: shop.value(query) >= count, timeout=60)


@pytest.mark.thorough
@pytest.mark.newest
@pytest.mark.sized
@pytest.mark.timeout(300)
def test_an_upgrade_beside_running_writers_relays_and_workers_loses_and_stops_nothing(busy_shop, newer):
    shop, dsn, old = busy_shop, busy_shop.dsn, this_release()
    writers = Writers(shop)
    with ExitStack() as stack:
        start = stack.enter_context
        old_relay, old_worker = start(old.run("relay", *LEASE, dsn=dsn)), start(old.run("worker", *LEASE, dsn=dsn))
        with writers:
            relays_and_workers_go_on(shop)
            migrate_beside_a_long_reader(shop, newer, writers)
            assert shop.value("select count(*) from pg_index where not indisvalid") == 0

            # The old ones work on, can be started again, and share the work with the new ones.
            relays_and_workers_go_on(shop)
            for program in (old_relay, old_worker):
                program.send(signal.SIGTERM)
                assert program.ends() == 0, str(program)
            old_relay, old_worker = start(old.run("relay", *LEASE, dsn=dsn)), start(old.run("worker", *LEASE, dsn=dsn))
            relays_and_workers_go_on(shop)
            start(newer.run("relay", *LEASE, dsn=dsn))
            start(newer.run("worker", *LEASE, dsn=dsn))
            alive(shop, 2)
            relays_and_workers_go_on(shop)

            for program in (old_relay, old_worker):
                program.send(signal.SIGKILL)
                program.ends()
            relays_and_workers_go_on(shop)
        everything_is_handled(shop)
    assert writers.problems == []
    nothing_is_lost(shop, writers)


def migrate_beside_a_long_reader(shop: Shop, newer: Release, writers: Writers) -> None:
    """Somebody reads the outbox in a long transaction: the migration asks again and again, is killed, and run again."""
    with ExitStack() as stack:
        with connected(shop.dsn, autocommit=False) as reader:
            reader.execute("select count(*) from shop.outbox")
            with newer.run("migrate", "up", dsn=shop.dsn) as killed:
                wait_until(lambda: shop.value(MIGRATIONS_THAT_WAIT) > 0, timeout=60)
                writers.go_on()
                killed.send(signal.SIGKILL)
                assert killed.ends() == -signal.SIGKILL
            migrating = stack.enter_context(newer.run("migrate", "up", "--patience", "120", dsn=shop.dsn))
            wait_until(lambda: shop.value(MIGRATIONS_THAT_WAIT) > 0, timeout=60)
            writers.go_on()
        assert migrating.ends(timeout=120) == 0, str(migrating)
    assert shop.value("select max(version) from migration") == NEWEST + 1


def everything_is_handled(shop: Shop) -> None:
    wait_until(lambda: shop.value("select count(*) from outbox where status = 'pending'") == 0, timeout=90)
    query = "select (select position from consumer where name = 'recorder') = (select position from head)"
    wait_until(lambda: shop.value(query), timeout=120)


def nothing_is_lost(shop: Shop, writers: Writers) -> None:
    log = shop.log()
    assert [position for position, _, _ in log] == list(range(1, len(log) + 1))
    recorded = shop.rows("select order_id, number from recorded order by id")
    for number, published in enumerate(writers.published):
        everything = list(range(1, published + 1))
        assert [each for _, order, each in log if order == f"o-{number}"] == everything
        assert [each for order, each in recorded if order == f"o-{number}"] == everything
    assert shop.value("select count(*) from outbox where status = 'failed'") == 1
    assert shop.value(f"select count(*) from dead_letter_events {PARKED}") == 1
    assert shop.value("select count(*) from dead_letter_events where consumer_name = '@relay'") == 1


@contextmanager
def template_at(server: PostgresServerForTests, version: int) -> Iterator[str]:
    """A database with data as the code left it whose newest migration this was, with nobody in it."""
    dsn = server.clone(server.template("empty", prepare=lambda dsn: None))
    with connected(dsn) as connection:
        migrate_up_to(connection, shop_outbox().shape, version)
    with_data(dsn)
    name = str(conninfo_to_dict(dsn)["dbname"])
    yield name
    with connected(server.dsn) as connection:
        query = "select datname from pg_database where datname like %s"
        for (database,) in connection.execute(query, [f"{name}_killed_%"]).fetchall():
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database)))
    server.drop(dsn)


@pytest.mark.thorough
@pytest.mark.newest
@pytest.mark.sized
@pytest.mark.timeout(900)
def test_a_migration_that_is_killed_at_any_statement_is_completed_by_the_next_run(postgres_server, newer):
    with template_at(postgres_server, 1) as template:
        command = [sys.executable, "-m", "tests.support.killed_migrations", postgres_server.dsn, template, STRIDE]
        environment = {**os.environ, "PYTHONPATH": str(newer.source)}
        finished = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
        runs = [json.loads(line) for line in finished.stdout.splitlines()]

        assert [run["status"] for run in runs] == [-signal.SIGKILL] * (len(runs) - 1) + [0]
        assert {run["looks"] for run in runs} == {"current"}
        # Killed early, the second run does everything; killed later, what was left.
        assert f"applied {NEWEST + 1:04d}_next" in runs[0]["done"]
        assert len({str(run["done"]) for run in runs}) >= 5
        for run in (runs[0], runs[len(runs) // 2], runs[-1]):
            has_kept_its_data(run["dsn"])


def has_kept_its_data(dsn: str) -> None:
    with connected(dsn) as connection:
        counts = connection.execute(
            "select (select count(*) from shop.log), (select count(*) from shop.outbox),"
            " (select count(*) from shop.dead_letter_events), (select count(*) from shop.processed_events)"
        ).fetchone()
    assert counts == (1, 2, 2, 1)
