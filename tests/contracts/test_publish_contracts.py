"""What publish promises to chat, stations and catalog: rows and events together, enveloped, never without scope."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from aftercommit.errors import InvalidPayload, ScopeViolation
from aftercommit.event.correlation import correlation
from aftercommit.event.envelope import Record, envelope_json
from aftercommit.outbox import Outbox
from aftercommit.postgres.shape import DeclaredView
from aftercommit.schema import migrate
from aftercommit.testing.postgres import PostgresServerForTests

DOCUMENT_COLUMNS = {
    "id": "uuid",
    "aggregate_type": "character varying(50)",
    "aggregate_id": "character varying(255)",
    "user_id": "uuid",
    "project_id": "uuid",
    "event_type": "character varying(100)",
    "payload": "jsonb",
    "status": "character varying(20)",
    "retry_count": "integer",
    "next_retry_at": "timestamp with time zone",
    "created_at": "timestamp with time zone",
    "published_at": "timestamp with time zone",
    "last_error": "text",
}

chat = Outbox(
    "chat",
    scope={"user_id": UUID, "project_id": UUID},
    indexed=("created_at", "aggregate_id", "user_id", "project_id"),
    views=[DeclaredView("as_the_document_has_it", {name: name for name in DOCUMENT_COLUMNS})],
)
stations = Outbox("stations", scope={"tenant_id": str, "station_id": str})
catalog = Outbox("catalog")


@chat.event("message_sent", aggregate="chat", key="chat_id")
@dataclass
class MessageSent:
    chat_id: UUID
    text: str


@stations.event("TelemetryWindowClosed", aggregate="station", key="station")
class TelemetryWindowClosed(msgspec.Struct):
    station: str
    kwh: float


product_created = catalog.declare("ProductCreated", aggregate="product", key="product_id", required=["product_id"])

USER, PROJECT, CHAT = uuid4(), uuid4(), uuid4()
SCOPE: dict[str, Any] = {"user_id": USER, "project_id": PROJECT}
STATION: dict[str, Any] = {"tenant_id": "acme", "station_id": "st-7"}


def prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for outbox in (chat, stations, catalog):
            migrate.up(connection, outbox.shape)
        connection.execute("create table messages (id uuid primary key, text text not null)")
        connection.execute("create table products (id text primary key)")


@pytest.fixture
def dsn(postgres_server: PostgresServerForTests) -> Iterator[str]:
    dsn = postgres_server.clone(postgres_server.template("publish contracts", prepare=prepare))
    yield dsn
    postgres_server.drop(dsn)


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        yield connection


@pytest.fixture
def reader(dsn: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Somebody else, who sees what is committed."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def stored_record(reader: psycopg.Connection[dict[str, Any]], outbox: Outbox, event_id: UUID) -> Record:
    """The event as a relay has it in hand."""
    query = f"select *, payload::text as raw from {outbox.schema}.outbox where id = %s"
    row = reader.execute(query.encode(), [event_id]).fetchone()
    assert row is not None
    names = set(Record.__struct_fields__) & set(row) - {"payload"}
    return Record(
        event_id=row["id"],
        payload=row["raw"].encode(),
        scope={name: row[name] for name in outbox.shape.scope},
        **{name: row[name] for name in names},
    )


def sent(reader: psycopg.Connection[dict[str, Any]], outbox: Outbox, event_id: UUID) -> dict[str, Any]:
    """The event as it goes over the wire."""
    envelope: dict[str, Any] = msgspec.json.decode(envelope_json(stored_record(reader, outbox, event_id)))
    return envelope


# Rows and events together.


class Trouble(Exception):
    """Something in the request handler."""


@pytest.mark.contract("C1")
@pytest.mark.parametrize("fails", ["never", "before the event", "after the event", "at commit"])
def test_a_message_and_its_event_commit_together_or_not_at_all(connection, reader, fails):
    """C1: wherever the request fails, messages and events are both there or both absent."""
    connection.execute("alter table messages add unique (text) deferrable initially deferred")
    connection.execute("insert into messages values (gen_random_uuid(), 'taken')")
    connection.commit()

    with suppress(Trouble, psycopg.errors.UniqueViolation), connection.transaction():
        text = "taken" if fails == "at commit" else "hello"
        connection.execute("insert into messages values (%s, %s)", [uuid4(), text])
        if fails == "before the event":
            raise Trouble
        chat.publish(connection, MessageSent(CHAT, text), **SCOPE)
        if fails == "after the event":
            raise Trouble

    messages = reader.execute("select from messages where text = 'hello'").fetchall()
    events = reader.execute("select from chat.event_outbox").fetchall()
    assert (len(messages), len(events)) == ((1, 1) if fails == "never" else (0, 0))


@pytest.mark.contract("C1")
def test_an_event_that_breaks_its_contract_takes_the_message_with_it(connection, reader):
    """C1: a refused event is an error in the request, and the request's rows go with it."""

    def request() -> None:
        with connection.transaction():
            connection.execute("insert into messages values (%s, 'hello')", [uuid4()])
            chat.publish(connection, MessageSent(CHAT, "nul \x00"), **SCOPE)

    with pytest.raises(InvalidPayload):
        request()

    assert reader.execute("select from messages").fetchall() == []


