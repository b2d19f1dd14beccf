"""Rows and statements of a publish, before any connection is there."""

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from aftercommit.errors import (
    ContractViolation,
    InvalidEnvelope,
    InvalidPayload,
    PayloadTooLarge,
    ScopeViolation,
    UnknownEventType,
)
from aftercommit.event.correlation import correlation, tell, told
from aftercommit.outbox import Outbox, Receipt, copy_format
from aftercommit.outbox.insert import Inserter, Script, _fingerprint, checked_key

OWNER = UUID(int=7)
SCOPE: dict[str, Any] = {"tenant": "acme", "account": 5, "owner": OWNER}
COLUMNS = (
    "id aggregate_type aggregate_id event_type schema_version occurred_at correlation_id causation_id payload "
    "tenant account owner"
).split()

outbox = Outbox("inserts", scope={"tenant": str, "account": int, "owner": UUID}, max_payload_bytes=100)


@outbox.event("placed", version=2, aggregate="order", key="order_id")
@dataclass
class Placed:
    order_id: Any


pinged = outbox.declare("pinged")
moved = outbox.declare("moved", aggregate="order")


@pytest.fixture
def inserter() -> Inserter:
    return Inserter(outbox.shape, outbox.registry, 100)


def row_of(inserter: Inserter, event: Any, **scope: Any) -> dict[str, Any]:
    (row,) = inserter.rows([event], SCOPE | scope)
    return dict(zip(COLUMNS, row, strict=True))


# The envelope.


def test_a_row_has_every_part_of_the_envelope(inserter):
    earliest = datetime.now(UTC)
    row = row_of(inserter, Placed("o-1"))

    assert row["id"].version == 7
    assert earliest <= row["occurred_at"] <= datetime.now(UTC)
    assert row == {
        "id": row["id"],
        "aggregate_type": "order",
        "aggregate_id": "o-1",
        "event_type": "placed",
        "schema_version": 2,
        "occurred_at": row["occurred_at"],
        "correlation_id": None,
        "causation_id": None,
        "payload": '{"order_id":"o-1"}',
        "tenant": "acme",
        "account": 5,
        "owner": OWNER,
    }


def test_an_event_without_an_aggregate_is_its_own(inserter):
    row = row_of(inserter, pinged())

    assert (row["aggregate_type"], row["aggregate_id"]) == ("event", str(row["id"]))


def test_the_story_and_the_cause_come_from_the_context_unless_set_by_hand(inserter):
    cause, other = uuid4(), uuid4()
    with told():
        tell(cause, "story")
        inherited = row_of(inserter, pinged())
        by_hand = row_of(inserter, pinged.draft({}, correlation_id="own", causation_id=other))
    with correlation("story"):
        uncaused = row_of(inserter, pinged())

    assert (inherited["correlation_id"], inherited["causation_id"]) == ("story", cause)
    assert (by_hand["correlation_id"], by_hand["causation_id"]) == ("own", other)
    assert (uncaused["correlation_id"], uncaused["causation_id"]) == ("story", None)


def test_an_id_set_by_hand_is_kept(inserter):
    given = uuid4()

    assert row_of(inserter, pinged.draft({}, event_id=given))["id"] == given


@pytest.mark.parametrize("part", ["event_id", "causation_id"])
@pytest.mark.parametrize("value", ["0192b3c4-0000-7000-8000-000000000001", "", 5, b"x" * 16])
def test_ids_must_be_uuids(inserter, part, value):
    with pytest.raises(InvalidEnvelope, match=f"{part} .* is not a uuid.UUID"):
        row_of(inserter, pinged.draft({}, **{part: value}))


def test_two_events_of_one_call_may_not_share_an_id(inserter):
    given = uuid4()

    with pytest.raises(InvalidEnvelope, match=f"event 1 of 2: two events have the event_id {given}"):
        inserter.rows([pinged.draft({}, event_id=given)] * 2, SCOPE)


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), "2026-01-01T00:00:00Z", 0])  # noqa: DTZ001
def test_the_time_of_an_event_has_a_time_zone(inserter, value):
    with pytest.raises(InvalidEnvelope, match=r"occurred_at .* has no time zone"):
        row_of(inserter, pinged.draft({}, occurred_at=value))


