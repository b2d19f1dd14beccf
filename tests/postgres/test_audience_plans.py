"""What a reader's page costs: about the page, however much the others hear of.

Of 40,000 events everybody hears of one half, one reader of five of them, and another of every tenth.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from aftercommit.feed import Feed
from aftercommit.feed.strands.queries import Direction, FeedQueries
from aftercommit.postgres.statements import Statements
from aftercommit.relay.settle import Settlement
from aftercommit.testing.postgres import PostgresServerForTests
from tests.postgres.test_feed_plans import STATE, explain, named_in
from tests.postgres.test_plans import Plan
from tests.support.hearing import Tasks, task_outbox

EVENTS, LIMIT = 40_000, 100
VOLUME = f"""
    insert into log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
                     correlation_id, payload, retry_count, created_at, audience)
    select n, timestamptz '2025-11-12T00:00:00Z' + n * interval '1 second', gen_random_uuid(), n, n % 64, 'task',
           't-' || n % 500,
           case when n % 1000 = 0 then 'task.archived' else 'task.changed' end, 1, now(), 'because',
           json_build_object('task_id', 't', 'number', n, 'kind', case when n % 5000 = 0 then 'rare' else 'note' end),
           0, now(),
           case when n % 2 = 0 then array['user:all'] else array[]::varchar[] end
               || case when n % 8000 = 7 then array['user:rare'] else array[]::varchar[] end
               || case when n % 10 = 0 then array['user:tenth'] else array[]::varchar[] end
               || ('user:' || n % 200)::varchar
    from generate_series(1, {EVENTS}) n;
    insert into audience (reader, position) select reader, position from log, unnest(audience) reader;
    update head set position = {EVENTS};
"""


@pytest.fixture(scope="module")
def tasks(postgres_server: PostgresServerForTests) -> Iterator[Tasks]:
    dsn = postgres_server.clone(postgres_server.template_for(task_outbox()))
    tasks = Tasks(dsn)
    tasks.rows(VOLUME)
    with tasks.connect(autocommit=True) as connection:
        connection.execute("vacuum analyze")
    yield tasks
    postgres_server.drop(dsn)


@pytest.fixture(params=["directly", "through a pooler"])
def connection(tasks: Tasks, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """As feeds connect: with plans that are made once, by index; and with the server's own settings."""
    with tasks.connect(autocommit=True) as connection:
        if request.param == "directly":
            connection.execute(Statements(tasks.outbox.shape)["feed_plan"])
            connection.execute("set plan_cache_mode = force_generic_plan")
        else:
            connection.execute("set plan_cache_mode = force_custom_plan")
        yield connection


def asked(connection: psycopg.Connection[Any], statement: bytes, key: str, **options: Any) -> Plan:
    given = {"key": key, "low": 0, "high": 2**62, "place": 0, "limit": LIMIT, "max_bytes": 1 << 23, "window": 1000}
    types = {"types": ["task.archived"], "allowed_0": ["rare"]}
    return explain(connection, statement, **named_in(statement, {**given, **types, **options}))


def page(connection: psycopg.Connection[Any], feed: Feed, key: str, direction: Direction, **options: Any) -> Plan:
    return asked(connection, FeedQueries(feed).page(direction, None, options.pop("rest", ())), key, **options)


def looked_at(plan: Plan, table: str) -> float:
    """Rows of a table, or of its partitions, that were looked at."""
    return sum(
        float(node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * float(node["Actual Loops"])
        for node in plan.nodes
        if "Scan" in node["Node Type"] and node.get("Relation Name", "").startswith(table)
    )


def scanned_whole(plan: Plan) -> list[str]:
    return [
        node["Relation Name"]
        for node in plan.nodes
        if node["Node Type"] == "Seq Scan"
        and node["Relation Name"] in ("log_000000", "audience_000000")
        and node["Actual Loops"]
    ]


@pytest.mark.thorough
@pytest.mark.contract("T4")
@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize(
    ("key", "bounds", "rows"),
    [
        ("user:rare", {}, 5),
        ("user:rare", {"low": 20_000}, 2),
        ("user:nobody", {}, 0),
        ("user:all", {}, LIMIT),
        ("user:all", {"low": 30_000}, LIMIT),
        ("user:tenth", {"low": 1000, "high": 38_000}, LIMIT),
        ("user:77", {}, LIMIT),
    ],
)
def test_a_readers_page_costs_the_page_and_not_the_log(tasks, connection, key, bounds, rows, direction):
    plan = page(connection, tasks.feeds["mine"], key, direction, **bounds)

    assert plan.rows == rows + STATE
    assert scanned_whole(plan) == []
    assert looked_at(plan, "audience") <= rows
    # Beside the page the event of the cursor and the oldest one, which tell whether the cursor is good.
    assert looked_at(plan, "log") <= rows + 2


@pytest.mark.thorough
def test_a_strand_is_loaded_at_the_cost_of_a_page(tasks, connection):
    for key, rows in (("user:rare", 5), ("user:all", LIMIT)):
        plan = asked(connection, FeedQueries(tasks.feeds["mine"]).load, key)

        assert plan.rows == rows + STATE
        assert scanned_whole(plan) == []
        assert looked_at(plan, "audience") <= rows
        assert looked_at(plan, "log") <= rows + 1


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_a_round_of_a_filter_looks_at_its_window_alone(tasks, connection, direction):
    """How far a window reaches is read from the index; the events in it are compared, and no others are read."""
    feed = tasks.feeds["filtered"]
    reach = asked(connection, FeedQueries(feed).reach(direction, None), "user:all")
    assert reach.rows == 1
    assert looked_at(reach, "audience") <= 1000
    assert looked_at(reach, "log") <= 1

    window = {"low": 20_000, "high": 22_000}
    plan = page(connection, feed, "user:all", direction, rest=(0,), types=["task.changed"], **window)

    assert scanned_whole(plan) == []
    assert looked_at(plan, "audience") <= 1000
    assert looked_at(plan, "log") <= 1000 + 2


def test_the_moment_is_found_by_halving(tasks, connection):
    statement = FeedQueries(tasks.feeds["mine"]).moment

    plan = asked(connection, statement, "user:rare", moment="2025-11-12T06:00:00Z")

    assert scanned_whole(plan) == []
    assert looked_at(plan, "log") <= 16 + 3


def test_an_outbox_without_an_audience_pays_nothing_for_it():
    """Neither its relays nor its publishers say a word about it."""
    plain = task_outbox(audience=False)
    settlement = Settlement(plain, None)  # type: ignore[arg-type]
    statements = [
        *settlement._append_due.values(),
        *settlement._append_given.values(),
        Statements(plain.shape)["settle_failures"],
    ]
    statements += [Statements(plain.shape)[name] for name in ("read_log", "page_bytes", "feed_bytes", "feed_columns")]

    assert [
        statement for statement in statements if b"audience" in statement.replace(b"an audience is declared", b"")
    ] == []