@pytest.mark.contract("K1")
def test_a_domain_row_and_its_event_share_the_transaction_and_appear_with_its_commit(connection, reader):
    """K1: publish_in_tx; nothing is there to be delivered before the commit."""
    query = "select 'row' as what from products union all select 'event' from catalog.event_outbox order by 1"
    connection.execute("insert into products values ('p-1')")
    catalog.publish(connection, product_created(product_id="p-1"))
    before = reader.execute(query).fetchall()
    connection.commit()

    assert before == []
    assert [row["what"] for row in reader.execute(query)] == ["event", "row"]


@pytest.mark.contract("K1")
def test_an_event_without_a_required_field_is_refused_before_anything_is_written(connection, reader):
    """K1: the domain row alone is in the transaction then, which still works and is the caller's to end."""
    connection.execute("insert into products values ('p-1')")
    with pytest.raises(InvalidPayload, match="product_id"):
        catalog.publish(connection, product_created(name="chair"))
    connection.commit()

    assert len(reader.execute("select from products").fetchall()) == 1
    assert reader.execute("select from catalog.event_outbox").fetchall() == []


# Identity.


@pytest.mark.contract("C6")
def test_the_id_of_the_outbox_row_is_the_event_id_on_the_wire(connection, reader):
    """C6: the receipt, the row and the envelope name the same event."""
    receipt = chat.publish(connection, [MessageSent(CHAT, "one"), MessageSent(CHAT, "two")], **SCOPE)
    connection.commit()

    rows = reader.execute("select id, payload from chat.event_outbox order by seq").fetchall()
    assert tuple(row["id"] for row in rows) == receipt.event_ids
    for row in rows:
        envelope = sent(reader, chat, row["id"])
        assert envelope["event_id"] == str(row["id"])
        assert envelope["payload"] == row["payload"]


@pytest.mark.contract("C6")
def test_an_event_sent_twice_has_one_id_and_two_events_have_two(connection, reader):
    """C6: so a consumer can deduplicate by it."""
    receipt = chat.publish(connection, [MessageSent(CHAT, "same"), MessageSent(CHAT, "same")], **SCOPE)
    connection.commit()

    twice = [sent(reader, chat, event_id)["event_id"] for event_id in receipt.event_ids * 2]
    assert len(twice) == 4
    assert len(set(twice)) == 2


# The table of the document.


def columns_of(reader: psycopg.Connection[dict[str, Any]], relation: str) -> dict[str, str]:
    rows = reader.execute(
        "select attname, format_type(atttypid, atttypmod) as type from pg_attribute "
        "where attrelid = %s::regclass and attnum > 0 order by attnum",
        [relation],
    )
    return {row["attname"]: row["type"] for row in rows}


