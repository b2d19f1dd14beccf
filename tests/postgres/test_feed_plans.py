"""What history costs: each question walks along an index and touches about the events that it returns.

One stream has 50,000 events, of which one in a thousand is an error; 300 others have some hundreds each.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from aftercommit.feed import Feed
from aftercommit.feed.strands.connections import HistoryConnections
from aftercommit.feed.strands.entry_maker import EntryMaker
from aftercommit.feed.strands.queries import Direction, FeedQueries
from aftercommit.feed.strands.tailer import _statement
from aftercommit.postgres.database import Database
from aftercommit.postgres.statements import Statements
from aftercommit.testing.postgres import PostgresServerForTests
from tests.postgres.test_plans import Plan, walk
from tests.support.feeding import Logs, all_feeds, log_outbox

VOLUME = """
    insert into log (position, ts, stream_seq, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,
                     occurred_at, correlation_id, payload, retry_count, created_at, project_id)
    select n, timestamptz '2025-11-12T00:00:00Z' + n * interval '1 second',
           case when n % 2 = 0 then n / 2 else n / 600 + 1 end, gen_random_uuid(), n, n % 64, 'investigation',
           case when n % 2 = 0 then 'big' else 'small-' || (n / 2) % 300 end,
           'log.recorded', 1, now(), 'because',
           json_build_object('level', case when n % 2000 = 0 then 'ERROR' when n % 100 = 0 then 'WARN' else 'INFO' end,
                             'source', case when n % 4 = 0 then 'frontend' else 'backend' end,
                             'service', 'service-' || n / 2 % 7, 'message', repeat('x', 200)),
           0, now(), 'p-' || n % 2
    from generate_series(1, 100000) n;
    insert into stream (aggregate_type, aggregate_id, seq, ts)
    select 'investigation', aggregate_id, max(stream_seq), now() from log group by aggregate_id;
    update head set position = 100000;
"""
LIMIT = 100
# A page has one more row, with the state of the log.
STATE = 1


@pytest.fixture(scope="module")
def logs(postgres_server: PostgresServerForTests) -> Iterator[Logs]:
    # A worker of pytest-xdist may come back to this file: what is written takes longer than all that is asked of it.
    dsn = postgres_server.clone(postgres_server.template("feed plans", prepare=write_volume))
    yield Logs(dsn)
    postgres_server.drop(dsn)


def write_volume(dsn: str) -> None:
    outbox = log_outbox()
    all_feeds(outbox)
    with psycopg.connect(dsn, autocommit=True) as connection:
        outbox.migrate(connection)
    logs = Logs(dsn)
    logs.rows(VOLUME)
    with logs.connect(autocommit=True) as connection:
        connection.execute("vacuum analyze")


@pytest.fixture(params=["directly", "through a pooler"])
def connection(logs: Logs, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """As feeds connect: with plans that are made once, by index; and with the server's own settings."""
    with logs.connect(autocommit=True) as connection:
        if request.param == "directly":
            connection.execute(Statements(logs.outbox.shape)["feed_plan"])
            connection.execute("set plan_cache_mode = force_generic_plan")
        else:
            connection.execute("set plan_cache_mode = force_custom_plan")
        yield connection


def explain(connection: psycopg.Connection[Any], statement: bytes, **parameters: Any) -> Plan:
    """Run a prepared statement and tell how it went."""
    cursor = psycopg.ClientCursor(connection)
    names = list(parameters)
    text = statement
    for place, name in enumerate(names, start=1):
        text = text.replace(f"%({name})s".encode(), f"${place}".encode())
    values = ", ".join(cursor.mogrify("%s", [parameters[name]]) for name in names)
    connection.execute(b"prepare feed as " + text)
    try:
        row = connection.execute(f"explain (analyze, format json) execute feed ({values})".encode()).fetchone()
    finally:
        connection.execute("deallocate feed")
    assert row is not None
    root = row[0][0]["Plan"]
    return Plan(tuple(walk(root)), int(root["Actual Rows"]))


def page(
    connection: psycopg.Connection[Any], feed: Feed, key: str, direction: Direction = "asc", **options: Any
) -> Plan:
    driver, rest = options.pop("driver", None), options.pop("rest", ())
    statement = FeedQueries(feed).page(direction, driver, rest)
    parameters = {"key": key, "low": 0, "high": 2**62, "limit": LIMIT, "max_bytes": 1 << 23, "types": ["log.recorded"]}
    used = {"place": options.get("low", 0), **parameters, "values": [], **options}
    return explain(connection, statement, **named_in(statement, used))


def named_in(statement: bytes, parameters: dict[str, Any]) -> dict[str, Any]:
    """Those that a statement takes."""
    return {name: value for name, value in parameters.items() if f"%({name})s".encode() in statement}


def whole_scans(plan: Plan) -> list[str]:
    """Partitions with events that were read from end to end; those ahead of the tip are empty."""
    return [name for name in plan.whole_scans if name == "log_000000"]


def sorted_rows(plan: Plan) -> float:
    """The most rows that any step sorted."""
    return max((node["Actual Rows"] for node in plan.nodes if "Sort" in node["Node Type"]), default=0)


def filtered(plan: Plan) -> float:
    """Rows that were read and thrown away."""
    return sum(float(node.get("Rows Removed by Filter", 0)) * float(node["Actual Loops"]) for node in plan.nodes)


@pytest.mark.thorough
@pytest.mark.parametrize("low", [0, 25_000, 49_000])
@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_a_deep_page_of_a_stream_costs_what_the_first_costs(logs, connection, low, direction):
    bound = {"low": low} if direction == "asc" else {"high": 50_000 - low}

    plan = page(connection, logs.feed, "big", direction, **bound)

    assert plan.rows == LIMIT + STATE
    assert whole_scans(plan) == []
    assert any("aggregate_type_aggregate_id_stream" in name for name in plan.indexes)
    assert plan.touched <= LIMIT + 3
    assert filtered(plan) <= 1
    assert sorted_rows(plan) <= LIMIT + STATE