@pytest.mark.parametrize("value", ["", "x" * 256, "a\x00", "\ud800", 5])
def test_a_correlation_id_that_cannot_be_stored_is_refused(inserter, value):
    assert row_of(inserter, pinged.draft({}, correlation_id="x" * 255))["correlation_id"] == "x" * 255
    with pytest.raises(InvalidEnvelope, match=r"correlation id .* 1 to 255"):
        row_of(inserter, pinged.draft({}, correlation_id=value))


# The aggregate.


def test_an_aggregate_id_set_by_hand_goes_before_the_key(inserter):
    keyed = outbox.registry.named("placed").draft(Placed(None), aggregate_id="by hand")

    for draft in (keyed, moved.draft({}, aggregate_id="by hand")):
        assert row_of(inserter, draft)["aggregate_id"] == "by hand"


def test_an_event_of_an_aggregate_needs_its_id(inserter):
    with pytest.raises(
        InvalidEnvelope, match="moved belongs to an aggregate 'order' but has no aggregate id: declare key"
    ):
        row_of(inserter, moved())
    with pytest.raises(InvalidPayload, match="placed has no aggregate id"):
        row_of(inserter, Placed(None))


@pytest.mark.parametrize("value", ["", "x" * 256, "a\x00", "\ud800", 5])
def test_an_aggregate_id_that_cannot_be_stored_is_refused(inserter, value):
    assert row_of(inserter, moved.draft({}, aggregate_id="☃" * 255))["aggregate_id"] == "☃" * 255
    with pytest.raises(InvalidEnvelope, match=r"aggregate id .* of moved is not valid: use a string of 1 to 255"):
        row_of(inserter, moved.draft({}, aggregate_id=value))


# The scope.


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_or_empty_scope_is_named(inserter, value):
    for given in ({"tenant": value}, {name: SCOPE[name] for name in ("account", "owner")}):
        with pytest.raises(ScopeViolation, match=r"missing scope value 'tenant': .*publish\(…, tenant=…\)"):
            inserter.rows([pinged()], {**SCOPE, "tenant": None} | given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant", 5),
        ("tenant", OWNER),
        ("tenant", b"acme"),
        ("account", "5"),
        ("account", 5.0),
        ("account", True),
        ("account", False),
        ("owner", str(OWNER)),
        ("owner", 7),
    ],
)
def test_a_mistyped_scope_is_named_with_both_types(inserter, name, value):
    wanted = outbox.shape.scope[name].__name__

    with pytest.raises(ScopeViolation, match=rf"scope '{name}' must be {wanted}, got .* \({type(value).__name__}\)"):
        row_of(inserter, pinged(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant", "x" * 256),
        ("tenant", "a\x00"),
        ("tenant", "\ud800"),
        ("account", 2**63),
        ("account", -(2**63) - 1),
        pytest.param("account", 10**5000, id="endless number"),
    ],
)
def test_a_scope_that_does_not_fit_its_column_is_refused(inserter, name, value):
    with pytest.raises(ScopeViolation, match=f"scope '{name}' is"):
        row_of(inserter, pinged(), **{name: value})


@pytest.mark.parametrize(("name", "value"), [("tenant", "☃" * 255), ("account", 2**63 - 1), ("account", -(2**63))])
def test_a_scope_up_to_the_edge_of_its_column_is_taken(inserter, name, value):
    assert row_of(inserter, pinged(), **{name: value})[name] == value


def test_an_undeclared_scope_is_named_with_the_declared_ones(inserter):
    with pytest.raises(ScopeViolation, match=r"'tenent' is not a scope .* \['tenant', 'account', 'owner'\]"):
        row_of(inserter, pinged(), tenent="acme")
    unscoped = Outbox("unscoped")
    with pytest.raises(ScopeViolation, match="declared are none"):
        Inserter(unscoped.shape, unscoped.registry, 100).rows([unscoped.declare("pinged")()], {"tenant": "acme"})