@pytest.mark.contract("C7")
def test_event_outbox_has_the_columns_of_the_document(reader):
    """C7: names and types; a view may be declared that has these and no others, in this order."""
    shown = columns_of(reader, "chat.event_outbox")

    assert {name: shown.get(name) for name in DOCUMENT_COLUMNS} == DOCUMENT_COLUMNS
    assert list(columns_of(reader, "chat.as_the_document_has_it").items()) == list(DOCUMENT_COLUMNS.items())


@pytest.mark.contract("C7")
@pytest.mark.parametrize("table", ["outbox", "log", "dead_letter_events"])
def test_user_and_project_are_typed_columns_that_cannot_be_null(reader, table):
    """C7: wherever an event can be."""
    rows = reader.execute(
        "select column_name, data_type, is_nullable from information_schema.columns "
        "where table_schema = 'chat' and table_name = %s and column_name in ('user_id', 'project_id')",
        [table],
    ).fetchall()

    assert sorted(tuple(row.values()) for row in rows) == [("project_id", "uuid", "NO"), ("user_id", "uuid", "NO")]


FILL_OUTBOX = """
insert into chat.outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, user_id, project_id,
                         status, retry_count, next_retry_at, last_error, created_at)
select gen_random_uuid(), 'chat', md5((n % 500)::text)::uuid::text, 'message_sent', 'c', '{{}}',
       md5((n % 300)::text)::uuid, md5((n % 200)::text)::uuid,
       case when n % 20 = 0 then 'failed' else 'pending' end,
       case when n % 20 > 2 and {fresh} then 0 when n % 20 = 1 then 0 else 1 end,
       case when n % 20 = 2 then now() - make_interval(secs => n)
            when n % 20 > 2 and not {fresh} then now() + make_interval(secs => n) end,
       case when n % 20 = 1 then null else 'down' end,
       now() - make_interval(secs => n)
from generate_series(1, 20000) n
"""
FILL_LOG = """
insert into chat.log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,
                      occurred_at, correlation_id, payload, retry_count, created_at, user_id, project_id)
select n, now(), gen_random_uuid(), n, 0, 'chat', md5((n % 500)::text)::uuid::text, 'message_sent', 1, now(), 'c',
       '{}', 0, now() - make_interval(secs => n), md5((n % 300)::text)::uuid, md5((n % 200)::text)::uuid
from generate_series(1, 20000) n
"""


@pytest.fixture(scope="module", params=["mostly fresh", "mostly waiting"])
def backlog(postgres_server: PostgresServerForTests, request) -> Iterator[psycopg.Connection[Any]]:
    """A chat with much in the log, and an outbox of which most was never tried, or most waits for a retry."""
    dsn = postgres_server.clone(postgres_server.template("publish contracts", prepare=prepare))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(FILL_OUTBOX.format(fresh=request.param == "mostly fresh"))
        connection.execute(FILL_LOG)
        connection.execute("vacuum analyze chat.outbox, chat.log")
        yield connection
    postgres_server.drop(dsn)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


DUE = "status = 'pending' and (next_retry_at is null or next_retry_at <= now())"
RECENT = "created_at > now() - interval '1 hour'"
ACCESS_PATHS = {
    "status, next_retry_at, created_at: due": (DUE, {"outbox"}),
    "status, next_retry_at, created_at: retries": ("status = 'pending' and next_retry_at <= now()", {"outbox"}),
    "status, next_retry_at, created_at: failed": ("status = 'failed'", {"outbox"}),
    "aggregate_id, created_at": (f"aggregate_id = md5('7')::uuid::text and {RECENT}", {"outbox", "log_000000"}),
    "project_id, created_at": (f"project_id = md5('7')::uuid and {RECENT}", {"outbox", "log_000000"}),
    "user_id, created_at": (f"user_id = md5('7')::uuid and {RECENT}", {"outbox", "log_000000"}),
}