@pytest.mark.parametrize(("feed", "key"), [("project", "p-0"), ("everything", "")])
@pytest.mark.thorough
def test_a_deep_page_by_position_costs_what_the_first_costs(logs, connection, feed, key):
    for low in (0, 99_000):
        plan = page(connection, logs.feeds[feed], key, low=low)

        assert plan.rows == LIMIT + STATE
        assert whole_scans(plan) == []
        assert plan.touched <= LIMIT + 3


@pytest.mark.parametrize(("feed", "key"), [("logs", "big"), ("project", "p-0"), ("everything", "")])
@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_one_in_a_thousand_is_found_without_reading_the_others(logs, connection, feed, key, direction):
    plan = page(connection, logs.feeds[feed], key, direction, driver=0, values=["ERROR"])

    assert plan.rows == 50 + STATE
    assert whole_scans(plan) == []
    assert plan.touched <= 50 + 3
    assert filtered(plan) <= 1


@pytest.mark.parametrize("before", [400, 25_000, 50_000])
def test_a_page_back_costs_the_same_wherever_it_begins(logs, connection, before):
    for feed, key in (("logs", "big"), ("stream", "big"), ("project", "p-0"), ("everything", "")):
        plan = page(connection, logs.feeds[feed], key, "desc", high=before - 1, place=before)

        assert plan.rows == LIMIT + STATE
        assert whole_scans(plan) == []
        assert plan.touched <= LIMIT + 3
        assert filtered(plan) <= 1


@pytest.mark.parametrize("moment", ["2025-11-12T00:00:01Z", "2025-11-12T07:00:00.5Z", "2025-11-13T03:46:00Z"])
@pytest.mark.parametrize(
    ("feed", "key"), [("logs", "big"), ("logs", "small-7"), ("project", "p-0"), ("everything", "")]
)
def test_a_moment_is_found_by_looking_up_an_event_for_each_halving(logs, connection, feed, key, moment):
    statement = FeedQueries(logs.feeds[feed]).moment

    plan = explain(connection, statement, **named_in(statement, {"key": key, "moment": moment}))

    assert plan.rows == 1
    assert whole_scans(plan) == []
    # The log's 100,000 numbers are halved 17 times, and two rows say how far they go.
    assert plan.touched <= 17 + 3
    assert sorted_rows(plan) <= 1


def test_several_values_are_merged_from_one_walk_each(logs, connection):
    plan = page(connection, logs.feed, "big", driver=0, values=["ERROR", "WARN"])

    assert plan.rows == LIMIT + STATE
    assert whole_scans(plan) == []
    assert plan.touched <= 2 * LIMIT + 3


def test_a_facet_says_how_far_it_reaches_without_reading_payloads_of_others(logs, connection):
    statement = FeedQueries(logs.feed).reach("asc", 0)

    plan = explain(connection, statement, key="big", low=0, high=2**62, values=["WARN", "ERROR"], window=100)

    assert whole_scans(plan) == []
    assert plan.touched <= 200


def test_a_strand_is_loaded_with_its_newest_events_and_counted_by_its_index_alone(logs, connection):
    statement = FeedQueries(logs.feed).load
    parameters = {"key": "small-7", "low": 0, "high": 2**62, "limit": LIMIT, "max_bytes": 1 << 20}

    plan = explain(connection, statement, **parameters, types=["log.recorded"])

    assert plan.rows == LIMIT + STATE
    assert whole_scans(plan) == []
    # 167 events are in the stream; where nobody has said that sorting is not wanted, so few may be sorted.
    assert plan.touched <= 2 * 167 + 3
    assert any(node["Node Type"] == "Index Only Scan" for node in plan.nodes)


def test_the_tailer_reads_a_range_of_positions(logs, connection):
    statement = _statement(Statements(logs.outbox.shape))

    plan = explain(connection, statement, after=99_000, size=500, types=["log.recorded"], max_bytes=1 << 23)

    assert plan.rows == 500
    assert whole_scans(plan) == []
    assert plan.indexes == {"log_000000_pkey", "head_pkey"} & plan.indexes
    assert plan.touched <= 500 + 2


async def test_the_rarest_of_several_filters_is_walked(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    """`service` and `source` match every seventh and every second event, `level` one in a thousand."""
    from aftercommit.feed import Cursor
    from aftercommit.feed.strands.history import History

    connections = HistoryConnections(Database(logs.dsn), 1)
    history = History(connections, EntryMaker(), [logs.feed], 100)
    chosen = logs.feed.chosen({"minLevel": "ERROR", "source": "frontend", "service": "service-0"})
    walked: list[int | None] = []
    page_of = FeedQueries.page

    def spied(self: FeedQueries, direction: Direction, driver: int | None, rest: Any) -> bytes:
        walked.append(driver)
        return page_of(self, direction, driver, rest)

    monkeypatch.setattr(FeedQueries, "page", spied)
    try:
        found = await history.forward(logs.feed, "big", Cursor(0), Cursor(50_000), 100, chosen)
    finally:
        await connections.close()

    expected = logs.rows(
        "select stream_seq from log where aggregate_id = 'big' and payload->>'level' = 'ERROR' "
        "and payload->>'source' = 'frontend' and payload->>'service' = 'service-0' order by 1"
    )
    assert [entry.number for entry in found.entries] == [number for (number,) in expected]
    assert len(expected) > 1
    assert walked == [0]
