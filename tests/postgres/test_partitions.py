"""Partitions of the log: there before they are needed, gone when they are old, and nobody ever waits for
them.
"""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from aftercommit.errors import DatabaseError, DeclarationError, SchemaNotMigrated
from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate, partitions
from tests.support.engine import Engine, begin_detaching, connected, migrate_up, value, wait_until, waits_for_a_lock

SHAPE = Shape()
SIZE = 10
MILLION = 1_000_000


@pytest.fixture
def small(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A migrated database whose partitions hold ten positions each."""
    monkeypatch.setattr(partitions, "POSITIONS_PER_PARTITION", SIZE)
    migrate_up(database)
    return database


@pytest.fixture
def connection(small: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(small) as connection:
        yield connection


def tomorrow() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def bounds(connection: psycopg.Connection[Any]) -> list[tuple[int, int]]:
    return [(partition.lower, partition.upper) for partition in partitions.existing(connection, SHAPE)]


def names(connection: psycopg.Connection[Any]) -> list[str]:
    return [partition.name for partition in partitions.existing(connection, SHAPE)]


def fill(connection: psycopg.Connection[Any], count: int) -> int:
    """Publish and deliver events, making partitions as the relay does; returns the last position."""
    engine, position = Engine(connection), 0
    for _ in range(count):
        position = engine.deliver(engine.publish())
        if position % SIZE == 0:
            partitions.ensure(connection, SHAPE)
    return position


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["reason"] for record in caplog.records if record.message == "log_retention_stopped"]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, ["log_000000", "log_000001", "log_000002"]),
        (MILLION - 1, ["log_000000", "log_000001", "log_000002"]),
        # The next position is the first of the next partition.
        (MILLION, ["log_000001", "log_000002", "log_000003"]),
        (5 * MILLION + 7, ["log_000005", "log_000006", "log_000007"]),
        (999_999 * MILLION, ["log_999999", "log_1000000", "log_1000001"]),
    ],
)
def test_the_partition_of_the_tip_and_the_next_two_are_there(database, position, expected):
    migrate_up(database)
    with connected(database) as connection:
        connection.execute("update aftercommit.head set position = %s", [position])
        made = partitions.ensure(connection, SHAPE)

        first = ["log_000000", "log_000001", "log_000002"]
        assert made == [name for name in expected if name not in first]
        assert set(names(connection)) == {*first, *expected}
        assert partitions.ensure(connection, SHAPE) == []
        engine = Engine(connection)
        assert engine.deliver(engine.publish()) == position + 1


def test_partitions_are_listed_by_position_and_not_by_name(database):
    migrate_up(database)
    with connected(database) as connection:
        connection.execute("update aftercommit.head set position = %s", [999_999 * MILLION])
        partitions.ensure(connection, SHAPE)

        assert names(connection)[-3:] == ["log_999999", "log_1000000", "log_1000001"]
        assert bounds(connection)[-2:] == [
            (MILLION * MILLION + 1, MILLION * MILLION + MILLION + 1),
            (MILLION * MILLION + MILLION + 1, MILLION * MILLION + 2 * MILLION + 1),
        ]


def test_the_log_goes_on_across_partitions_without_a_gap(connection):
    assert fill(connection, 3 * SIZE + 5) == 3 * SIZE + 5

    rows = connection.execute("select position from aftercommit.log order by position").fetchall()
    assert [row[0] for row in rows] == list(range(1, 3 * SIZE + 6))
    found = bounds(connection)
    assert [lower for lower, _ in found[1:]] == [upper for _, upper in found[:-1]]


def test_a_partition_has_the_columns_indexes_and_constraints_of_the_log(database, monkeypatch):
    monkeypatch.setattr(partitions, "POSITIONS_PER_PARTITION", SIZE)
    shape = Shape(scope={"tenant_id": str})
    migrate_up(database, shape)
    with connected(database) as connection:
        connection.execute("update aftercommit.head set position = %s", [3 * SIZE])
        assert partitions.ensure(connection, shape)[-1] == "log_000005"

        index_names = connection.execute("select indexname from pg_indexes where tablename = 'log_000005'").fetchall()
        log_indexes = connection.execute("select indexname from pg_indexes where tablename = 'log'").fetchall()
        assert len(index_names) == len(log_indexes)
        with pytest.raises(psycopg.errors.NotNullViolation):
            connection.execute("insert into aftercommit.log_000005 (position) values (51)")


def test_programs_that_look_after_partitions_at_once_make_each_once(small):
    with connected(small) as connection:
        connection.execute("update aftercommit.head set position = %s", [7 * SIZE])
    barrier = threading.Barrier(6)

    def look_after(_: int) -> list[str]:
        with connected(small, autocommit=False) as own:
            barrier.wait()
            return partitions.ensure(own, SHAPE)

    with ThreadPoolExecutor(6) as programs:
        made = [name for found in programs.map(look_after, range(6)) for name in found]

    assert sorted(made) == ["log_000007", "log_000008", "log_000009"]


def test_a_new_partition_waits_for_no_writer_and_no_reader(small):
    with (
        connected(small) as connection,
        connected(small, autocommit=False) as writer,
        connected(small, autocommit=False) as reader,
    ):
        connection.execute("update aftercommit.head set position = %s", [2 * SIZE])
        engine = Engine(connection)
        engine.deliver(engine.publish(), on=writer)
        reader.execute("select count(*) from aftercommit.event_log")

        assert partitions.ensure(connection, SHAPE) == ["log_000003", "log_000004"]

        writer.commit()
        assert engine.deliver(engine.publish()) == 2 * SIZE + 2


def test_making_partitions_gives_up_behind_a_lock_and_says_so(small):
    with connected(small, autocommit=False) as locker, connected(small) as connection:
        connection.execute("update aftercommit.head set position = %s", [2 * SIZE])
        connection.execute("alter function aftercommit.make_partitions() set lock_timeout = '100ms'")
        locker.execute("lock table aftercommit.log in share mode")

        with pytest.raises(DatabaseError, match="could not create partitions"):
            partitions.ensure(connection, SHAPE)

        locker.rollback()
        assert partitions.ensure(connection, SHAPE) == ["log_000003", "log_000004"]


def test_partitions_of_a_schema_that_is_not_migrated_are_refused(database):
    with (
        connected(database) as connection,
        pytest.raises(SchemaNotMigrated, match="run `aftercommit migrate up --app module:outbox`"),
    ):
        partitions.ensure(connection, SHAPE)


def test_retention_drops_whole_partitions_and_leaves_no_gap(connection, caplog):
    caplog.set_level(logging.INFO, "aftercommit.retention")
    fill(connection, 2 * SIZE + 5)

    assert partitions.drop_before(connection, SHAPE, older_than=tomorrow()) == ["log_000000", "log_000001"]

    assert reasons(caplog) == ["it is not full"]
    rows = connection.execute("select position from aftercommit.log order by position").fetchall()
    assert [row[0] for row in rows] == list(range(2 * SIZE + 1, 2 * SIZE + 6))
    assert value(connection, "select to_regclass('aftercommit.log_000000')") is None
    assert fill(connection, 1) == 2 * SIZE + 6
    migrate.check(connection, SHAPE)


def test_retention_keeps_what_is_not_old_enough(connection, caplog):
    caplog.set_level(logging.INFO, "aftercommit.retention")
    fill(connection, 3 * SIZE)
    connection.execute("update aftercommit.log set ts = ts - interval '2 hours' where position < %s", [2 * SIZE])
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)

    # The last event of the second partition is new, so all of that partition stays.
    assert partitions.drop_before(connection, SHAPE, older_than=an_hour_ago) == ["log_000000"]

    assert reasons(caplog) == ["its newest event is not old enough"]
    assert value(connection, "select min(position) from aftercommit.log") == SIZE + 1


def test_retention_stops_at_a_consumer_that_has_not_read_yet_unless_forced(connection, caplog):
    caplog.set_level(logging.INFO, "aftercommit.retention")
    fill(connection, 3 * SIZE)
    register = "insert into aftercommit.consumer (name, position, declared_by) values (%s, %s, 'test')"
    connection.execute(register, ["slow", 2 * SIZE - 1])
    connection.execute(register, ["fast", 3 * SIZE])

    assert partitions.drop_before(connection, SHAPE, older_than=tomorrow()) == ["log_000000"]
    assert reasons(caplog) == ["consumer 'slow' has only read up to position 19"]

    connection.execute("update aftercommit.consumer set position = %s where name = 'slow'", [2 * SIZE])
    assert partitions.drop_before(connection, SHAPE, older_than=tomorrow()) == ["log_000001"]
    assert partitions.drop_before(connection, SHAPE, older_than=tomorrow(), force=True) == ["log_000002"]


@pytest.mark.thorough
def test_retention_beside_a_reader_blocks_no_writer_and_is_finished_by_the_next_run(small, caplog):
    caplog.set_level(logging.INFO, "aftercommit.retention")
    with (
        connected(small, options="-c statement_timeout=30s") as connection,
        connected(small, autocommit=False) as reader,
        connected(small, application_name="retention") as retention,
        ThreadPoolExecutor(1) as program,
    ):
        fill(connection, 2 * SIZE)
        assert value(reader, "select count(*) from aftercommit.log") == 2 * SIZE

        options = {"older_than": tomorrow(), "max_wait_seconds": 2.0}
        dropping = program.submit(partitions.drop_before, retention, SHAPE, **options)  # type: ignore[arg-type]
        wait_until(lambda: dropping.done() or waits_for_a_lock(small, "retention"))
        position = fill(connection, SIZE)
        assert value(connection, "select max(position) from aftercommit.log") == position == 3 * SIZE
        assert dropping.result(timeout=60) == []
        assert reasons(caplog)[0].startswith("another session is in the way: canceling statement")
        assert partitions.existing(connection, SHAPE)[0].detaching

        # Nothing is half gone: who reads now sees the log begin after the partition, and it goes on to the
        # tip.
        rows = connection.execute("select position from aftercommit.log order by position").fetchall()
        assert [row[0] for row in rows] == list(range(SIZE + 1, 3 * SIZE + 1))
        assert partitions.drop_before(retention, SHAPE, older_than=tomorrow(), max_wait_seconds=0.2) == []

        reader.rollback()
        expected = ["log_000000", "log_000001", "log_000002"]
        assert partitions.drop_before(retention, SHAPE, older_than=tomorrow()) == expected
        assert fill(connection, 1) == 3 * SIZE + 1


def test_a_partition_that_an_interrupted_run_had_detached_is_dropped_by_the_next(connection):
    fill(connection, 2 * SIZE)
    connection.execute("comment on table aftercommit.log_000000 is 'aftercommit: retention drops this'")
    connection.execute("alter table aftercommit.log detach partition aftercommit.log_000000")

    assert partitions.drop_before(connection, SHAPE, older_than=tomorrow()) == ["log_000000", "log_000001"]


def test_a_partition_that_somebody_detached_to_keep_it_is_left_alone(connection):
    fill(connection, 2 * SIZE)
    connection.execute("alter table aftercommit.log detach partition aftercommit.log_000000")

    assert partitions.drop_before(connection, SHAPE, older_than=tomorrow()) == ["log_000001"]
    assert value(connection, "select count(*) from aftercommit.log_000000") == SIZE


def test_a_detach_that_somebody_else_began_is_left_to_them(small, caplog):
    caplog.set_level(logging.INFO, "aftercommit.retention")
    with connected(small) as connection, connected(small, autocommit=False) as reader:
        fill(connection, 2 * SIZE)
        reader.execute("select count(*) from aftercommit.log")
        begin_detaching(small, "aftercommit.log", "aftercommit.log_000000")

        assert partitions.drop_before(connection, SHAPE, older_than=tomorrow()) == []
        assert reasons(caplog) == ["another session is detaching it"]


def test_two_retentions_at_once_drop_each_partition_once(small):
    with connected(small) as connection:
        fill(connection, 4 * SIZE)
    barrier = threading.Barrier(2)

    def retain(_: int) -> list[str]:
        with connected(small) as own:
            barrier.wait()
            return partitions.drop_before(own, SHAPE, older_than=tomorrow())

    with ThreadPoolExecutor(2) as programs:
        dropped = [name for found in programs.map(retain, range(2)) for name in found]
    with connected(small) as connection:
        dropped += partitions.drop_before(connection, SHAPE, older_than=tomorrow())

        assert sorted(dropped) == [f"log_00000{number}" for number in range(4)]
        assert bounds(connection)[0][0] == 4 * SIZE + 1


def test_retention_refuses_a_connection_that_would_hold_a_transaction(small):
    with (
        connected(small, autocommit=False) as connection,
        pytest.raises(DatabaseError, match="autocommit=True"),
    ):
        partitions.drop_before(connection, SHAPE, older_than=tomorrow())


def test_retention_refuses_a_time_without_a_zone(connection):
    with pytest.raises(DeclarationError, match="has no time zone"):
        partitions.drop_before(connection, SHAPE, older_than=datetime(2020, 1, 1))  # noqa: DTZ001