@pytest.mark.thorough
@pytest.mark.contract("C7")
@pytest.mark.parametrize("view", ["event_outbox", "as_the_document_has_it"])
@pytest.mark.parametrize("path", ACCESS_PATHS)
def test_each_access_path_of_the_document_is_answered_by_an_index(backlog, view, path):
    """C7: no table with rows in it is read from end to end."""
    condition, tables = ACCESS_PATHS[path]
    query = f"select * from chat.{view} where {condition} order by created_at limit 100"
    (plan,) = backlog.execute(f"explain (format json) {query}").fetchone()[0]

    found = list(nodes(plan["Plan"]))
    read_whole = {node["Relation Name"] for node in found if node["Node Type"] == "Seq Scan"}
    read = {node["Relation Name"] for node in found if "Relation Name" in node}
    assert read_whole <= {"log_000001", "log_000002"}, "only partitions that are still empty"
    assert tables <= read
    assert backlog.execute(query).fetchall()


# Isolation.


@pytest.mark.contract("C11")
@pytest.mark.parametrize("missing", ["user_id", "project_id"])
def test_an_event_without_its_scope_is_refused_at_publish(connection, reader, missing):
    """C11: absent, None, or of another type."""
    without = {name: value for name, value in SCOPE.items() if name != missing}
    for scope in (without, {**SCOPE, missing: None}, {**SCOPE, missing: str(USER)}):
        with pytest.raises(ScopeViolation, match=missing):
            chat.publish(connection, MessageSent(CHAT, "hello"), **scope)
    connection.commit()

    assert reader.execute("select from chat.event_outbox").fetchall() == []


@pytest.mark.contract("C11")
@pytest.mark.parametrize("missing", ["user_id", "project_id"])
def test_the_database_itself_refuses_an_event_without_its_scope(reader, missing):
    """C11: also from code that does not go through publish."""
    with pytest.raises(psycopg.errors.NotNullViolation, match=missing):
        reader.execute(
            "insert into chat.outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, user_id, "
            "project_id) "
            "values (gen_random_uuid(), 'chat', '1', 'message_sent', 'c', '{}', %(user_id)s, %(project_id)s)",
            SCOPE | {missing: None},
        )


@pytest.mark.contract("C11")
def test_every_event_of_a_call_is_in_the_scope_of_the_call_or_its_own(connection, reader):
    """C11: none of many slips through without."""
    other = uuid4()
    chat.publish(
        connection,
        [
            MessageSent(CHAT, "one"),
            chat.registry.named("message_sent").draft(MessageSent(CHAT, "two"), scope={"project_id": other}),
        ],
        **SCOPE,
    )
    connection.commit()

    rows = reader.execute("select user_id, project_id from chat.event_outbox order by seq").fetchall()
    assert [tuple(row.values()) for row in rows] == [(USER, PROJECT), (USER, other)]


# The envelope.


@pytest.mark.contract("S1")
def test_an_event_is_in_its_envelope_with_its_defaults(connection, reader):
    """S1: correlation id is the event's own id, the version is 1, the time is RFC 3339 in UTC."""
    earliest = datetime.now(UTC)
    receipt = stations.publish(connection, TelemetryWindowClosed("st-7", 1.5), **STATION)
    connection.commit()

    envelope = sent(reader, stations, receipt.event_id)
    assert envelope["occurred_at"].endswith("Z")
    assert earliest <= datetime.fromisoformat(envelope.pop("occurred_at")) <= datetime.now(UTC)
    assert {name: envelope[name] for name in envelope if not name.startswith(("aggregate_", "event_type", "caus"))} == {
        "event_id": str(receipt.event_id),
        "correlation_id": str(receipt.event_id),
        "tenant_id": "acme",
        "station_id": "st-7",
        "schema_version": 1,
        "payload": {"station": "st-7", "kwh": 1.5},
    }


