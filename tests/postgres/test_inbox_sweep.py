"""The inbox sweep with a log of several partitions: it asks each of them once, and keeps what a naive query keeps."""

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.testing.postgres import PostgresServerForTests
from tests.postgres.test_plans import walk
from tests.support.engine import connected, migrate_up

STATEMENTS = Statements(Shape())
ALL_PAGES = {"first": "(0,0)", "last": "(100000,0)", "before": "now"}
PARTITION = 1_000_000
EVENTS = """
    insert into aftercommit.log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,
                                 occurred_at, correlation_id, payload, retry_count, created_at)
    select position, now(), id, position, 1, 'thing', '1', 'thing.happened', 1, now(), 'c', '{}', 0, now()
    from unnest(%s::bigint[], %s::uuid[]) as event (position, id)
"""
# An event, its consumer, and whether the log has the event after the consumer's checkpoint.
NAIVE = """
    select inbox.ctid::text
    from aftercommit.processed_events inbox
    join aftercommit.consumer on consumer.name = inbox.consumer_name
    where exists (
        select from aftercommit.log where log.id = inbox.event_id and log.position > consumer.position
    )
"""


@pytest.fixture
def connection(postgres_server: PostgresServerForTests) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres_server.clone(postgres_server.template("inbox sweep", prepare=lambda dsn: migrate_up(dsn, Shape())))
    with connected(dsn) as connection:
        yield connection
    postgres_server.drop(dsn)


def fill(connection: psycopg.Connection[Any], seed: int, events: int, checkpoints: dict[str, int]) -> None:
    """Events in three partitions, one in ten of them twice, handled by some of the consumers."""
    chance = random.Random(seed)
    ids = [chance.randbytes(16).hex() for _ in range(events)]
    again = chance.sample(ids, events // 10)
    logged = ids + again
    positions = sorted(chance.sample(range(1, 3 * PARTITION), len(logged)))
    connection.execute(EVENTS, [positions, logged])
    connection.execute("update aftercommit.head set position = %s", [positions[-1]])
    for name, share in checkpoints.items():
        position = positions[-1] if share == 100 else positions[len(positions) * share // 100]
        connection.execute(
            "insert into aftercommit.consumer (name, position, declared_by) values (%s, %s, '*')", [name, position]
        )
    handled = [(each, name) for each in ids for name in [*checkpoints, "behind the bus"] if chance.random() < 0.5]
    connection.execute(
        "insert into aftercommit.processed_events select id, name, now() - interval '40 days'"
        " from unnest(%s::uuid[], %s::text[]) as handled (id, name)",
        [[each for each, _ in handled], [name for _, name in handled]],
    )
    connection.execute("vacuum analyze")


@pytest.mark.parametrize("seed", range(3))
def test_a_row_stays_exactly_while_its_event_is_after_the_checkpoint(connection, seed: int) -> None:
    fill(connection, seed, 600, {"at-the-head": 100, "in-the-middle": 50, "at-the-start": 0})

    rows = connection.execute(STATEMENTS["old_inbox"], ALL_PAGES).fetchall()
    kept = {place for place, holder in rows if holder is not None}

    assert kept == {row[0] for row in connection.execute(NAIVE)}
    assert 0 < len(kept) < len(rows)


def test_each_partition_is_asked_once_for_all_rows_of_the_pages(connection) -> None:
    fill(connection, 7, 2000, {"behind": 10})
    statement = STATEMENTS.render(
        "sweep_pages", old=STATEMENTS.part("old_inbox"), table=sql.Identifier("processed_events")
    )

    with connection.transaction(force_rollback=True):
        cursor = connection.execute(b"explain (analyze, format json) " + statement.encode(), ALL_PAGES)
        plan = list(walk(cursor.fetchone()[0][0]["Plan"]))

    asked = [node for node in plan if node.get("Relation Name", "").startswith("log_")]
    assert {node["Relation Name"] for node in asked} >= {"log_000000", "log_000001", "log_000002"}
    assert max(node["Actual Loops"] for node in asked) == 1


def test_the_log_is_not_read_while_all_consumers_are_at_its_head(connection) -> None:
    fill(connection, 8, 500, {"at-the-head": 100})

    with connection.transaction(force_rollback=True):
        explained = b"explain (analyze, format json) " + STATEMENTS["old_inbox"]
        plan = list(walk(connection.execute(explained, ALL_PAGES).fetchone()[0][0]["Plan"]))

    assert sum(node["Actual Loops"] for node in plan if node.get("Relation Name", "").startswith("log_")) == 0
