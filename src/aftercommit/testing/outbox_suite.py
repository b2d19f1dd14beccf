"""The guarantees of publish as tests, for every kind of connection, your own adapter included.

    class MyDriver(PublishHarness): ...        # open, begin, commit, rollback, …

    class TestMyDriver(PublishSuite):
        harness = MyDriver

Needs pytest, and a fixture `publish_database` that returns the URI of a database with the tables of
`create_suite_tables`; many tests may use it, one after another. To see values in failures, call
`pytest.register_assert_rewrite("aftercommit.testing.outbox_suite")` in conftest.py before you import this module.
"""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import ClassVar
from uuid import uuid4

from aftercommit.errors import (
    AudienceViolation,
    IdempotencyConflict,
    InvalidPayload,
    NotInTransaction,
    PayloadTooLarge,
    SchemaNotMigrated,
    ScopeViolation,
)
from aftercommit.event.correlation import correlation
from aftercommit.event.identity import uuid7
from aftercommit.outbox import Outbox, Receipt
from aftercommit.outbox.insert import COPY_FROM
from aftercommit.outbox.row_maker import EARLIEST, LATEST
from aftercommit.testing.bulk_cases import BulkCases
from aftercommit.testing.publish_harness import PublishHarness
from aftercommit.testing.publish_stage import (
    AWKWARD,
    DEADLINE,
    HEARD,
    LIMIT,
    NOTE_HEARD,
    NOTE_TAKEN,
    OUTBOX,
    SCOPE,
    Stage,
    SuiteOrderPlaced,
    case,
    create_suite_tables,
    orders,
    publish,
    refused,
    sized,
)
from aftercommit.text import MIGRATE

__all__ = ["PublishHarness", "PublishSuite", "create_suite_tables"]