def test_a_misspelt_scope_is_named_rather_than_the_missing_one(inserter):
    given = {"tenent" if name == "tenant" else name: value for name, value in SCOPE.items()}

    with pytest.raises(ScopeViolation, match="'tenent' is not a scope"):
        inserter.rows([pinged()], given)


def test_the_scope_of_a_draft_goes_before_that_of_the_call(inserter):
    rows = inserter.rows([pinged.draft({}, scope={"tenant": "other"}), pinged()], SCOPE)

    assert [row[9] for row in rows] == ["other", "acme"]


class Region(str, enum.Enum):  # noqa: UP042 - its str() is "Region.EU", which is the trap
    EU = "eu"


class Level(enum.IntEnum):
    LOW = 1


def test_a_scope_given_as_an_enumeration_is_stored_as_its_value(inserter):
    """Drivers do not agree on what a member of one is."""
    row = row_of(inserter, pinged(), tenant=Region.EU, account=Level.LOW)

    assert (type(row["tenant"]), row["tenant"]) == (str, "eu")
    assert (type(row["account"]), row["account"]) == (int, 1)


# Size, and many events.


def test_a_payload_over_the_limit_is_refused_with_size_and_limit(inserter):
    frame = len('{"text":""}')
    assert row_of(inserter, pinged(text="x" * (100 - frame)))

    with pytest.raises(PayloadTooLarge, match=r"pinged: the payload is 101 bytes, the limit is 100: store"):
        row_of(inserter, pinged(text="x" * (101 - frame)))


def test_the_limit_counts_bytes_and_not_characters(inserter):
    with pytest.raises(PayloadTooLarge, match="131 bytes"):
        row_of(inserter, pinged(text="☃" * 40))


@pytest.mark.parametrize("bad", [pinged(a={1}), {"a": 1}, moved(), pinged.draft({}, scope={"tenant": None})])
def test_one_bad_event_of_many_is_named_by_its_index_and_nothing_is_built(inserter, bad):
    with pytest.raises(ContractViolation, match=r"^event 2 of 3: "):
        inserter.rows([pinged(), pinged(), bad], SCOPE)


def test_a_single_bad_event_needs_no_index(inserter):
    with pytest.raises(UnknownEventType, match=r"^{'a': 1}"):
        inserter.rows([{"a": 1}], SCOPE)


def test_a_violation_in_a_list_still_names_its_field(inserter):
    with pytest.raises(InvalidPayload) as caught:
        inserter.rows([pinged(), pinged(a=[{1}])], SCOPE)
    assert caught.value.field == "$.a[0]"


# The conversation with the database.


def held(script: Script, *answers: Any) -> tuple[list[tuple[str, Any]], Receipt]:
    """What the script asks when the database answers like this, and the receipt in the end."""
    asked = [next(script)]
    for answer in answers:
        try:
            asked.append(script.send(answer))
        except StopIteration as end:
            return asked, end.value
    raise AssertionError(f"the script asks on: {asked[-1]}")


@pytest.mark.parametrize(
    ("style", "one", "many"),
    [
        ("psycopg", "%s::uuid, 'event'::varchar, %s::varchar", '%s::uuid[] as "id", %b::varchar[] as "aggregate_type"'),
        ("asyncpg", "$1::uuid, 'event'::varchar, $2::varchar", '$1::uuid[] as "id", $2::varchar[] as "aggregate_type"'),
        (
            "numbered",
            "$1::uuid, 'event'::varchar, $2::varchar",
            '$1::uuid[] as "id", $2::varchar[] as "aggregate_type"',
        ),
        ("text", "%s::uuid, 'event'::varchar, %s::varchar", '%s::uuid[] as "id", %s::varchar[] as "aggregate_type"'),
    ],
)
def test_one_event_is_one_statement_of_values_and_many_are_one_of_arrays(inserter, style, one, many):
    rows = inserter.rows([pinged(), pinged()], SCOPE)

    single, values = inserter.one(rows[0], style)
    assert one in single
    assert "--" not in single
    assert len(values) == len(given_of_one(rows[0], style))
    several, arrays = inserter.statement(rows, style)
    assert many in several
    assert len(arrays) == len(COLUMNS)


