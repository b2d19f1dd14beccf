"""Retention: what is old goes in small steps, what somebody still needs stays and is named, nobody is in the way."""

import asyncio
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg import sql

from aftercommit.cli import cli
from aftercommit.errors import DatabaseError, DeclarationError, SweepUnderWay
from aftercommit.event.identity import uuid7
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.relay import RelaySettings, sweeper
from aftercommit.schema import migrate, partitions, retention
from aftercommit.schema.retention import Retention, Round, Swept, the_only_one
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.engine import Engine, connected, migrate_up, value, wait_until, waits_for_a_lock
from tests.support.pgbouncer import PgBouncer
from tests.support.relays import relay_on
from tests.support.shop import Shop

SHAPE = Shape()
DAY = timedelta(days=1)
NOTHING = Retention(log=None, inbox=None, keys=None, dead_letters=None, operations=None)
LETTER = """
    insert into aftercommit.dead_letter_events (event_id, consumer_name, status, event_type, schema_version,
        aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, position, created_at, error,
        error_class, attempts, next_retry_at, first_seen_at, last_seen_at)
    values (%s, 'index', %s, 'thing.happened', 1, 'thing', '1', now(), 'c', '{}', 1, %s, now(), 'e', 'E', 1,
            case when %s = 'retrying' then now() end, now() - interval '90 days', now() - interval '40 days')
"""
OPERATION = """
    insert into aftercommit.operation (id, kind, status, requested_by, target, selection, created_at, finished_at)
    values (%s, 'replay', %s, 'anna', 'index', '{}', now() - interval '200 days',
            case when %s in ('done', 'aborted') then now() - interval '100 days' end)
"""