@pytest.mark.contract("S1")
def test_an_envelope_set_by_hand_reaches_the_wire(connection, reader):
    """S1: whatever time zone the application thinks in."""
    event_id = uuid4()
    moment = datetime(2026, 3, 1, 7, 15, tzinfo=ZoneInfo("Asia/Kathmandu"))
    draft = stations.registry.named("TelemetryWindowClosed").draft(
        TelemetryWindowClosed("st-7", 0.0), event_id=event_id, occurred_at=moment, correlation_id="settlement 2026-03"
    )
    stations.publish(connection, draft, **STATION)
    connection.commit()

    envelope = sent(reader, stations, event_id)
    assert envelope["event_id"] == str(event_id)
    assert envelope["occurred_at"] == "2026-03-01T01:30:00.000000Z"
    assert envelope["correlation_id"] == "settlement 2026-03"


@pytest.mark.contract("S1")
def test_the_database_refuses_an_event_without_its_envelope(reader):
    """S1: tenant, station and correlation id, also from code that does not go through publish."""
    given = STATION | {"correlation_id": "c"}
    for missing in given:
        with pytest.raises(psycopg.errors.NotNullViolation, match=missing):
            reader.execute(
                "insert into stations.outbox (id, aggregate_type, aggregate_id, event_type, payload, tenant_id, "
                "station_id, correlation_id) values (gen_random_uuid(), 's', '1', 'e', '{}', %(tenant_id)s, "
                "%(station_id)s, %(correlation_id)s)",
                given | {missing: None},
            )


# The story.


@pytest.mark.contract("S8")
def test_a_correlation_id_in_context_is_in_every_envelope_published_inside(connection, reader):
    """S8: one event or many, with or without a key, and none outside."""
    with correlation("settlement 2026-03"):
        inside = [
            *stations.publish(connection, TelemetryWindowClosed("a", 1.0), **STATION).event_ids,
            *stations.publish(
                connection, [TelemetryWindowClosed("b", 2.0), TelemetryWindowClosed("c", 3.0)], **STATION
            ).event_ids,
            *stations.publish(connection, TelemetryWindowClosed("d", 4.0), idempotency_key="k", **STATION).event_ids,
        ]
    outside = stations.publish(connection, TelemetryWindowClosed("e", 5.0), **STATION).event_id
    connection.commit()

    stories = [sent(reader, stations, event_id)["correlation_id"] for event_id in [*inside, outside]]
    assert stories == ["settlement 2026-03"] * 4 + [str(outside)]


@pytest.mark.thorough
@pytest.mark.contract("S8")
def test_the_innermost_story_is_the_one_an_event_belongs_to(connection, reader):
    """S8: and a correlation id of the event's own goes before any context."""
    closed = stations.registry.named("TelemetryWindowClosed")
    with correlation("outer"):
        with correlation("inner"):
            inner = stations.publish(connection, TelemetryWindowClosed("a", 1.0), **STATION).event_id
        outer = stations.publish(connection, TelemetryWindowClosed("b", 1.0), **STATION).event_id
        own_story = closed.draft(TelemetryWindowClosed("c", 1.0), correlation_id="own")
        own = stations.publish(connection, own_story, **STATION).event_id
    connection.commit()

    stories = [sent(reader, stations, event_id)["correlation_id"] for event_id in (inner, outer, own)]
    assert stories == ["inner", "outer", "own"]


@pytest.mark.contract("C11")
def test_an_empty_scope_is_refused_by_the_database_too(shop):
    """C11: whoever inserts by hand or through a view meets the same rule as a publisher."""
    insert = (
        "insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id) "
        "values (gen_random_uuid(), 'order', '1', 'order.placed', 'c', '{}', '')"
    )
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_tenant_id_is_not_empty"):
        shop.rows(insert)
