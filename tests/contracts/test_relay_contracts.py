"""What the relay promises about status, retries and the end of retries, seen as an operator sees it."""

import asyncio
import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from aftercommit.backoff import ByError, Constant, Exponential, Never
from aftercommit.event.envelope import Record, envelope_json
from aftercommit.relay import RelaySettings
from tests.support.recording import RecordingTransport
from tests.support.relays import relay_on
from tests.support.shop import Shop, shop_outbox

SMALL = RelaySettings(lease_seconds=20.0, batch_size=4)


def refuse_all(record: Record) -> BaseException | None:
    return RuntimeError("the broker is sulking")


def state(shop: Shop, event_id: UUID) -> dict[str, Any]:
    """An event as the view shows it."""
    columns = "status retry_count last_error published_at is_null next_retry_at".split()
    row = shop.rows(
        "select status, retry_count, last_error, published_at, next_retry_at is null, next_retry_at "
        "from event_outbox where id = %s",
        [event_id],
    )[0]
    return dict(zip(columns, row, strict=True))


def make_due(shop: Shop) -> None:
    """The wait is over, on the database's clock."""
    shop.rows("update outbox set next_retry_at = clock_timestamp() where next_retry_at is not null")


@pytest.mark.contract("C2")
async def test_pending_events_go_out_in_batches_oldest_first(shop: Shop) -> None:
    """C2: ten events in batches of four, in the order in which they were written."""
    ids = [shop.place(f"o-{number}", number) for number in range(10)]
    transport = RecordingTransport()
    async with relay_on(shop, transport=transport, settings=SMALL):
        await shop.signals.wait_total("relay.appended", 10)
    assert transport.ids == ids
    assert [detail["count"] for detail in shop.signals.details["relay.deliver"]] == [4, 4, 2]


@pytest.mark.contract("C2")
async def test_only_what_is_pending_and_due_goes_out(shop: Shop) -> None:
    """C2: an event that failed, and one whose retry is not due, stay where they are."""
    failed, waiting, due, fresh = (shop.place(f"o-{number}", number) for number in range(4))
    shop.rows("update outbox set status = 'failed', retry_count = 9, last_error = 'x' where id = %s", [failed])
    shop.rows("update outbox set retry_count = 1, next_retry_at = now() + interval '1 h' where id = %s", [waiting])
    shop.rows("update outbox set retry_count = 1, next_retry_at = now() - interval '1 s' where id = %s", [due])
    transport = RecordingTransport()
    async with relay_on(shop, transport=transport):
        await shop.signals.wait_total("relay.appended", 2)
        await shop.signals.next("relay.idle")
    assert transport.ids == [due, fresh]
    assert {row[0] for row in shop.rows("select id from outbox")} == {failed, waiting}


@pytest.mark.thorough
@pytest.mark.contract("C2")
async def test_publishers_side_by_side_never_take_the_same_event(shop: Shop) -> None:
    """C2: three relays with batches of four drain two hundred events; every event was delivered by exactly one."""
    ids = {shop.place(f"o-{number}", number) for number in range(200)}
    shops = [Shop(shop.dsn) for _ in range(3)]
    transports = [RecordingTransport() for _ in shops]
    async with (
        relay_on(shops[0], transport=transports[0], settings=SMALL),
        relay_on(shops[1], transport=transports[1], settings=SMALL),
        relay_on(shops[2], transport=transports[2], settings=SMALL),
    ):
        await shop.value_becomes("select count(*) from log", 200)
    delivered = [event_id for transport in transports for event_id in transport.ids]
    assert len(delivered) == 200
    assert set(delivered) == ids


@pytest.mark.contract("C3")
async def test_a_delivered_event_reads_published_with_its_time(shop: Shop) -> None:
    """C3: status published and published_at, on the database's clock, not before the event was written."""
    event_id = shop.place()
    assert state(shop, event_id)["status"] == "pending"
    async with relay_on(shop, transport=RecordingTransport()):
        await shop.signals.wait_total("relay.appended", 1)
    after = state(shop, event_id)
    assert (after["status"], after["retry_count"], after["last_error"]) == ("published", 0, None)
    assert shop.value(
        "select published_at between created_at and clock_timestamp() from event_outbox where id = %s", [event_id]
    )