@pytest.fixture
def database(postgres_server: PostgresServerForTests, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the test's own, which has in it what the test's other fixture is for."""
    prepare = next((PREPARED[name] for name in PREPARED if name in request.fixturenames), lambda dsn: None)
    dsn = postgres_server.clone(postgres_server.template(f"retention {prepare.__name__}", prepare))
    yield dsn
    postgres_server.drop(dsn)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(database) as connection:
        yield connection


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to leave anything to the next round."""
    monkeypatch.setattr(retention, "PATIENCE", 60.0)
    monkeypatch.setattr(sweeper, "ROUND_SECONDS", 60.0)


def handle(connection: psycopg.Connection[Any], *events: UUID, days: float = 40, consumer: str = "index") -> None:
    """Inbox rows as if these events had been handled some days ago."""
    for event in events:
        connection.execute(
            "insert into aftercommit.processed_events values (%s, %s, now() - make_interval(secs => %s))",
            [event, consumer, days * 86400],
        )


def handle_many(connection: psycopg.Connection[Any], count: int, days: float = 40) -> None:
    connection.execute(
        "insert into aftercommit.processed_events select gen_random_uuid(), 'index', now() - make_interval(secs => %s)"
        " from generate_series(1, %s)",
        [days * 86400, count],
    )


def operate(connection: psycopg.Connection[Any], status: str, events: int = 0, position: int | None = None) -> UUID:
    operation = uuid4()
    connection.execute(OPERATION, [operation, status, status])
    connection.execute(
        "insert into aftercommit.operation_event (operation_id, ordinal, event_id, position)"
        " select %s, n, gen_random_uuid(), %s from generate_series(1, %s) n",
        [operation, position, events],
    )
    return operation


def sweep(connection: psycopg.Connection[Any], keeping: Retention | None = None, **options: Any) -> dict[str, Swept]:
    """A round by hand; what became of each kind of thing."""
    options.setdefault("whole", True)
    a_round = Round(connection, SHAPE, keeping or Retention(), options.pop("seconds", 100.0), **options)
    return {each.task: each for each in a_round.run()}


def upkeep(connection: psycopg.Connection[Any], task: str, column: str) -> Any:
    query = sql.SQL("select {} from aftercommit.upkeep where task = {}").format(sql.Identifier(column), task)
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def inbox(connection: psycopg.Connection[Any]) -> set[UUID]:
    return {row[0] for row in connection.execute("select event_id from aftercommit.processed_events")}


class TestDeclaration:
    @pytest.mark.parametrize("keep", [timedelta(), timedelta(seconds=-1), timedelta(days=40_000), 30, "30d"])
    def test_a_time_that_cannot_be_kept_is_refused_by_its_name(self, keep: Any) -> None:
        with pytest.raises(DeclarationError, match=r"retention inbox=.* or None to keep it forever"):
            Retention(inbox=keep)

    def test_the_log_is_kept_for_ever_unless_somebody_says_otherwise(self) -> None:
        assert Retention().log is None
        assert RelaySettings().retention == Retention()


class TestInbox:
    def test_what_was_handled_long_ago_goes_and_the_rest_stays(self, connection) -> None:
        old, new = uuid7(), uuid7()
        handle(connection, old, days=31)
        handle(connection, new, days=29)

        assert sweep(connection)["inbox"] == Swept("inbox", timedelta(days=30), removed=1)

        assert inbox(connection) == {new}
        assert upkeep(connection, "inbox", "removed") == 1

    @pytest.mark.thorough
    def test_the_horizon_stands_before_the_first_row_goes_and_never_runs_back(self, database, connection) -> None:
        """Whoever asks what is sure to be in the inbox must never hear a horizon that is older than what is gone."""
        handle(connection, uuid7())
        with connected(database, autocommit=False) as other:
            other.execute("select from aftercommit.processed_events for update")
            swept = sweep(connection)["inbox"]

        assert (swept.removed, swept.kept_back) == (0, ("1 held by another session's lock",))
        assert value(connection, "select count(*) from aftercommit.processed_events") == 1
        horizon = upkeep(connection, "inbox", "horizon")
        assert horizon is not None

        sweep(connection, Retention(inbox=timedelta(days=300)))
        assert upkeep(connection, "inbox", "horizon") == horizon
        assert value(connection, "select count(*) from aftercommit.processed_events") == 1

    def test_rows_that_are_gone_were_handled_before_the_horizon(self, connection) -> None:
        for seconds in range(20):
            handle(connection, uuid7(), days=30 + (seconds - 10) / 86400)

        before = dict(connection.execute("select event_id, processed_at from aftercommit.processed_events").fetchall())
        sweep(connection)

        gone = before.keys() - inbox(connection)
        assert gone
        assert all(before[event] < upkeep(connection, "inbox", "horizon") for event in gone)

    def test_an_event_that_is_still_in_the_outbox_keeps_its_row(self, connection) -> None:
        """Behind the bus one consumer may have handled what another still fails on: it must not handle it again."""
        event = Engine(connection).publish()
        handle(connection, event, uuid7())

        swept = sweep(connection)["inbox"]

        assert (swept.removed, swept.kept_back) == (1, ("1 held by events that are still in the outbox",))
        assert inbox(connection) == {event}
        assert upkeep(connection, "inbox", "kept_back") == {"events that are still in the outbox": 1}

    @pytest.mark.parametrize("status", ["retrying", "waiting", "parked", "discarded", "resolved"])
    def test_an_event_with_a_dead_letter_that_can_come_back_keeps_its_row(self, connection, status) -> None:
        event = uuid7()
        handle(connection, event, consumer="other")
        connection.execute(LETTER, [event, status, 7, status])

        swept = sweep(connection, Retention(dead_letters=None))["inbox"]

        if status == "resolved":
            assert swept.removed == 1
        else:
            assert (swept.removed, swept.kept_back) == (0, ("1 held by dead letters of 'index'",))

    def test_an_event_that_its_consumer_has_yet_to_come_past_keeps_its_row(self, connection) -> None:
        """Several at once: a worker that died has handled events above its checkpoint, and is given them again."""
        engine = Engine(connection)
        events = [engine.publish() for _ in range(3)]
        for event in events:
            engine.deliver(event)
        handle(connection, *events)
        handle(connection, *events, consumer="elsewhere")
        connection.execute("insert into aftercommit.consumer (name, position, declared_by) values ('index', 1, 'test')")

        swept = sweep(connection)["inbox"]

        assert swept.removed == 4
        assert swept.kept_back == ("2 held by the checkpoint of 'index', which is before them",)
        assert inbox(connection) == set(events[1:])
        connection.execute("update aftercommit.consumer set position = 3")
        assert sweep(connection)["inbox"].removed == 2

    def test_a_pass_under_way_never_goes_beyond_the_horizon_on_record(self, connection, monkeypatch) -> None:
        """Cut short with 30 days, held back with 10 while an operation runs: what it relies on is not removed."""
        monkeypatch.setattr(retention, "PAGES_AT_ONCE", 1)
        handle_many(connection, 2000, days=20)
        assert not sweep(connection, whole=False, stopping=after(6))["inbox"].finished
        horizon, operation = upkeep(connection, "inbox", "horizon"), operate(connection, "running")

        shorter = Retention(inbox=timedelta(days=10))
        for _ in range(2):
            swept = sweep(connection, shorter, whole=False)["inbox"]
            assert (swept.removed, swept.kept_back) == (0, (f"operation {operation} (replay, by anna) is running",))
            assert upkeep(connection, "inbox", "horizon") == horizon

        connection.execute("update aftercommit.operation set status = 'done', finished_at = now()")
        assert sweep(connection, shorter, whole=False)["inbox"].removed == 2000

    def test_a_pass_goes_on_with_the_moment_that_stands_in_its_horizon(self, connection, monkeypatch) -> None:
        """Whatever the time says that rows are kept: only what the horizon has named may go."""
        monkeypatch.setattr(retention, "PAGES_AT_ONCE", 1)
        handle_many(connection, 2000, days=20)
        assert not sweep(connection, whole=False, stopping=after(6))["inbox"].finished
        connection.execute("update aftercommit.upkeep set keep = '10 days' where task = 'inbox'")

        assert sweep(connection, Retention(inbox=timedelta(days=10)), whole=False)["inbox"].removed == 0

    @pytest.mark.parametrize("status", ["running", "aborting"])
    def test_the_horizon_rests_while_an_operation_is_under_way(self, connection, status) -> None:
        """Its events were chosen by the horizon of that moment."""
        handle(connection, uuid7())
        operation = operate(connection, status)

        swept = sweep(connection)["inbox"]

        assert (swept.removed, swept.kept_back) == (0, (f"operation {operation} (replay, by anna) is running",))
        assert upkeep(connection, "inbox", "horizon") is None
        connection.execute("update aftercommit.operation set status = 'done', finished_at = now()")
        assert sweep(connection)["inbox"].removed == 1

    def test_an_operation_that_begins_at_this_moment_finds_the_horizon_it_has_read(self, database, connection) -> None:
        handle(connection, uuid7())
        with (
            connected(database, autocommit=False) as beginner,
            connected(database, application_name="sweeping") as other,
            ThreadPoolExecutor(1) as program,
        ):
            read = beginner.execute("select horizon from aftercommit.upkeep where task = 'inbox' for share").fetchone()
            sweeping = program.submit(sweep, other)
            wait_until(lambda: sweeping.done() or waits_for_a_lock(database, "sweeping"))
            beginner.execute(OPERATION, [uuid4(), "running", "running"])
            beginner.commit()

            # Whether it waited long enough or gave up: there is somebody who relies on the horizon.
            assert sweeping.result(timeout=60)["inbox"].kept_back
        assert read == (None,)
        assert upkeep(connection, "inbox", "horizon") is None
        assert value(connection, "select count(*) from aftercommit.processed_events") == 1


class TestPasses:
    def test_a_pass_that_was_stopped_is_taken_up_by_the_next_program(self, database, connection, monkeypatch) -> None:
        monkeypatch.setattr(retention, "PAGES_AT_ONCE", 1)
        handle_many(connection, 2000)
        pages = value(connection, "select pg_relation_size('aftercommit.processed_events') / 8192")
        assert pages > 5

        first = sweep(connection, whole=False, stopping=after(6))["inbox"]
        assert 0 < first.removed < 2000
        assert not first.finished
        assert 0 < upkeep(connection, "inbox", "next_page") < pages

        with connected(database) as other:
            second = sweep(other, whole=False)["inbox"]
        assert (first.removed + second.removed, second.finished) == (2000, True)
        assert upkeep(connection, "inbox", "next_page") is None
        assert upkeep(connection, "inbox", "removed") == 2000

    def test_what_was_held_back_in_the_first_part_of_a_pass_is_still_said_at_its_end(
        self, connection, monkeypatch
    ) -> None:
        monkeypatch.setattr(retention, "PAGES_AT_ONCE", 1)
        handle(connection, Engine(connection).publish())
        handle_many(connection, 2000)

        assert not sweep(connection, whole=False, stopping=after(6))["inbox"].finished
        swept = sweep(connection, whole=False)["inbox"]

        assert swept.finished
        assert swept.kept_back == ("1 held by events that are still in the outbox",)

    def test_a_table_rests_for_a_twentieth_of_the_time_its_rows_are_kept(self, connection) -> None:
        assert sweep(connection, whole=False)["inbox"].finished
        handle(connection, uuid7())

        assert sweep(connection, whole=False)["inbox"].removed == 0
        connection.execute("update aftercommit.upkeep set began_at = began_at - interval '37 hours'")
        assert sweep(connection, whole=False)["inbox"].removed == 1

    def test_a_changed_time_begins_a_new_pass(self, connection) -> None:
        sweep(connection, Retention(inbox=timedelta(days=300)), whole=False)
        handle(connection, uuid7())

        assert sweep(connection, whole=False)["inbox"].removed == 1

    def test_a_round_ends_when_its_time_is_over(self, connection) -> None:
        handle_many(connection, 100)

        swept = sweep(connection, Retention(log=DAY), seconds=0.0)

        assert {task for task, each in swept.items() if not each.finished} >= {"inbox", "log"}
        assert value(connection, "select count(*) from aftercommit.processed_events") == 100

    def test_a_round_refuses_a_connection_that_would_hold_a_transaction(self, database, connection) -> None:
        with connected(database, autocommit=False) as other, pytest.raises(DatabaseError, match="autocommit=True"):
            sweep(other)

    @pytest.mark.thorough
    def test_pages_are_read_by_their_place_and_guards_by_their_keys(self, connection) -> None:
        """However large the tables are, a statement reads its pages and nothing from end to end."""
        handle_many(connection, 50_000)
        connection.execute(
            "insert into aftercommit.outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload,"
            " status, retry_count, last_error) select gen_random_uuid(), 'thing', n, 'thing.happened', 'c', '{}',"
            " 'failed', 1, 'e' from generate_series(1, 20000) n"
        )
        connection.execute(
            "insert into aftercommit.dead_letter_events (event_id, consumer_name, status, event_type, schema_version,"
            " aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, created_at, error, error_class,"
            " attempts) select id, 'index', 'parked', event_type, 1, 'thing', aggregate_id, now(), 'c', '{}', seq,"
            " now(), 'e', 'E', 1 from aftercommit.outbox"
        )
        connection.execute(
            "insert into aftercommit.log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type,"
            " schema_version, occurred_at, correlation_id, payload, retry_count, created_at) select n, now(),"
            " gen_random_uuid(), n, 1, 'thing', n, 'thing.happened', 1, now(), 'c', '{}', 0, now()"
            " from generate_series(1, 20000) n"
        )
        connection.execute("update aftercommit.head set position = 20000")
        connection.execute("insert into aftercommit.consumer (name, position, declared_by) values ('index', 5, 'test')")
        connection.execute("vacuum analyze")
        statements = Statements(SHAPE)
        statement = statements.render(
            "sweep_pages", old=statements.part("old_inbox"), table=sql.Identifier("processed_events")
        )
        parameters = {"first": "(64,0)", "last": "(96,0)", "before": "now"}
        with connection.transaction(force_rollback=True):
            rows = connection.execute(f"explain (analyze, costs off) {statement}".encode(), parameters).fetchall()

        plan = "\n".join(row[0] for row in rows)
        # Consumers are few, the head is one row, and the partitions ahead are empty.
        scanned = set(re.findall(r"Seq Scan on (\w+)", plan))
        assert scanned <= {"consumer", "head", "log_000001", "log_000002"}
        assert "log_000000_id_idx" in plan
        assert "Tid Range Scan on processed_events" in plan
        assert "outbox_pkey" in plan
        assert "dead_letter_events_pkey" in plan


def after(calls: int) -> Callable[[], bool]:
    """Says stop when it was asked this often."""
    asked = iter(range(calls))
    return lambda: next(asked, None) is None


class TestOtherTables:
    def test_idempotency_keys_go_after_their_time(self, connection) -> None:
        for key, days in (("old", 8), ("new", 6)):
            connection.execute(
                "insert into aftercommit.published_key (key, event_ids, created_at)"
                " values (%s, array[gen_random_uuid()], now() - make_interval(days => %s))",
                [key, days],
            )

        assert sweep(connection)["keys"].removed == 1
        assert value(connection, "select key from aftercommit.published_key") == "new"

    def test_the_key_of_an_event_that_is_still_in_the_outbox_stays(self, connection) -> None:
        event = Engine(connection).publish()
        connection.execute(
            "insert into aftercommit.published_key (key, event_ids, created_at)"
            " values ('pending', array[%s], now() - interval '8 days'), ('gone', array[%s], now() - interval '8 days')",
            [event, uuid7()],
        )

        swept = sweep(connection)["keys"]

        assert (swept.removed, swept.kept_back) == (1, ("1 held by events that are still in the outbox",))
        assert value(connection, "select key from aftercommit.published_key") == "pending"

    def test_only_dead_letters_that_are_dealt_with_go(self, connection) -> None:
        for status in ("retrying", "waiting", "parked", "resolved", "discarded"):
            connection.execute(LETTER, [uuid7(), status, None, status])
        connection.execute(LETTER, [uuid7(), "resolved", None, "resolved"])
        connection.execute("update aftercommit.dead_letter_events set last_seen_at = now() where status = 'discarded'")

        assert sweep(connection)["dead_letters"].removed == 2

        left = connection.execute("select status from aftercommit.dead_letter_events order by 1").fetchall()
        assert [row[0] for row in left] == ["discarded", "parked", "retrying", "waiting"]

    def test_operations_go_with_their_events_a_few_at_a_time(self, connection, monkeypatch) -> None:
        monkeypatch.setattr(retention, "EVENTS_AT_ONCE", 3)
        operate(connection, "done", events=10)
        running = operate(connection, "running", events=2)

        half = sweep(connection, stopping=after(8))["operations"]
        assert (half.removed, half.finished) == (0, False)
        assert value(connection, "select count(*) from aftercommit.operation_event") == 4 + 2
        assert sweep(connection)["operations"].removed == 1

        assert value(connection, "select id from aftercommit.operation") == running
        assert value(connection, "select count(*) from aftercommit.operation_event") == 2

    def test_what_is_kept_for_ever_is_not_looked_at(self, connection) -> None:
        handle(connection, uuid7())
        operate(connection, "done")

        assert all(each == Swept(each.task, None) for each in sweep(connection, NOTHING).values())
        assert upkeep(connection, "inbox", "keep") is None


@pytest.fixture
def log(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """A log of three full partitions of ten, all of it old."""
    monkeypatch.setattr(partitions, "POSITIONS_PER_PARTITION", 10)
    with connected(database) as connection:
        yield connection


def write_old_log(dsn: str) -> None:
    with pytest.MonkeyPatch.context() as patch, connected(dsn) as connection:
        patch.setattr(partitions, "POSITIONS_PER_PARTITION", 10)
        migrate.up(connection, SHAPE)
        engine = Engine(connection)
        for number in range(1, 33):
            engine.deliver(engine.publish())
            if number % 10 == 0:
                partitions.ensure(connection, SHAPE)
        connection.execute("update aftercommit.log set ts = ts - interval '2 days'")


PREPARED = {"log": write_old_log, "connection": migrate_up}


class TestLog:
    def test_old_partitions_are_dropped(self, log) -> None:
        swept = sweep(log, Retention(log=DAY))["log"]

        assert swept.partitions == ("log_000000", "log_000001", "log_000002")
        assert (swept.removed, swept.kept_back) == (3, ())
        assert upkeep(log, "log", "horizon") is not None
        assert value(log, "select min(position) from aftercommit.log") == 31

    def test_what_a_consumer_has_yet_to_read_stays_unless_told(self, log) -> None:
        log.execute("insert into aftercommit.consumer (name, position, declared_by) values ('slow', 15, 'test')")

        swept = sweep(log, Retention(log=DAY))["log"]
        assert (swept.partitions, swept.kept_back) == (
            ("log_000000",),
            ("consumer 'slow' has only read up to position 15",),
        )
        assert upkeep(log, "log", "kept_back") == {"consumer 'slow' has only read up to position 15": 0}

        swept = sweep(log, Retention(log=DAY), even_if_unread=True)["log"]
        assert swept.partitions == ("log_000001", "log_000002")

    @pytest.mark.parametrize(("status", "goes"), [("parked", False), ("retrying", False), ("resolved", True)])
    def test_what_an_open_dead_letter_points_at_stays(self, log, status, goes) -> None:
        log.execute(LETTER, [uuid7(), status, 12, status])

        swept = sweep(log, Retention(log=DAY))["log"]

        assert swept.removed == (3 if goes else 1)
        assert swept.kept_back == (() if goes else ("'index' has an open dead letter at position 12",))

    def test_what_an_operation_goes_through_stays_until_it_ends(self, log) -> None:
        operation = operate(log, "running", events=1, position=22)

        swept = sweep(log, Retention(log=DAY))["log"]

        assert swept.partitions == ("log_000000", "log_000001")
        assert swept.kept_back == (f"operation {operation} is running and needs position 22",)

    def test_what_an_operation_goes_through_by_the_transport_stays_until_it_ends(self, log) -> None:
        """Such an operation has events and no positions: they are read from the log when their turn comes."""
        operation = operate(log, "running", events=1)
        log.execute(
            "update aftercommit.operation_event set event_id = (select id from aftercommit.log where position = 22)"
        )

        swept = sweep(log, Retention(log=DAY))["log"]

        assert swept.partitions == ("log_000000", "log_000001")
        assert swept.kept_back == (f"operation {operation} is running and needs position 22",)
        log.execute("update aftercommit.operation_event set state = 'done'")
        assert sweep(log, Retention(log=DAY))["log"].partitions == ("log_000002",)

    def test_what_waits_in_the_outbox_once_more_stays(self, log) -> None:
        """That it was published before, nothing else would tell."""
        columns = "id, event_type, aggregate_type, aggregate_id, correlation_id, payload"
        log.execute(
            f"insert into aftercommit.outbox ({columns}, next_retry_at) "
            f"select {columns}, now() from aftercommit.log where position = 12"
        )
        event_id = log.execute("select id from aftercommit.outbox").fetchone()[0]

        swept = sweep(log, Retention(log=DAY))["log"]

        assert swept.partitions == ("log_000000",)
        assert swept.kept_back == (f"event {event_id} at position 12 waits in the outbox to be delivered again",)

    def test_a_partition_that_an_interrupted_run_has_marked_is_looked_at_again(self, log) -> None:
        log.execute(
            "do $$ begin execute format('comment on table aftercommit.log_000000 is %L', '"
            + partitions._CONDEMNED
            + "'); end $$"
        )
        log.execute("insert into aftercommit.consumer (name, position, declared_by) values ('slow', 5, 'test')")

        swept = sweep(log, Retention(log=DAY))["log"]

        assert (swept.removed, swept.kept_back) == (0, ("consumer 'slow' has only read up to position 5",))
        assert not partitions.existing(log, SHAPE)[0].condemned
        log.execute("update aftercommit.consumer set position = 32")
        assert sweep(log, Retention(log=DAY))["log"].removed == 3

    @pytest.mark.thorough
    def test_a_log_that_somebody_has_locked_is_left_to_the_next_round(self, database, log, monkeypatch) -> None:
        monkeypatch.setattr(retention, "PATIENCE", 0.2)
        handle(log, uuid7())
        with connected(database, autocommit=False) as other:
            other.execute("lock table aftercommit.log in access exclusive mode")
            swept = sweep(log, Retention(log=DAY))
        assert swept["log"].removed == 0
        assert "another session is in the way" in swept["log"].kept_back[0]

    def test_a_reader_is_waited_for_briefly_and_named_as_the_reason(self, database, log, monkeypatch) -> None:
        with connected(database, autocommit=False) as reader, monkeypatch.context() as impatient:
            impatient.setattr(retention, "PATIENCE", 0.2)
            reader.execute("select count(*) from aftercommit.log")
            swept = sweep(log, Retention(log=DAY))["log"]
            assert (swept.removed, len(swept.kept_back)) == (0, 1)
            assert swept.kept_back[0].startswith("partition log_000000: another session is in the way")
        assert sweep(log, Retention(log=DAY))["log"].removed == 3

    def test_a_role_that_may_not_drop_removes_the_rest_and_says_who_may(self, database, log) -> None:
        role = f"limited_{uuid4().hex[:8]}"
        log.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        try:
            for statement in migrate.grants(SHAPE, role):
                log.execute(statement.encode())
            handle(log, uuid7())
            operate(log, "done", events=3)
            with connected(database, user=role) as limited:
                swept = sweep(limited, Retention(log=DAY))
            assert (swept["inbox"].removed, swept["operations"].removed) == (1, 1)
            assert "Run retention as the owner of the schema" in swept["log"].kept_back[0]
        finally:
            log.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)))

    def test_a_role_that_may_not_drop_is_told_so_only_where_something_is_to_be_dropped(self, database, log) -> None:
        role = f"limited_{uuid4().hex[:8]}"
        log.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        try:
            for statement in migrate.grants(SHAPE, role):
                log.execute(statement.encode())
            with connected(database, user=role) as limited:
                assert sweep(limited, Retention(log=30 * DAY))["log"].kept_back == ()
        finally:
            log.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)))

    def test_a_dry_run_names_operations_under_way(self, log) -> None:
        operation = operate(log, "running")
        handle(log, uuid7())

        swept = sweep(log, dry_run=True)["inbox"]

        assert (swept.removed, swept.kept_back) == (0, (f"operation {operation} (replay, by anna) is running",))

    def test_a_dry_run_counts_the_same_and_changes_nothing(self, log) -> None:
        handle(log, uuid7(), uuid7())
        operate(log, "done", events=3)
        keeping = Retention(log=DAY)

        seen = sweep(log, keeping, dry_run=True)

        assert seen["log"].partitions == ("log_000000", "log_000001", "log_000002")
        assert (seen["inbox"].removed, seen["operations"].removed) == (2, 1)
        assert value(log, "select count(*) from aftercommit.log") == 32
        assert value(log, "select count(ran_at) from aftercommit.upkeep") == 0
        assert {task: each.removed for task, each in sweep(log, keeping).items()} == {
            task: each.removed for task, each in seen.items()
        }


