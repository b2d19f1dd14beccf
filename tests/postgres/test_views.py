"""Views under a document's own names: what they show, and what an INSERT into one of them does."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from aftercommit.postgres.shape import DeclaredView, Shape
from aftercommit.schema import migrate
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.engine import Engine, connected, migrate_up, value

STATIONS_OUTBOX = DeclaredView(
    "event_outbox",
    {
        "id": "id_text",
        "event_id": "event_id",
        "event_type": "event_type",
        "payload": "payload",
        "status": "status",
        "attempts": "retry_count",
        "created_at": "created_at",
        "sent_at": "published_at",
    },
    {"published": "sent"},
    envelope=True,
    writable=True,
)
STATIONS = Shape("stations", {"tenant_id": str, "station_id": str}, views=(STATIONS_OUTBOX,))
SYS_EVENTS = DeclaredView(
    "sys_events",
    {"id": "id", "event_type": "event_type", "payload": "payload", "status": "status", "error": "last_error"},
    {"pending": "Pending", "published": "Dispatched", "failed": "Failed"},
)
SCOPE = {"tenant_id": "acme", "station_id": "s-1"}

# As the stations' document has it.
REPLAY = """
    INSERT INTO event_outbox (id, event_id, event_type, payload, status, attempts)
    SELECT event_id || '-replay', event_id, event_type, payload, 'pending', 0
    FROM dead_letter_events
    WHERE event_id = '{event_id}';
