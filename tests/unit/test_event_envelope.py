"""The envelope on the wire, and the identity of an event."""

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import RFC_4122, UUID, uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftercommit.event.envelope import Record, envelope_json, rfc3339
from aftercommit.event.identity import uuid7

EVENT_ID = UUID("0192b3c4-0000-7000-8000-00000000000b")


def record(**changes: Any) -> Record:
    given: dict[str, Any] = {
        "event_id": EVENT_ID,
        "event_type": "window_closed",
        "schema_version": 1,
        "aggregate_type": "station",
        "aggregate_id": "st-7",
        "occurred_at": datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
        "correlation_id": str(EVENT_ID),
        "causation_id": None,
        "scope": {"tenant_id": "acme", "station_id": "st-7"},
        "payload": b'{"kwh":1.50}',
        "created_at": datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC),
        "seq": 1,
    }
    return Record(**given | changes)


def test_the_envelope_has_the_names_of_the_event_and_of_its_scope_around_the_payload():
    assert msgspec.json.decode(envelope_json(record())) == {
        "event_id": str(EVENT_ID),
        "event_type": "window_closed",
        "occurred_at": "2026-03-01T12:00:00.000000Z",
        "correlation_id": str(EVENT_ID),
        "causation_id": None,
        "aggregate_type": "station",
        "aggregate_id": "st-7",
        "tenant_id": "acme",
        "station_id": "st-7",
        "schema_version": 1,
        "payload": {"kwh": 1.5},
    }


def test_the_payload_goes_out_byte_for_byte_as_it_was_stored():
    assert b'"payload":{"kwh":1.50}}' in envelope_json(record())


def test_scope_values_that_are_ids_or_numbers_keep_their_form():
    owner = uuid4()
    sent = msgspec.json.decode(envelope_json(record(scope={"owner": owner, "account": 2**63 - 1})))

    assert (sent["owner"], sent["account"]) == (str(owner), 2**63 - 1)


def test_an_aggregate_is_its_type_and_its_id():
    assert record().aggregate == ("station", "st-7")


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00.000000Z"),
        (datetime(2026, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=2))), "2025-12-31T22:30:00.000000Z"),
        (datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "2026-01-01T00:00:00.000001Z"),
    ],
)
def test_times_are_rfc_3339_in_utc_with_a_z(moment, text):
    assert rfc3339(moment) == text


EARLIEST, LATEST = datetime(1, 1, 3), datetime(9999, 12, 29)  # noqa: DTZ001 - hypothesis adds the time zone


@settings(deadline=None)
@given(st.datetimes(EARLIEST, LATEST, timezones=st.timezones()))
def test_any_time_reads_back_as_the_same_moment(moment):
    assert rfc3339(moment).endswith("Z")
    assert datetime.fromisoformat(rfc3339(moment)) == moment.astimezone(UTC)


def test_ids_are_version_7_of_rfc_9562():
    event_id = uuid7()

    assert (event_id.version, event_id.variant) == (7, RFC_4122)


def test_an_id_begins_with_the_millisecond_it_was_made_in():
    before = time.time_ns() // 1_000_000
    milliseconds = uuid7().int >> 80
    after = time.time_ns() // 1_000_000

    assert before <= milliseconds <= after


def test_ids_of_later_milliseconds_sort_later(monkeypatch):
    made = []
    for milliseconds in (1, 2, 1_700_000_000_000, 1_700_000_000_001, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda milliseconds=milliseconds: milliseconds * 1_000_000)
        made.append(uuid7())

    assert made == sorted(made)
    assert [str(event_id) for event_id in made] == sorted(map(str, made))


def test_ids_of_one_millisecond_differ(monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)

    assert len({uuid7() for _ in range(10_000)}) == 10_000


def test_every_random_bit_of_an_id_varies(monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    made = [uuid7().int for _ in range(500)]
    always_set = all_bits = (1 << 128) - 1
    ever_set = 0
    for value in made:
        always_set &= value
        ever_set |= value

    assert always_set == (0x7 << 76) | (0x2 << 62)
    assert all_bits - ever_set == (((1 << 48) - 1) << 80) | (0x8 << 76) | (0x1 << 62)