class TestOneAtATime:
    def test_of_two_programs_one_does_the_round(self, database, connection) -> None:
        with (
            connected(database) as other,
            the_only_one(connection, SHAPE, interval=60, lease=60) as ours,
            the_only_one(other, SHAPE, interval=0, lease=60) as theirs,
        ):
            assert ours is not None
            assert theirs is None

    def test_the_next_round_is_due_after_the_interval_whoever_does_it(self, database, connection) -> None:
        with the_only_one(connection, SHAPE, interval=60, lease=60) as ours:
            assert ours
        with connected(database) as other:
            with the_only_one(other, SHAPE, interval=60, lease=60) as theirs:
                assert not theirs
            with the_only_one(other, SHAPE, interval=0, lease=60) as theirs:
                assert theirs

    def test_a_program_that_died_in_its_round_keeps_the_others_waiting_for_its_lease_alone(
        self, database, connection
    ) -> None:
        connection.execute(Statements(SHAPE)["claim_sweep"], {"interval": 0, "lease": 60})
        with (
            pytest.raises(SweepUnderWay, match="another program has been sweeping outbox 'aftercommit'"),
            the_only_one(connection, SHAPE, interval=0, lease=60, max_wait_seconds=0.01),
        ):
            raise AssertionError("somebody else has the round")
        connection.execute("update aftercommit.upkeep set leased_until = now() - interval '1 second'")
        with the_only_one(connection, SHAPE, interval=0, lease=60, max_wait_seconds=0.01) as ours:
            assert ours

    def test_a_turn_is_renewed_while_the_round_goes_on_and_ends_with_somebody_elses(self, database, connection) -> None:
        with the_only_one(connection, SHAPE, interval=0, lease=0.001) as ours, connected(database) as other:
            assert ours is not None
            first = upkeep(connection, "sweep", "leased_until")
            assert ours.renew()
            assert upkeep(connection, "sweep", "leased_until") > first
            wait_until(lambda: value(other, "select leased_until < now() from aftercommit.upkeep where task = 'sweep'"))
            with the_only_one(other, SHAPE, interval=0, lease=60) as theirs:
                assert theirs
                handle(connection, uuid7())
                swept = sweep(connection, turn=ours)
                assert not any(each.finished for each in swept.values() if each.keep is not None)
                assert len(inbox(connection)) == 1
                ours.release()
                assert upkeep(connection, "sweep", "leased_until") is not None

    def test_a_program_that_was_killed_holds_the_others_up_for_less_than_they_wait(self, connection) -> None:
        with the_only_one(connection, SHAPE, interval=0) as ours:
            assert ours
            left = value(connection, "select leased_until - now() from aftercommit.upkeep where task = 'sweep'")
        assert left <= timedelta(seconds=20)