@pytest.mark.contract("C3")
async def test_each_failure_counts_up_and_doubles_the_wait_with_jitter_on_the_databases_clock(shop: Shop) -> None:
    """C3: retry_count + 1, last_error, next_retry_at within 50-100 % of 100 s, 200 s, 400 s, 600 s (the maximum)."""
    outbox = shop_outbox(backoff=Exponential(base=100, factor=2, maximum=600, jitter=0.5))
    waits = []
    event_id = shop.place()
    async with relay_on(replace(shop, outbox=outbox), transport=RecordingTransport(refuse_all)):
        for attempt in range(1, 6):
            await shop.signals.wait("relay.failed", attempt)
            after = state(shop, event_id)
            assert (after["status"], after["retry_count"]) == ("pending", attempt)
            assert after["last_error"] == "the broker is sulking"
            waits.append(
                shop.value(
                    "select extract(epoch from outbox.next_retry_at - last_seen_at)::float8 "
                    "from outbox join dead_letter_events on event_id = id"
                )
            )
            make_due(shop)
    for wait, longest in zip(waits, (100, 200, 400, 600, 600), strict=True):
        # The two times are not taken at quite the same moment.
        assert longest / 2 - 5 <= wait <= longest + 5
    assert len({round(wait / longest, 6) for wait, longest in zip(waits, (100, 200, 400, 600, 600), strict=True)}) > 1


@pytest.mark.contract("C3")
async def test_a_retry_that_succeeds_reads_published_and_keeps_its_count(shop: Shop) -> None:
    """C3: the event leaves no open dead letter behind, and what failed before can still be seen."""
    outbox = shop_outbox(backoff=Constant(0.01))
    transport = RecordingTransport(lambda record: RuntimeError("not yet") if record.retry_count < 2 else None)
    event_id = shop.place()
    async with relay_on(replace(shop, outbox=outbox), transport=transport):
        await shop.signals.wait_total("relay.appended", 1)
    after = state(shop, event_id)
    assert (after["status"], after["retry_count"], after["last_error"]) == ("published", 2, None)
    assert shop.rows("select status, attempts, error, next_retry_at from dead_letter_events") == [
        ("resolved", 2, "not yet", None)
    ]


@pytest.mark.contract("K2", "C3")
async def test_after_max_attempts_the_event_reads_failed_and_lies_among_the_dead_letters(shop: Shop) -> None:
    """K2: three attempts and no more; the dead letter is parked with all of its history."""
    outbox = shop_outbox(max_attempts=3, backoff=Constant(0.01))
    transport = RecordingTransport(lambda record: ValueError("bad") if record.aggregate_id == "bad" else None)
    bad, good = shop.place("bad", 1), shop.place("good", 2)
    async with relay_on(replace(shop, outbox=outbox), transport=transport):
        await shop.signals.wait("relay.failed", 3)
        await shop.signals.wait_total("relay.appended", 1)
        await shop.signals.next("relay.idle")
    after = state(shop, bad)
    assert (after["status"], after["retry_count"], after["last_error"], after["is_null"]) == ("failed", 3, "bad", True)
    assert state(shop, good)["status"] == "published"
    letters = shop.rows(
        "select event_id, consumer_name, status, attempts, error, error_class, jsonb_array_length(history), "
        "tenant_id, next_retry_at from dead_letter_events"
    )
    assert letters == [(bad, "@relay", "parked", 3, "bad", "ValueError", 3, "acme", None)]
    assert shop.signals.counts["relay.failed"] == 3


@pytest.mark.contract("K2")
async def test_a_backoff_of_ones_own_decides_by_attempt_and_error(shop: Shop) -> None:
    """K2: any callable will do; None means to give up."""
    asked: list[tuple[int, str]] = []

    def own(attempt: int, error: BaseException) -> float | None:
        asked.append((attempt, str(error)))
        return 0.0 if attempt < 4 else None

    event_id = shop.place()
    async with relay_on(replace(shop, outbox=shop_outbox(backoff=own)), transport=RecordingTransport(refuse_all)):
        await shop.signals.wait("relay.failed", 4)
    assert asked == [(attempt, "the broker is sulking") for attempt in (1, 2, 3, 4)]
    assert state(shop, event_id)["status"] == "failed"