class PublishSuite(BulkCases):
    """The tests of publish. Subclass it as `Test…` and set `harness`."""

    harness: ClassVar[type[PublishHarness]]

    @case
    async def test_a_committed_event_is_there_with_every_column(self, stage: Stage) -> None:
        """Committed means published, in typed columns."""
        caller = await stage.caller()
        earliest = datetime.now(UTC)
        await caller.begin()
        receipt = await publish(caller, SuiteOrderPlaced("o-1", AWKWARD))
        await caller.commit()
        (row,) = stage.stored()
        assert earliest <= row.pop("occurred_at") <= datetime.now(UTC)
        assert earliest - timedelta(minutes=1) <= row.pop("created_at")
        assert row.pop("seq") > 0
        assert 0 <= row.pop("lane") < 64
        assert row == {
            "id": receipt.event_id,
            "aggregate_type": "order",
            "aggregate_id": "o-1",
            "event_type": "suite.order_placed",
            "schema_version": 3,
            "correlation_id": str(receipt.event_id),
            "causation_id": None,
            "payload": {"order_id": "o-1", "note": AWKWARD},
            "status": "pending",
            "retry_count": 0,
            "next_retry_at": None,
            "last_error": None,
            **SCOPE,
        }

    @case
    async def test_parts_of_the_envelope_set_by_hand_are_kept(self, stage: Stage) -> None:
        """In one event, and in one of several."""
        caller = await stage.caller()
        moment = datetime(2024, 2, 29, 23, 59, 59, 123456, timezone(timedelta(hours=5, minutes=45)))
        own = {"occurred_at": moment, "correlation_id": AWKWARD, "causation_id": uuid4(), "aggregate_id": AWKWARD}
        scope = {"tenant": "other", "account_id": 2**63 - 1, "owner_id": uuid4()}
        drafts = [NOTE_TAKEN.draft({"n": n}, event_id=uuid7(), scope=scope, **own) for n in range(3)]  # type: ignore[arg-type]
        await caller.begin()
        await publish(caller, drafts[0])
        await publish(caller, drafts[1:])
        await caller.commit()
        expected = own | scope
        assert stage.ids() == [draft.event_id for draft in drafts]
        assert all(row[name] == value for row in stage.stored() for name, value in expected.items())

    @case
    async def test_a_time_is_kept_to_the_microsecond(self, stage: Stage) -> None:
        """Whichever way it is sent: as seconds since 1970, which are a float, or as a timestamp."""
        caller = await stage.caller()
        epoch, tick = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
        last = epoch + timedelta(seconds=2**32)
        moments = [EARLIEST, epoch - tick, epoch, epoch + tick, last - tick, last, LATEST - tick]
        moments += [epoch + timedelta(seconds=42_949_672 * n, microseconds=n * 9_973) for n in range(100)]
        await caller.begin()
        for moment in moments:
            await publish(caller, NOTE_TAKEN.draft({}, occurred_at=moment))
        await caller.commit()
        assert [row["occurred_at"] for row in stage.stored()] == moments

    @case
    async def test_tables_that_are_missing_or_older_are_refused_with_the_remedy(self, stage: Stage) -> None:
        """Whatever the driver says about it, which stays the cause; one event, several, and with a key."""
        caller = await stage.caller()
        missing = Outbox("publish_suite_nowhere")
        older = Outbox("publish_suite", scope={**OUTBOX.shape.scope, "added_since": str})
        for outbox, scope in ((missing, {}), (older, {**SCOPE, "added_since": "x"})):
            note = outbox.declare("suite.note_taken").draft({})
            for events, key in ((note, {}), ([note, note], {}), (note, {"idempotency_key": "k"})):
                await caller.begin()
                with refused(SchemaNotMigrated, repr(outbox.schema), MIGRATE) as refusal:
                    await caller.publish(outbox, events, **scope, **key)
                await caller.rollback()
                assert refusal.value.__cause__ is not None
        assert stage.stored() == []

    @case
    async def test_the_audience_of_an_event_is_stored_unchanged(self, stage: Stage) -> None:
        """For one event, for several with their own audiences, and with a key; with any characters in names."""
        caller = await stage.caller()
        names = ["user:17", AWKWARD, '"{a,b}"', "back\\slash", " ", "NULL", "%s"]
        await caller.begin()
        await caller.publish(HEARD, NOTE_HEARD.draft({}), audience=names)
        own = NOTE_HEARD.draft({}, audience=names[:2])
        await caller.publish(HEARD, [NOTE_HEARD.draft({}), own], audience=[])
        await caller.publish(HEARD, [NOTE_HEARD.draft({})] * 2, audience=names, idempotency_key="heard")
        for given, said in ((None, "audience=[…]"), ("user:17", "'user:17'"), ([17], "17 (int)"), ([""], "''")):
            with refused(AudienceViolation, said):
                await caller.publish(HEARD, NOTE_HEARD.draft({}), audience=given)
        await caller.commit()
        query = "select audience from publish_suite_heard.outbox order by seq"
        stored = [row["audience"] for row in stage.observer.execute(query)]
        assert stored == [names, [], names[:2], names, names]

    @case
    async def test_rollback_leaves_nothing(self, stage: Stage) -> None:
        """Neither of one event nor of many."""
        caller = await stage.caller()
        await caller.begin()
        await publish(caller, SuiteOrderPlaced("one"))
        await publish(caller, orders("two", "three"))
        await caller.rollback()
        assert stage.stored() == []

    @case
    async def test_rollback_to_a_savepoint_undoes_the_inside_alone(self, stage: Stage) -> None:
        """What was published before and after stays."""
        caller = await stage.caller()
        await caller.begin()
        await publish(caller, SuiteOrderPlaced("before"))
        await caller.savepoint()
        await publish(caller, orders("inside", "inside too"))
        await caller.rollback_to_savepoint()
        await publish(caller, SuiteOrderPlaced("after"))
        await caller.commit()
        assert stage.notes() == ["before", "after"]

    @case
    async def test_a_released_savepoint_keeps_the_inside(self, stage: Stage) -> None:
        """Until the transaction itself is rolled back."""
        caller = await stage.caller()
        for name, ending in (("commit", caller.commit), ("rollback", caller.rollback)):
            await caller.begin()
            await caller.savepoint()
            await publish(caller, SuiteOrderPlaced(name))
            await caller.release_savepoint()
            await ending()
        assert stage.notes() == ["commit"]

    @case
    async def test_the_callers_transaction_is_neither_committed_nor_rolled_back(self, stage: Stage) -> None:
        """Rows and events become visible together, when the caller says so."""
        caller = await stage.caller()
        await caller.begin()
        await caller.execute("insert into publish_suite.business values ('first')")
        await publish(caller, SuiteOrderPlaced("one"))
        await publish(caller, orders("two", "three"), idempotency_key="together")
        await caller.execute("insert into publish_suite.business values ('last')")
        assert (stage.stored(), stage.business()) == ([], [])
        await caller.commit()
        assert (stage.notes(), stage.business()) == (["one", "two", "three"], ["first", "last"])

    @case
    async def test_many_events_of_one_call_keep_their_order(self, stage: Stage) -> None:
        """And the receipt names them in the same order."""
        caller = await stage.caller()
        names = [f"o-{number}" for number in range(500)]
        await caller.begin()
        receipt = await publish(caller, orders(*names))
        await caller.commit()
        assert stage.notes() == names
        assert tuple(stage.ids()) == receipt.event_ids

    @case
    async def test_many_calls_keep_their_order(self, stage: Stage) -> None:
        """Often enough for a driver to prepare the statement."""
        caller = await stage.caller()
        names = [f"o-{number}" for number in range(30)]
        for name in names:
            await caller.begin()
            await publish(caller, SuiteOrderPlaced(name))
            await publish(caller, orders(f"{name}a", f"{name}b"))
            await caller.commit()
        assert stage.notes() == [name + suffix for name in names for suffix in ("", "a", "b")]

    @case
    async def test_events_of_different_types_go_in_one_call(self, stage: Stage) -> None:
        """With and without an aggregate, with and without a cause."""
        caller = await stage.caller()
        cause = uuid4()
        await caller.begin()
        receipt = await publish(
            caller, [SuiteOrderPlaced("o"), NOTE_TAKEN(text="n"), NOTE_TAKEN.draft({}, causation_id=cause)]
        )
        await caller.commit()
        rows = stage.stored()
        assert [row["event_type"] for row in rows] == ["suite.order_placed", *["suite.note_taken"] * 2]
        assert [row["aggregate_type"] for row in rows] == ["order", "event", "event"]
        assert [row["aggregate_id"] for row in rows] == ["o", *map(str, receipt.event_ids[1:])]
        assert [row["causation_id"] for row in rows] == [None, None, cause]
        assert [row["payload"] for row in rows] == [{"order_id": "o", "note": ""}, {"text": "n"}, {}]

    @case
    async def test_no_events_are_nothing(self, stage: Stage) -> None:
        """An empty list is a receipt for nothing."""
        caller = await stage.caller()
        await caller.begin()
        assert await publish(caller, []) == Receipt(())
        await caller.commit()
        assert stage.stored() == []

    @case
    async def test_a_broken_contract_writes_nothing_and_leaves_the_transaction_usable(self, stage: Stage) -> None:
        """The database is not asked, so it has nothing to complain about."""
        caller = await stage.caller()
        await caller.begin()
        await caller.execute("insert into publish_suite.business values ('kept')")
        with refused(InvalidPayload, "event 1 of 2", "NUL"):
            await publish(caller, orders("good", "bad\x00"))
        with refused(ScopeViolation, "tenant"):
            await publish(caller, SuiteOrderPlaced("o"), tenant=None)
        with refused(PayloadTooLarge, "1,048,576", "1,048,577"):
            await publish(caller, sized(LIMIT + 1), idempotency_key="too large")
        await publish(caller, SuiteOrderPlaced("good"))
        await caller.commit()
        assert (stage.notes(), stage.business()) == (["good"], ["kept"])

    @case
    async def test_a_payload_may_be_as_large_as_the_limit(self, stage: Stage) -> None:
        """One mebibyte, alone and among others."""
        caller = await stage.caller()
        await caller.begin()
        await publish(caller, sized(LIMIT))
        await publish(caller, [sized(LIMIT), SuiteOrderPlaced("small")])
        await caller.commit()
        query = "select length(payload::text) as size from publish_suite.outbox order by seq"
        sizes = [row["size"] for row in stage.observer.execute(query)]
        assert sizes == [LIMIT, LIMIT, len('{"order_id":"small","note":""}')]

    @case
    async def test_outside_a_transaction_publish_is_refused(self, stage: Stage) -> None:
        """Nothing is written, also with an idempotency key."""
        caller = await stage.caller(in_transactions=False)
        for options in ({}, {"idempotency_key": "alone"}):
            with refused(NotInTransaction, "outside_transaction=True"):
                await publish(caller, SuiteOrderPlaced("o"), **options)
        assert stage.stored() == []

    @case
    async def test_outside_a_transaction_publish_works_when_told_so(self, stage: Stage) -> None:
        """The event stands alone and is committed at once."""
        caller = await stage.caller(in_transactions=False)
        await publish(caller, SuiteOrderPlaced("one"), outside_transaction=True)
        await publish(caller, orders("two", "three"), outside_transaction=True, idempotency_key="alone")
        assert stage.notes() == ["one", "two", "three"]

    @case
    async def test_a_second_publish_under_one_key_returns_the_first_ids(self, stage: Stage) -> None:
        """In the same transaction and in a later one, for one event and for many."""
        caller = await stage.caller()
        for key, events in (("one", orders("1")), (AWKWARD, orders("2", "3", "4"))):
            await caller.begin()
            first = await publish(caller, events, idempotency_key=key)
            again = await publish(caller, events, idempotency_key=key)
            await caller.commit()
            await caller.begin()
            later = await publish(caller, events, idempotency_key=key)
            await caller.commit()
            assert (first.duplicate, again.duplicate, later.duplicate) == (False, True, True)
            assert first.event_ids == again.event_ids == later.event_ids
        assert stage.notes() == ["1", "2", "3", "4"]

    @case
    async def test_a_key_that_stood_for_other_events_is_refused(self, stage: Stage) -> None:
        """A key reused by mistake would swallow an event: nothing is written, and the transaction stays usable."""
        caller = await stage.caller()
        await caller.begin()
        await publish(caller, orders("first"), idempotency_key="key")
        with refused(IdempotencyConflict, "other events"):
            await publish(caller, orders("another"), idempotency_key="key")
        await publish(caller, orders("third"))
        await caller.commit()
        assert stage.notes() == ["first", "third"]

    @case
    async def test_rollback_frees_the_key(self, stage: Stage) -> None:
        """Of the transaction, and of a savepoint in it."""
        caller = await stage.caller()
        await caller.begin()
        await publish(caller, SuiteOrderPlaced("rolled back"), idempotency_key="key")
        await caller.rollback()
        await caller.begin()
        await caller.savepoint()
        await publish(caller, SuiteOrderPlaced("rolled back too"), idempotency_key="key")
        await caller.rollback_to_savepoint()
        receipt = await publish(caller, SuiteOrderPlaced("kept"), idempotency_key="key")
        await caller.commit()
        assert receipt.duplicate is False
        assert (stage.notes(), stage.ids()) == (["kept"], [receipt.event_id])

    @case
    async def test_a_concurrent_publish_under_one_key_waits_for_the_first(self, stage: Stage) -> None:
        """If the first commits, the second gets its ids; if it rolls back, the second publishes."""
        first, second = await stage.caller(), await stage.caller()
        for key, ending in (("commits", first.commit), ("rolls back", first.rollback)):
            await first.begin()
            await second.begin()
            earlier = await publish(first, orders("first", "pair"), idempotency_key=key)
            waiting = asyncio.create_task(publish(second, orders("first", "pair"), idempotency_key=key))
            await stage.session_waits_for_lock()
            assert not waiting.done()
            await ending()
            later = await asyncio.wait_for(waiting, DEADLINE)
            await second.commit()
            assert later.duplicate is (key == "commits")
            assert (later.event_ids == earlier.event_ids) is (key == "commits")
        assert stage.notes() == ["first", "pair", "first", "pair"]

    @case
    async def test_the_correlation_id_of_the_context_is_stored(self, stage: Stage) -> None:
        """In every event published inside, and in none outside."""
        caller = await stage.caller()
        await caller.begin()
        with correlation(AWKWARD):
            await publish(caller, SuiteOrderPlaced("one"))
            await publish(caller, orders("two", "three"))
        outside = await publish(caller, SuiteOrderPlaced("four"))
        await caller.commit()
        assert [row["correlation_id"] for row in stage.stored()] == [*[AWKWARD] * 3, str(outside.event_id)]

    @case
    async def test_a_listening_relay_is_woken_by_the_commit_alone(self, stage: Stage) -> None:
        """And by each of the ways to publish."""
        caller = await stage.caller()
        stage.observer.execute(
            "insert into publish_suite.relay (id, name, listening) values (gen_random_uuid(), 'suite', true)"
        )
        stage.observer.execute(f'listen "{OUTBOX.shape.publish_channel}"')
        ways: tuple[tuple[list[SuiteOrderPlaced], dict[str, str]], ...] = (
            (orders("1"), {}),
            (orders("2", "3"), {}),
            (orders("4"), {"idempotency_key": "k"}),
            (orders(*["5"] * COPY_FROM), {}),
        )
        for events, options in ways:
            await caller.begin()
            await publish(caller, events, **options)
            await caller.rollback()
            await caller.begin()
            await publish(caller, events, **options)
            await caller.commit()
            (rung,) = stage.observer.notifies(timeout=DEADLINE, stop_after=1)
            # One event names its lane, so that only one carrier wakes.
            is_alone = len(events) == 1 and not options
            assert rung.payload == (str(stage.stored()[-1]["lane"]) if is_alone else "")
            assert list(stage.observer.notifies(timeout=0)) == []