@pytest.fixture
def locked(database: str, connection: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """Somebody has locked the table that retention keeps its records in."""
    with connected(database, autocommit=False) as other:
        other.execute("lock table aftercommit.upkeep in access exclusive mode")
        yield other


class TestLocks:
    @pytest.mark.thorough
    def test_a_round_is_not_held_up_by_a_locked_table(self, connection, locked) -> None:
        handle(connection, uuid7())
        with the_only_one(connection, SHAPE, interval=0) as ours:
            assert ours is None
        swept = sweep(connection)
        assert swept["inbox"].kept_back == ("another session relies on its horizon at the moment",)
        assert len(inbox(connection)) == 1

    @pytest.mark.thorough
    def test_the_command_says_that_the_table_is_locked(self, database, connection, locked) -> None:
        result = run(database, "sweep")
        assert result.exit_code == 1
        assert "is locked and cannot be read: process" in result.stderr

    def test_whoever_relies_on_a_horizon_keeps_no_relay_from_stopping(self, database, connection) -> None:
        sweep(connection)
        handle(connection, uuid7())
        with connected(database, autocommit=False) as reader:
            reader.execute("select horizon from aftercommit.upkeep where task = 'inbox' for share")
            swept = sweep(connection, Retention(inbox=None), whole=False)
            assert swept["inbox"] == Swept("inbox", None)
            stopped = sweep(connection, stopping=lambda: True)
        assert not stopped["inbox"].finished


class TestBesideTheRelay:
    async def test_the_relay_removes_what_is_old_and_says_so(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "aftercommit.sweeper")
        shop.rows("insert into processed_events values (gen_random_uuid(), 'index', now() - interval '2 hours')")
        settings = RelaySettings(lease_seconds=2.0, retention=Retention(inbox=timedelta(hours=1)))
        async with relay_on(shop, settings=settings):
            await shop.value_becomes("select count(*) from processed_events", 0)
            await shop.value_becomes("select count(*) from upkeep where leased_until is not null", 0)
        (line,) = [vars(record) for record in caplog.records if record.message == "retention_removed"]
        assert (line["what"], line["removed"], line["outbox"]) == ("inbox", 1, "shop")

    async def test_what_is_held_back_is_said_once_with_who_holds_it(
        self, shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sweeper, "ROUND_INTERVAL", 0.0)
        event = shop.place()
        shop.rows("insert into processed_events values (%s, 'index', now() - interval '40 days')", [event])
        keeper = sweeper.Sweeper(shop.outbox.shape, shop.database)
        for _ in range(2):
            shop.rows("update upkeep set began_at = began_at - interval '10 days'")
            keeper.sweep()
        (line,) = [vars(record) for record in caplog.records if record.message == "retention_kept_back"]
        assert line["reasons"] == ["inbox: 1 held by events that are still in the outbox"]

    async def test_a_retention_that_fails_stops_no_relay(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        shop.rows("alter table upkeep rename to not_here")
        async with relay_on(shop):
            shop.place()
            await shop.signals.wait_total("relay.appended", 1)
            await shop.signals.until(lambda: "retention_failed" in caplog.messages, "the failure was not said")
        assert shop.value("select count(*) from log") == 1

    async def test_a_stop_ends_the_round_between_two_statements(self, shop: Shop, monkeypatch) -> None:
        monkeypatch.setattr(retention, "PAGES_AT_ONCE", 1)
        shop.rows(
            "insert into processed_events select gen_random_uuid(), 'index', now() - interval '40 days'"
            " from generate_series(1, 5000)"
        )
        stopping = asyncio.Event()
        stopping.set()
        sweeper.Sweeper(shop.outbox.shape, shop.database).sweep(stopping.is_set)
        assert shop.value("select count(*) from processed_events") == 5000
        assert shop.value("select leased_until from upkeep where task = 'sweep'") is None

    @pytest.mark.needs("pgbouncer")
    def test_rounds_work_through_a_transaction_pooler(self, database, log, tmp_path: Path) -> None:
        handle(log, uuid7())
        with (
            PgBouncer(database, tmp_path) as pooler,
            connected(pooler.dsn, prepare_threshold=None) as pooled,
            the_only_one(pooled, SHAPE, interval=0, lease=60) as ours,
        ):
            swept = sweep(pooled, Retention(log=DAY))
        assert ours
        assert (swept["log"].removed, swept["inbox"].removed) == (3, 1)


@pytest.mark.needs("pgbouncer")
def test_times_are_read_through_a_transaction_pooler_however_the_database_writes_them(database, tmp_path: Path) -> None:
    with connected(database) as owner:
        name = sql.Identifier(owner.info.dbname)
        owner.execute(sql.SQL("alter database {} set datestyle to 'German'").format(name))
    with (
        PgBouncer(database, tmp_path) as pooler,
        connected(pooler.dsn, prepare_threshold=None) as stranger,
        Database(pooler.dsn).connect_sync() as pooled,
    ):
        for _ in range(3):
            assert value(stranger, "show datestyle").startswith("German")
            assert value(pooled, "select now()").tzinfo is not None


def run(dsn: str, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--dsn", dsn], env=environment)


class TestCommandLine:
    def test_sweep_tells_what_it_removed_and_what_it_kept_back(self, database, log) -> None:
        log.execute("insert into aftercommit.consumer (name, position, declared_by) values ('slow', 15, 'test')")
        handle(log, uuid7())

        result = run(database, "sweep", "--keep-log", "1d")

        assert result.exit_code == 0, result.output
        assert [line.split() for line in result.stdout.splitlines()] == [
            ["what", "kept", "for", "removed", "complete"],
            ["log", "1d", "1", "yes"],
            ["inbox", "30d", "1", "yes"],
            ["keys", "7d", "0", "yes"],
            ["dead", "letters", "30d", "0", "yes"],
            ["operations", "90d", "0", "yes"],
        ]
        assert result.stderr == "not removed: log: consumer 'slow' has only read up to position 15\n"
        assert run(database, "sweep", "--keep-log", "1d", "--even-if-unread").stderr == ""
        assert value(log, "select min(position) from aftercommit.log") == 31

    def test_a_dry_run_as_json_removes_nothing(self, database, log) -> None:
        result = run(database, "sweep", "--dry-run", "--json", AFTERCOMMIT_KEEP_LOG="36h")

        document = json.loads(result.stdout)
        assert (document["outbox"], document["dry_run"]) == ("aftercommit", True)
        assert document["swept"][0] == {
            "task": "log",
            "keep": 36 * 3600,
            "removed": 3,
            "kept_back": [],
            "finished": True,
            "partitions": ["log_000000", "log_000001", "log_000002"],
        }
        assert value(log, "select count(*) from aftercommit.log") == 32

    def test_a_round_cut_short_is_partial(self, database, connection, monkeypatch) -> None:
        monkeypatch.setattr(Round, "_goes_on", lambda self: False)
        handle(connection, uuid7())

        result = run(database, "sweep")

        assert result.exit_code == 4, result.output

    def test_sigterm_ends_the_round_and_lets_the_next_one_begin(self, database, connection, monkeypatch) -> None:
        monkeypatch.setattr(retention, "PAGES_AT_ONCE", 1)
        handle_many(connection, 2000)
        step = Round._step

        def told_to_stop(self: Round, *arguments: Any) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return step(self, *arguments)

        monkeypatch.setattr(Round, "_step", told_to_stop)
        result = run(database, "sweep")

        assert result.exit_code == 4, result.output
        assert 0 < value(connection, "select count(*) from aftercommit.processed_events") < 2000
        assert upkeep(connection, "sweep", "leased_until") is None

    @pytest.mark.parametrize("time", ["30", "d", "-1d", "0d", "1e9d", "99999999999999d", "soon"])
    @pytest.mark.parametrize("command", ["sweep", "relay", "up"])
    def test_a_time_that_cannot_be_read_is_wrong_usage(self, command, time) -> None:
        result = run("postgresql://127.0.0.1:1/x", command, f"--keep-inbox={time}")
        assert result.exit_code == 2, result.output
        assert time in result.stderr or "100 years" in result.stderr

    def test_for_ever_can_be_said(self, database, connection) -> None:
        handle(connection, uuid7())
        assert run(database, "sweep", "--keep-inbox", "forever").exit_code == 0
        assert len(inbox(connection)) == 1

    def test_it_says_how_to_make_an_outbox_where_there_is_none(self, database) -> None:
        result = run(database, "sweep")
        assert result.exit_code == 3
        assert "run `aftercommit migrate up" in result.stderr
        assert "--app module:outbox`" in result.stderr