def test_what_all_events_share_is_sent_once(inserter):
    rows = inserter.rows([pinged(), pinged()], SCOPE)

    sent = dict(zip(COLUMNS, inserter.statement(rows, "asyncpg")[1], strict=True))

    assert sent["id"] == [rows[0][0], rows[1][0]]
    assert [len(sent[name]) for name in ("event_type", "schema_version", "occurred_at", "tenant")] == [1, 1, 1, 1]
    assert (sent["correlation_id"], sent["causation_id"]) == ([], [])


def test_what_differs_is_sent_for_each_event(inserter):
    cause, moment = uuid4(), datetime(2026, 1, 1, tzinfo=UTC)
    told = pinged.draft({}, correlation_id="story", causation_id=cause, occurred_at=moment)
    rows = inserter.rows([pinged(), told], SCOPE)

    sent = dict(zip(COLUMNS, inserter.statement(rows, "asyncpg")[1], strict=True))

    assert sent["correlation_id"] == [str(rows[0][0]), "story"]
    assert sent["causation_id"] == [None, cause]
    assert sent["occurred_at"] == [rows[0][5], moment]


def given_of_one(row, style):
    """The columns whose values are given when one event is published."""
    absent = {"aggregate_type", "event_type", "schema_version"}
    if row[COLUMNS.index("causation_id")] is None:
        absent.add("causation_id")
        if row[COLUMNS.index("correlation_id")] is None and style != "text":
            absent.add("correlation_id")
    return [name for name in COLUMNS if name not in absent]


@pytest.mark.parametrize("style", ["psycopg", "numbered", "asyncpg", "text"])
def test_an_event_without_a_correlation_id_has_its_own_id_as_one(inserter, style):
    cause = uuid4()
    with correlation("story"):
        told_row = inserter.rows([Placed("o-1")], SCOPE)[0]
    plain, caused = inserter.rows(
        [Placed("o-1"), outbox.registry.named("placed").draft(Placed("o-1"), causation_id=cause)], SCOPE
    )

    told_values = inserter.one(told_row, style)[1]
    statement, values = inserter.one(plain, style)
    caused_values = inserter.one(caused, style)[1]

    assert told_values[3] == "story"
    assert caused_values[3] == str(caused[0])
    if style == "text":
        assert values[3] == str(plain[0])
    else:
        assert "event.id::text" in statement
        assert len(values) == len(told_values) - 1


def test_a_row_of_a_copy_is_the_same_whatever_stands_before_it(inserter):
    moment, cause = datetime(2026, 1, 1, tzinfo=UTC), uuid4()
    with correlation("story"):
        told_rows = inserter.rows([pinged(), Placed("o-2")], SCOPE)
    drafts = [
        pinged(),
        pinged.draft({"text": "☃"}, occurred_at=moment),
        pinged.draft({}, scope={"tenant": "other"}),
        pinged.draft({}, causation_id=cause),
        Placed("o-1"),
    ]
    rows = [*inserter.rows([*drafts, *drafts], SCOPE), *told_rows]

    together = b"".join(copy_format.chunks(rows))

    head, end = b"".join(copy_format.chunks([])), b"\xff\xff"
    alone = [b"".join(copy_format.chunks([row])) for row in rows]
    signature = alone[0][:19]
    assert head == end
    assert together == signature + b"".join(each[19 : -len(end)] for each in alone) + end