"""
INSERT = "insert into event_outbox (id, event_id, event_type, payload, status) values (%s, %s, %s, %s, %s)"


@pytest.fixture
def stations(postgres_server: PostgresServerForTests) -> Iterator[Engine]:
    """The stations' outbox on a connection whose search path is its schema, as the document's SQL expects."""

    def prepare(dsn: str) -> None:
        migrate_up(dsn, STATIONS)

    dsn = postgres_server.clone(postgres_server.template("stations", prepare=prepare))
    with connected(dsn, options="-c search_path=stations") as connection:
        yield Engine(connection, STATIONS)
    postgres_server.drop(dsn)


def rows(connection: psycopg.Connection[Any], query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), parameters or None).fetchall()


def park(engine: Engine, event_id: UUID, consumer: str) -> None:
    """A consumer that reads the log could not take this event."""
    engine.connection.execute(
        """
        insert into dead_letter_events (
            event_id, consumer_name, status, event_type, schema_version, aggregate_type, aggregate_id,
            occurred_at, correlation_id, payload, seq, position, created_at, error, error_class, attempts,
            tenant_id, station_id)
        select id, %s, 'parked', event_type, schema_version, aggregate_type, aggregate_id,
               occurred_at, correlation_id, payload, seq, position, created_at, 'broken', 'Error', 3,
               tenant_id, station_id
        from log where id = %s
        """,
        [consumer, event_id],
    )


def envelope(event_id: UUID, payload: Any = None, **fields: Any) -> str:
    envelope = {
        "event_id": str(event_id),
        "occurred_at": "2026-03-01T10:00:00Z",
        "correlation_id": "c-1",
        "schema_version": 2,
        "payload": {"kwh": 5} if payload is None else payload,
        **SCOPE,
        **fields,
    }
    return json.dumps(envelope)


def test_the_canonical_views_show_every_event_with_its_status(database):
    migrate_up(database)
    with connected(database, options="-c search_path=aftercommit") as connection:
        engine = Engine(connection)
        published, failed, pending = (engine.publish(payload='{"n": 1}') for _ in range(3))
        engine.deliver(published)
        engine.fail(failed)

        states = rows(
            connection,
            "select id, status, payload ->> 'n', published_at is null from event_outbox order by seq",
        )
        assert states == [
            (published, "published", "1", False),
            (failed, "failed", "1", True),
            (pending, "pending", "1", True),
        ]
        assert rows(connection, "select position, event_id, payload ->> 'n' from event_log") == [(1, published, "1")]
        assert value(connection, "select last_error from event_outbox where status = 'failed'") == "broken"


@pytest.mark.contract("S3")
def test_stations_read_pending_sent_and_failed_under_their_own_names(stations):
    """S3: states `pending`, `sent`, `failed` with `attempts` and `sent_at`, under exactly these names."""
    sent, failed, pending = (stations.publish("TelemetryWindowClosed", '{"kwh": 5}', **SCOPE) for _ in range(3))
    stations.fail(sent, delay=0)
    stations.deliver(sent)
    stations.fail(failed)

    query = "select event_id, status, attempts, sent_at is not null, created_at is not null from event_outbox"
    assert sorted(rows(stations.connection, query)) == sorted(
        [
            (sent, "sent", 1, True, True),
            (failed, "failed", 1, False, True),
            (pending, "pending", 0, False, True),
        ]
    )
    columns = rows(
        stations.connection,
        "select attname from pg_attribute where attrelid = 'event_outbox'::regclass and attnum > 0 order by attnum",
    )
    assert [name for (name,) in columns] == list(STATIONS_OUTBOX.columns)
    wrapped = value(stations.connection, "select payload from event_outbox where event_id = %s", [sent])
    assert wrapped.keys() == {
        "event_id",
        "occurred_at",
        "correlation_id",
        "tenant_id",
        "station_id",
        "schema_version",
        "payload",
    }
    assert wrapped["event_id"] == str(sent)
    assert wrapped["payload"] == {"kwh": 5}
    assert wrapped["occurred_at"].endswith("Z")


@pytest.mark.contract("K2")
def test_the_catalog_reads_pending_dispatched_and_failed_as_sys_events(database):
    """K2: `Pending`, `Dispatched` and `Failed` are readable as `sys_events`; a retry is `Pending` still."""
    shape = Shape("catalog", views=(SYS_EVENTS,))
    migrate_up(database, shape)
    with connected(database, options="-c search_path=catalog") as connection:
        engine = Engine(connection, shape)
        dispatched, failed, retried, pending = (engine.publish("NodeCreated") for _ in range(4))
        engine.deliver(dispatched)
        engine.fail(retried, delay=60)
        engine.fail(failed, delay=60)
        engine.fail(failed)

        assert dict(rows(connection, "select id, status from sys_events")) == {
            dispatched: "Dispatched",
            failed: "Failed",
            retried: "Pending",
            pending: "Pending",
        }
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            connection.execute("insert into sys_events (status) values ('Pending')")


def test_the_documents_replay_sends_an_event_again_that_failed_in_the_outbox(stations):
    failed = stations.publish("StatisticCalculated", '{"b": 1,  "a": 2}', **SCOPE)
    stations.fail(failed, delay=0)
    stations.fail(failed)

    stations.connection.execute(REPLAY.format(event_id=failed).encode())

    query = "select id, status, retry_count, next_retry_at <= clock_timestamp(), payload::text from outbox"
    assert rows(stations.connection, query) == [(failed, "pending", 0, True, '{"b": 1,  "a": 2}')]
    assert stations.deliver(failed) == 1


def test_the_documents_replay_sends_an_event_again_that_is_in_the_log(stations):
    """One dead letter per consumer that failed, and still one event goes out, equal to the first in all it
    says.
    """
    event_id = stations.publish("SettlementCalculated", '{"b": 1,  "a": 2}', schema_version=3, **SCOPE)
    stations.deliver(event_id)
    park(stations, event_id, "billing")
    park(stations, event_id, "audit")

    stations.connection.execute(REPLAY.format(event_id=event_id).encode())

    assert stations.deliver(event_id) == 2
    columns = (
        "id, aggregate_type, aggregate_id, event_type, schema_version, occurred_at, correlation_id, "
        "payload::text, "
        "tenant_id, station_id"
    )
    first, again = rows(stations.connection, f"select {columns} from log order by position")
    assert first == again


def test_the_documents_replay_works_when_only_the_dead_letter_is_left(stations):
    event_id = stations.publish("SettlementCalculated", '{"euro": 7}', **SCOPE)
    stations.deliver(event_id)
    park(stations, event_id, "billing")
    stations.connection.execute("truncate log")

    stations.connection.execute(REPLAY.format(event_id=event_id).encode())

    query = "select id, event_type, payload ->> 'euro', tenant_id, station_id from outbox"
    assert rows(stations.connection, query) == [(event_id, "SettlementCalculated", "7", "acme", "s-1")]


def test_a_replay_of_an_event_that_waits_for_its_retry_falls_due_at_once(stations):
    waiting = stations.publish(**SCOPE)
    stations.fail(waiting, delay=3600)

    stations.connection.execute(REPLAY.format(event_id=waiting).encode())

    assert value(stations.connection, "select next_retry_at <= clock_timestamp() from outbox") is True


def test_a_replay_of_an_event_that_is_still_on_its_way_changes_nothing(stations):
    event_id = stations.publish(**SCOPE)
    before = rows(stations.connection, "select xmin::text, * from outbox")

    stations.connection.execute(INSERT.encode(), [str(event_id), event_id, "thing.happened", "{}", "pending"])

    assert rows(stations.connection, "select xmin::text, * from outbox") == before


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("place", ["outbox", "log"])
def test_a_replay_takes_the_payload_raw_and_in_its_envelope(stations, place, wrapped):
    # A payload that looks like an envelope itself is still told apart.
    event_id = uuid4()
    payload = {"event_id": str(event_id), "payload": 1}
    stations.publish(id=event_id, payload=json.dumps(payload), **SCOPE)
    stations.deliver(event_id) if place == "log" else stations.fail(event_id)
    given = envelope(event_id, payload) if wrapped else json.dumps(payload)

    stations.connection.execute(INSERT.encode(), [f"{event_id}-replay", event_id, "thing.happened", given, "pending"])

    assert rows(stations.connection, "select id, payload, status from outbox") == [(event_id, payload, "pending")]


def test_a_replay_with_another_payload_is_refused(stations):
    event_id = stations.publish(payload='{"kwh": 5}', **SCOPE)
    stations.fail(event_id)

    with pytest.raises(psycopg.errors.CheckViolation, match=r"stored with another payload.*under a new event_id"):
        stations.connection.execute(
            INSERT.encode(), [f"{event_id}-replay", event_id, "thing.happened", '{"kwh": 6}', "pending"]
        )

    assert value(stations.connection, "select status from outbox") == "failed"


def test_a_new_event_in_its_envelope_is_published(stations):
    event_id = uuid4()

    stations.connection.execute(
        INSERT.encode(), [str(event_id), event_id, "TelemetryWindowClosed", envelope(event_id), "pending"]
    )

    query = (
        "select id, event_type, aggregate_type, aggregate_id, schema_version, occurred_at::text, "
        "correlation_id, payload, "
        "tenant_id, station_id, status, retry_count, next_retry_at from outbox"
    )
    stations.connection.execute("set timezone to 'UTC'")
    assert rows(stations.connection, query) == [
        (
            event_id,
            "TelemetryWindowClosed",
            "event",
            str(event_id),
            2,
            "2026-03-01 10:00:00+00",
            "c-1",
            {"kwh": 5},
            "acme",
            "s-1",
            "pending",
            0,
            None,
        )
    ]
    assert stations.deliver(event_id) == 1


def test_a_new_event_needs_no_more_than_its_scope_and_payload(stations):
    event_id = uuid4()
    given = json.dumps({"event_id": str(event_id), "payload": None, **SCOPE})

    stations.connection.execute(
        "insert into event_outbox (event_id, event_type, payload) values (%s, 'Started', %s)",
        [event_id, given],
    )

    query = "select payload::text, correlation_id, schema_version from outbox"
    assert rows(stations.connection, query) == [("null", str(event_id), 1)]


def test_a_new_event_without_its_scope_is_refused(stations):
    event_id = uuid4()

    with pytest.raises(psycopg.errors.NotNullViolation, match="tenant_id"):
        stations.connection.execute(
            INSERT.encode(),
            [str(event_id), event_id, "Started", envelope(event_id, tenant_id=None), "pending"],
        )


@pytest.mark.parametrize("status", ["sent", "failed", "published", ""])
def test_an_event_can_be_inserted_as_pending_only(stations, status):
    event_id = uuid4()

    with pytest.raises(psycopg.errors.CheckViolation, match="inserted as pending, not as"):
        stations.connection.execute(INSERT.encode(), [str(event_id), event_id, "Started", envelope(event_id), status])


def test_an_event_cannot_be_inserted_without_an_id(stations):
    with pytest.raises(psycopg.errors.NotNullViolation, match="without its event_id"):
        stations.connection.execute("insert into event_outbox (event_type, payload) values ('Started', '{}')")


def test_a_view_that_shows_one_id_takes_a_marked_one(database):
    columns = {
        "id": "id_text",
        "type": "event_type",
        "body": "payload",
        "tenant": "tenant_id",
        "about": "aggregate_id",
    }
    shape = Shape(scope={"tenant_id": str}, views=(DeclaredView("events", columns, writable=True),))
    migrate_up(database, shape)
    with connected(database, options="-c search_path=aftercommit") as connection:
        new = uuid4()
        insert = (
            "insert into events (id, type, body, tenant, about) values (%s, 'Started', '{\"n\": 1}', 'acme', 'o-1')"
        )
        connection.execute(insert.encode(), [str(new)])
        Engine(connection, shape).fail(new)
        connection.execute(insert.encode(), [f"{new}-replay"])

        query = "select id, aggregate_id, tenant_id, status, payload from outbox"
        assert rows(connection, query) == [(new, "o-1", "acme", "pending", {"n": 1})]


@pytest.mark.thorough
def test_a_view_can_be_declared_anew_with_other_columns_and_keeps_its_privileges(database):
    def declared(**columns: str) -> Shape:
        return Shape(views=(DeclaredView("events", columns, writable=True),))

    first = declared(id="id", kind="event_type", body="payload", state="status")
    second = declared(body="payload", kind="event_type", event="event_id", at="created_at")
    with connected(database) as connection:
        migrate.up(connection, first)
        role = f"analyst_{uuid4().hex}"
        connection.execute(f"create role {role}")
        connection.execute(f"grant select on aftercommit.events to {role} with grant option")
        connection.execute("grant select on aftercommit.events to public")

        assert migrate.up(connection, second) == ["created view events"]

        migrate.check(connection, second)
        assert value(
            connection,
            f"select has_table_privilege('{role}', 'aftercommit.events', 'select with grant option')",
        )
        assert "=r/" in value(connection, "select relacl::text from pg_class where relname = 'events'")
        connection.execute(
            "insert into aftercommit.events (event, kind, body) values (gen_random_uuid(), 'Started', '{}')"
        )
        assert value(connection, "select kind from aftercommit.events") == "Started"
        connection.execute(f"drop owned by {role}; drop role {role}")
