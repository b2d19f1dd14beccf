"""Query plans at realistic volumes: each statement uses its index and touches about the rows that it returns.

20,000 events are due, 20,000 have failed, 20,000 wait for a retry, in one mixed outbox; 100,000 are in the log and
20,000 are dead letters. A plan that is right on ten rows and wrong on these would pass every other test.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg import sql

from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.engine import Engine, connected, migrate_up

SHAPE = Shape(scope={"tenant_id": str})
STATEMENTS = Statements(SHAPE)
LIMIT = 500
# What one of two relays holds.
LANES = list(range(0, 64, 2))
LARGE = ("outbox", "log", "dead_letter_events", "processed_events")

VOLUME = """
    insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id, status,
                        retry_count, last_error, next_retry_at)
    select gen_random_uuid(), 'order', case when n % 3 = 0 or n % 97 = 0 then n % 2000 else n + 10000 end,
           'order.placed', 'because', json_build_object('n', n), 'tenant-' || n % 50,
           case when n % 3 = 1 then 'failed' else 'pending' end, (n % 3 > 0)::int,
           case when n % 3 > 0 then 'broken' end,
           case when n % 3 = 2 then now() + make_interval(secs => n - 2000) end
    from generate_series(1, 60000) n;

    insert into log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
                     correlation_id, payload, retry_count, created_at, tenant_id)
    select n, now(), gen_random_uuid(), n, n % 64, 'order', n % 5000, 'order.placed', 1, now(), 'because',
           json_build_object('n', n), 0, now(), 'tenant-' || n % 50
    from generate_series(1, 100000) n;
    update head set position = 100000;

    insert into consumer (name, position, declared_by, worker, token, leased_until)
    select 'consumer-' || n, 90000, 'test', 'worker', (select token from lane limit 1), now() + interval '1 hour'
    from generate_series(1, 3) n;
    insert into processed_events (event_id, consumer_name) select id, 'consumer-1' from log;
    insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version, aggregate_type,
                                    aggregate_id, occurred_at, correlation_id, payload, seq, position, created_at,
                                    error, error_class, attempts, next_retry_at, tenant_id)
    select gen_random_uuid(), 'consumer-' || n % 3 + 1,
           (array['retrying', 'parked', 'resolved', 'discarded'])[n % 4 + 1], 'order.placed', 1, 'order', n % 7000,
           now(), 'because', '{}', n, n, now(), 'broken', 'Error', 1,
           case when n % 4 = 0 then now() + make_interval(secs => n - 2000) end, 'tenant-' || n % 50
    from generate_series(1, 20000) n;