@pytest.mark.contract("K2")
async def test_a_backoff_per_class_of_error(shop: Shop) -> None:
    """K2: what cannot be mended is parked at once, what may pass is tried again soon, the rest waits long."""
    errors = {"never": ValueError("bad"), "soon": ConnectionResetError("gone"), "later": KeyError("x")}
    policy = ByError({ValueError: Never(), ConnectionError: Constant(0.01)}, otherwise=Constant(1000))
    transport = RecordingTransport(lambda r: errors[r.aggregate_id] if r.retry_count < 2 else None)
    never, soon, later = (shop.place(name) for name in errors)
    async with relay_on(replace(shop, outbox=shop_outbox(backoff=policy)), transport=transport):
        await shop.signals.wait_total("relay.appended", 1)
    assert (state(shop, never)["status"], state(shop, never)["retry_count"]) == ("failed", 1)
    assert (state(shop, soon)["status"], state(shop, soon)["retry_count"]) == ("published", 2)
    assert (state(shop, later)["status"], state(shop, later)["retry_count"]) == ("pending", 1)
    assert shop.value("select next_retry_at > now() + interval '900 s' from outbox where id = %s", [later])


@pytest.mark.contract("K2")
async def test_a_failed_event_sent_again_by_an_operator_is_published(shop: Shop) -> None:
    """K2: failed is not the end of the story: set back to pending, it goes out and its dead letter is resolved."""
    stubborn = RecordingTransport(refuse_all)
    event_id = shop.place()
    async with relay_on(replace(shop, outbox=shop_outbox(backoff=Never())), transport=stubborn):
        await shop.signals.wait("relay.failed")
        assert state(shop, event_id)["status"] == "failed"
        stubborn.refuse = None
        shop.rows("update outbox set status = 'pending', next_retry_at = clock_timestamp() where status = 'failed'")
        await shop.signals.wait_total("relay.appended", 1)
    assert state(shop, event_id)["status"] == "published"
    assert shop.value("select status from dead_letter_events") == "resolved"


@pytest.mark.contract("C6")
async def test_the_id_of_the_outbox_row_travels_with_the_event(shop: Shop) -> None:
    """C6: the id returned by publish is the record's event_id, stands in its envelope, and is the same each time."""
    event_id = shop.place("o-1", 7)
    seen: list[Record] = []

    def fail_once(record: Record) -> BaseException | None:
        seen.append(record)
        return RuntimeError("once more") if len(seen) == 1 else None

    outbox = shop_outbox(backoff=Constant(0.0))
    async with relay_on(replace(shop, outbox=outbox), transport=RecordingTransport(fail_once)):
        await shop.signals.wait_total("relay.appended", 1)
    assert [record.event_id for record in seen] == [event_id, event_id]
    envelope = json.loads(envelope_json(seen[0]))
    assert envelope["event_id"] == str(event_id)
    assert envelope["payload"]["number"] == 7
    assert envelope["tenant_id"] == "acme"
    assert shop.value("select id from event_outbox") == event_id
    assert shop.value("select event_id from event_log") == event_id


@pytest.mark.contract("C2", "C3")
async def test_a_failing_event_delays_no_other(shop: Shop) -> None:
    """C3: among many that go out, the one that fails is the only one that waits."""
    transport = RecordingTransport(lambda r: RuntimeError("no") if r.aggregate_id == "bad" else None)
    bad = shop.place("bad")
    outbox = shop_outbox(backoff=Constant(1000))
    async with relay_on(replace(shop, outbox=outbox), transport=transport, settings=SMALL):
        for number in range(12):
            await asyncio.to_thread(shop.place, f"o-{number}", number)
        await shop.signals.wait_total("relay.appended", 12)
    assert shop.rows("select id, status, retry_count from outbox") == [(bad, "pending", 1)]