def test_a_fresh_key_takes_one_statement(inserter):
    rows = inserter.rows([pinged()], SCOPE)

    asked, receipt = held(inserter.script(rows, "psycopg", "key"), [(1, 0)])

    assert len(asked) == 1
    assert receipt == Receipt((rows[0][0],), duplicate=False)


@pytest.mark.parametrize(
    "shown", [lambda ids: ids, lambda ids: [str(one) for one in ids], lambda ids: "{" + ",".join(map(str, ids)) + "}"]
)
def test_a_known_key_is_looked_up_however_the_driver_shows_an_array(inserter, shown):
    first = [uuid4(), uuid4()]

    rows = inserter.rows([pinged()], SCOPE)

    asked, receipt = held(inserter.script(rows, "text", "key"), [(0, 0)], [(shown(first), _fingerprint(rows))])

    assert asked[1][1][0] == "key"
    assert receipt == Receipt(tuple(first), duplicate=True)


def test_a_key_that_was_removed_in_between_is_tried_again(inserter):
    rows = inserter.rows([pinged()], SCOPE)

    asked, receipt = held(inserter.script(rows, "psycopg", "key"), [(0, 0)], [], [(1, 0)])

    assert asked[0] == asked[2]
    assert receipt == Receipt((rows[0][0],), duplicate=False)


def test_drivers_that_write_values_into_the_statement_get_text(inserter):
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=1)
    rows = inserter.rows([pinged.draft({}, occurred_at=moment)], SCOPE | {"account": -(2**63)})

    _, values = inserter.one(rows[0], "text")

    given = dict(zip(given_of_one(rows[0], "text"), values, strict=True))
    assert given["id"] == str(rows[0][0])
    assert given["occurred_at"] == "2026-01-01T00:00:00.000001+00:00"
    assert given["account"] == "-9223372036854775808"


@pytest.mark.parametrize("style", ["psycopg", "asyncpg", "text"])
def test_what_belongs_to_the_type_stands_in_the_statement_and_the_rest_is_given(inserter, style):
    cause = uuid4()
    draft = outbox.registry.named("placed").draft(Placed("o-1"), causation_id=cause)
    with correlation("story"):
        placed, caused = inserter.rows([Placed("o-1"), draft], SCOPE)

    statement, values = inserter.one(placed, style)
    with_cause, more = inserter.one(caused, style)

    assert "'order'::varchar" in statement
    assert "'placed'::varchar" in statement
    assert "2::smallint" in statement
    assert "causation_id" not in statement
    assert len(more) == len(values) + 1
    assert dict(zip(given_of_one(caused, style), more, strict=True))["causation_id"] in (cause, str(cause))
    assert '"causation_id"' in with_cause
    assert inserter.one(placed, style)[0] is statement


@pytest.mark.parametrize("key", ["", "x" * 256, "a\x00", "\ud800", 5, b"key"])
def test_an_idempotency_key_that_cannot_be_stored_is_refused(key):
    assert checked_key("☃" * 255) == "☃" * 255
    with pytest.raises(InvalidEnvelope, match=r"idempotency key .* 1 to 255"):
        checked_key(key)


def test_a_receipt_for_several_events_has_no_single_id():
    assert Receipt((OWNER,)).event_id == OWNER
    for ids in ((), (OWNER, OWNER)):
        with pytest.raises(ValueError, match=f"{len(ids)} events were published"):
            _ = Receipt(ids).event_id


def test_a_key_is_valid_in_one_scope(inserter):
    one, other = inserter.rows([pinged()], SCOPE), inserter.rows([pinged()], {**SCOPE, "account": 9})

    assert inserter._scope_of(one) != inserter._scope_of(other)
    with pytest.raises(InvalidEnvelope, match="one scope"):
        next(inserter.script([*one, *other], "psycopg", "key"))


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime(1, 12, 31, tzinfo=UTC),
    ],
)
def test_a_moment_that_readers_could_not_read_back_is_refused(inserter, moment):
    with pytest.raises(InvalidEnvelope, match="out of range"):
        inserter.rows([pinged.draft({}, occurred_at=moment)], SCOPE)