"""


@dataclass(frozen=True)
class Plan:
    """The nodes of a plan that ran."""

    nodes: tuple[Mapping[str, Any], ...]
    rows: int

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    @property
    def whole_scans(self) -> list[str]:
        """Large tables that were read from end to end."""
        return [
            node["Relation Name"]
            for node in self.nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith(LARGE) and node["Actual Loops"]
        ]

    @property
    def touched(self) -> float:
        """Rows of large tables that were looked at, whether or not they were of use."""
        scans = (node for node in self.nodes if "Scan" in node["Node Type"])
        return sum(
            float(node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * float(node["Actual Loops"])
            for node in scans
            if node.get("Relation Name", "").startswith(LARGE)
        )


@pytest.fixture(scope="module")
def engine(postgres_server: PostgresServerForTests) -> Iterator[Engine]:
    """An outbox that has been in use for a while."""
    dsn = postgres_server.clone(postgres_server.template("scoped outbox", prepare=lambda dsn: migrate_up(dsn, SHAPE)))
    with connected(dsn, options="-c search_path=aftercommit") as connection:
        engine = Engine(connection, SHAPE)
        connection.execute(VOLUME.encode())
        connection.execute("vacuum analyze")
        yield engine
    postgres_server.drop(dsn)


def explain(engine: Engine, statement: bytes, **parameters: Any) -> Plan:
    """Run a statement, undo it, and tell how it went."""
    with engine.connection.transaction(force_rollback=True):
        cursor = engine.connection.execute(b"explain (analyze, format json) " + statement, parameters)
        row = cursor.fetchone()
    assert row is not None
    root = row[0][0]["Plan"]
    return Plan(tuple(walk(root)), int(root["Actual Rows"]))


def walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)


def fence(engine: Engine) -> dict[str, Any]:
    return {"lanes": list(range(64)), "lane_count": 64, "token": engine.token}


def rows_of(engine: Engine, query: str) -> list[Any]:
    return [row[0] for row in engine.connection.execute(query.encode())]


@pytest.mark.thorough
@pytest.mark.parametrize("watermark", [0, 30_000])
def test_fresh_events_are_read_along_their_index(engine, watermark):
    plan = explain(engine, STATEMENTS["due_fresh"], watermark=watermark, lanes=LANES, limit=LIMIT)

    assert plan.rows == LIMIT
    assert plan.whole_scans == []
    assert plan.indexes == {"outbox_fresh"}
    # Every second row belongs to the other relay's lanes.
    assert plan.touched < 3 * LIMIT


@pytest.mark.thorough
def test_fresh_events_in_strict_order_ask_for_the_held_ones_by_aggregate(engine):
    plan = explain(engine, STATEMENTS["due_fresh_strict"], watermark=0, lanes=LANES, limit=LIMIT)

    assert plan.rows == LIMIT
    assert plan.whole_scans == []
    assert plan.indexes == {"outbox_fresh", "outbox_held"}
    assert plan.touched < 4 * LIMIT


@pytest.mark.parametrize("name", ["due_retries", "due_retries_strict"])
def test_due_retries_do_not_look_at_those_that_have_to_wait(engine, name):
    plan = explain(engine, STATEMENTS[name], lanes=LANES, limit=LIMIT)

    assert 0 < plan.rows < LIMIT
    assert plan.whole_scans == []
    assert "outbox_retries" in plan.indexes
    assert plan.touched < 3 * plan.rows


# The relay has consumers in its process.
HANDED = {
    "place": STATEMENTS.part("place"),
    "returned": STATEMENTS.part("returning_event"),
    "bytes": STATEMENTS.part("few_bytes"),
    "latency": STATEMENTS.part("latency"),
    "latency_column": STATEMENTS.part("latency_column"),
    "handed": STATEMENTS.part("handed"),
    "handed_columns": STATEMENTS.part("handed_columns"),
}


@pytest.mark.parametrize("numbered", [False, True])
def test_the_append_finds_its_events_by_id(engine, numbered):
    # Before PostgreSQL 17, a few hundred more ids and reading a table of this size from end to end cost the same.
    ids = rows_of(engine, "select id from outbox where status = 'pending' and next_retry_at is null limit 200")
    nothing = sql.SQL("")
    statement = STATEMENTS.render(
        "append",
        which=STATEMENTS.part("which_given"),
        chosen=nothing,
        fenced=STATEMENTS.part("fence"),
        chosen_count=sql.SQL("0"),
        streams=STATEMENTS.part("streams") if numbered else nothing,
        stream_seq=STATEMENTS.part("stream_seq") if numbered else sql.SQL("null::bigint"),
        join_streams=STATEMENTS.part("join_streams") if numbered else nothing,
        heard=nothing,
        **HANDED,
    )
    parameters = {
        **fence(engine),
        "ids": ids,
        "numbered": ["order"],
        "bounds": [1.0, 10.0],
        "few": 16,
        "few_bytes": 65536,
        "named": True,
        "seen": 0,
        "channel": SHAPE.log_channel,
    }

    plan = explain(engine, statement.encode(), **parameters)

    assert plan.whole_scans == []
    assert "outbox_pkey" in plan.indexes
    assert plan.touched < 2 * len(ids)


def test_the_sweep_goes_along_the_index_of_fresh_events_and_straight_to_their_places(engine):
    nothing = sql.SQL("")
    statement = STATEMENTS.render(
        "append",
        which=STATEMENTS.part("which_due"),
        chosen=STATEMENTS.part("chosen_due", due=STATEMENTS.part("due_fresh")),
        fenced=STATEMENTS.part("fence_chosen"),
        chosen_count=sql.SQL("(select count(*) from chosen)"),
        streams=nothing,
        stream_seq=sql.SQL("null::bigint"),
        join_streams=nothing,
        heard=nothing,
        **HANDED,
    )
    chosen = {
        "watermark": 0,
        "limit": LIMIT,
        "bounds": [1.0, 10.0],
        "few": 16,
        "few_bytes": 65536,
        "named": True,
        "channel": SHAPE.log_channel,
        "seen": 0,
    }

    plan = explain(engine, statement.encode(), **{**fence(engine), **chosen})

    assert plan.whole_scans == []
    assert "outbox_fresh" in plan.indexes
    assert any(node["Node Type"] == "Tid Scan" for node in plan.nodes)
    assert plan.touched < 3 * LIMIT


def test_due_events_are_loaded_in_the_order_of_their_index(engine):
    loaded = STATEMENTS.part("loaded_columns")
    statement = STATEMENTS.render("load_due", due=STATEMENTS.part("due_fresh", due_columns=loaded))

    plan = explain(engine, statement.encode(), watermark=0, lanes=LANES, limit=LIMIT, max_bytes=1 << 30)

    assert plan.rows == LIMIT
    assert plan.whole_scans == []
    assert plan.indexes == {"outbox_fresh"}
    assert "Sort" not in {node["Node Type"] for node in plan.nodes}
    assert plan.touched < 3 * LIMIT


@pytest.mark.parametrize("types", [None, ["order.placed"]])
def test_a_page_of_the_log_is_a_range_of_positions(engine, types):
    page = {"after": 50_000, "upto": 50_500, "types": types, "lane": 0, "lanes": 1}
    plan = explain(engine, STATEMENTS["read_log"], **page, max_bytes=1 << 30)

    assert plan.rows == LIMIT
    assert plan.whole_scans == []
    # Of the three partitions, only the one that holds the page.
    assert plan.indexes == {"log_000000_pkey"}
    assert plan.touched == LIMIT


def test_a_slice_begins_without_reading_the_inbox(engine):
    ids = rows_of(engine, "select id from log where position between 90001 and 90100")
    whose = {"consumer": "consumer-1", "checkpoint": "consumer-1"}
    lease = {**whose, "token": engine.token, "lease": 30, "patience": "60s"}

    plan = explain(engine, STATEMENTS["begin_slice"], **lease, position=90_100, ids=ids)

    assert plan.whole_scans == []
    assert plan.touched == 0
    insert = next(node for node in plan.nodes if node.get("Relation Name") == "processed_events")
    assert insert["Conflicting Tuples"] == len(ids)


@pytest.mark.parametrize("strict", [False, True])
def test_due_dead_letters_do_not_look_at_those_that_have_to_wait(engine, strict):
    due = STATEMENTS.part("due_letters_strict" if strict else "due_letters")
    query = STATEMENTS.render("within_bytes", due=due).encode()

    whose = {"consumer": "consumer-1", "lane": 0, "lanes": 1}
    plan = explain(engine, query, **whose, limit=LIMIT, in_a_row=LIMIT, max_bytes=1 << 20)

    assert 0 < plan.rows < LIMIT
    assert plan.whole_scans == []
    assert "dead_letter_due" in plan.indexes
    assert plan.touched < 3 * plan.rows


def test_blocked_aggregates_are_looked_up_one_by_one(engine):
    page = [str(number) for number in range(100)]

    plan = explain(
        engine, STATEMENTS["blocked_aggregates"], consumer="consumer-1", types=["order"] * len(page), ids=page
    )

    assert plan.rows > 0
    assert plan.whole_scans == []
    assert plan.indexes == {"dead_letter_open"}
    assert plan.touched < 2 * len(page)


def test_an_event_is_found_by_its_id_through_the_view(engine):
    (event_id,) = rows_of(engine, "select id from log where position = 77777")

    plan = explain(engine, b"select * from event_outbox where id = %(id)s", id=event_id)

    assert plan.rows == 1
    assert {"outbox_pkey", "log_000000_id_idx"} <= plan.indexes
    assert plan.touched == 1
