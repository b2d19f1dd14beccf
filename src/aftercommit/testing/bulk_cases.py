"""The cases of the publish suite about many events in one call, which go by COPY where the connection has it.

Whichever way they go, the outbox holds the same, a relay is woken in the same way, and errors are the same.
"""

import asyncio
from typing import Any

from aftercommit.errors import InvalidPayload, NotInTransaction, PayloadTooLarge, SchemaNotMigrated
from aftercommit.event.correlation import correlation
from aftercommit.event.identity import uuid7
from aftercommit.outbox import Outbox
from aftercommit.outbox.insert import COPY_FROM
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
    orders,
    publish,
    raised_by,
    refused,
    sized,
)
from aftercommit.text import MIGRATE

# One less and one more than the number of events from which COPY is used, and more than one chunk of it.
SIZES = (COPY_FROM - 1, COPY_FROM, COPY_FROM + 1, 2 * COPY_FROM + 50)
# Columns that differ from one publish to the next.
OWN_COLUMNS = frozenset({"id", "seq", "occurred_at", "created_at", "correlation_id"})


def names(count: int) -> list[str]:
    """So many names."""
    return [f"o-{number}" for number in range(count)]


class BulkCases:
    """The tests of a publish of many events."""

    @case
    async def test_many_events_are_stored_in_order_at_every_size(self, stage: Stage) -> None:
        """Around the size from which COPY is used, and the receipt names the ids in order."""
        caller = await stage.caller()
        for size in SIZES:
            stage.observer.execute("delete from publish_suite.outbox")
            await caller.begin()
            receipt = await publish(caller, orders(*names(size)))
            await caller.commit()
            assert stage.notes() == names(size)
            assert tuple(stage.ids()) == receipt.event_ids
            assert [row["correlation_id"] for row in stage.stored()] == list(map(str, receipt.event_ids))

    @case
    async def test_a_bulk_of_any_size_stores_the_same_columns(self, stage: Stage) -> None:
        """Text of any kind, drafts with their own envelope, events of several types, and every default."""
        caller = await stage.caller()
        cause, owner = uuid7(), uuid7()
        events = [
            SuiteOrderPlaced(AWKWARD, AWKWARD),
            NOTE_TAKEN.draft({"text": AWKWARD}, aggregate_id="Ærø ☃", causation_id=cause),
            NOTE_TAKEN.draft(
                {}, aggregate_id=AWKWARD, scope={"tenant": AWKWARD, "account_id": 2**63 - 1, "owner_id": owner}
            ),
            SuiteOrderPlaced("plain"),
        ]
        stored: list[list[dict[str, Any]]] = []
        for size in (COPY_FROM - 4, COPY_FROM):
            stage.observer.execute("delete from publish_suite.outbox")
            await caller.begin()
            await publish(caller, [*orders(*names(size - 4)), *events])
            await caller.commit()
            rows = stage.stored()
            assert len(rows) == size
            assert all(row["occurred_at"] <= row["created_at"] for row in rows)
            stored.append([{name: row[name] for name in row.keys() - OWN_COLUMNS} for row in rows[-4:]])
        assert stored[0] == stored[1]
        assert [row["causation_id"] for row in stored[1]] == [None, cause, None, None]
        assert [row["owner_id"] for row in stored[1]] == [
            SCOPE["owner_id"],
            SCOPE["owner_id"],
            owner,
            SCOPE["owner_id"],
        ]
        assert stored[1][0]["payload"] == {"order_id": AWKWARD, "note": AWKWARD}

    @case
    async def test_many_events_keep_their_audience_and_correlation(self, stage: Stage) -> None:
        """Some with their own audience, one of them empty."""
        caller = await stage.caller()
        readers = ["user:17", AWKWARD, '"{a,b}"', "back\\slash", " ", "NULL"]
        own = [NOTE_HEARD.draft({}, audience=readers), NOTE_HEARD.draft({}, audience=[])]
        await caller.begin()
        with correlation(AWKWARD):
            await caller.publish(HEARD, [*[NOTE_HEARD.draft({})] * COPY_FROM, *own], audience=["user:1"])
        await caller.commit()
        query = "select audience, correlation_id from publish_suite_heard.outbox order by seq"
        rows = stage.observer.execute(query).fetchall()
        assert [row["audience"] for row in rows] == [*[["user:1"]] * COPY_FROM, readers, []]
        assert {row["correlation_id"] for row in rows} == {AWKWARD}

    @case
    async def test_rollback_and_savepoints_undo_many_events(self, stage: Stage) -> None:
        """As they undo one."""
        caller = await stage.caller()
        await caller.begin()
        await publish(caller, orders(*names(COPY_FROM)))
        await caller.rollback()
        await caller.begin()
        await publish(caller, SuiteOrderPlaced("before"))
        await caller.savepoint()
        await publish(caller, orders(*names(COPY_FROM)))
        await caller.rollback_to_savepoint()
        await publish(caller, SuiteOrderPlaced("after"))
        await caller.commit()
        assert stage.notes() == ["before", "after"]
        await caller.begin()
        await caller.savepoint()
        await publish(caller, orders(*names(COPY_FROM)))
        await caller.release_savepoint()
        await caller.commit()
        assert len(stage.stored()) == COPY_FROM + 2

    @case
    async def test_an_id_that_exists_fails_a_bulk_of_any_size_in_the_same_way(self, stage: Stage) -> None:
        """The same class of error, the constraint in its text, and nothing of the transaction is left."""
        caller = await stage.caller()
        taken = NOTE_TAKEN.draft({}, event_id=uuid7())
        await caller.begin()
        await publish(caller, taken)
        await caller.commit()
        problems = []
        for size in (2, COPY_FROM):
            await caller.begin()
            await caller.execute("insert into publish_suite.business values ('undone')")
            problems.append(await raised_by(publish(caller, [*orders(*names(size - 1)), taken])))
            assert "outbox_pkey" in str(problems[-1])
            # Every further statement is refused: the transaction has failed.
            await raised_by(caller.execute("insert into publish_suite.business values ('refused')"))
            await caller.rollback()
        assert type(problems[0]) is type(problems[1])
        assert (stage.ids(), stage.business()) == ([taken.event_id], [])
        await caller.begin()
        await publish(caller, orders(*names(COPY_FROM)))
        await caller.commit()
        assert len(stage.stored()) == COPY_FROM + 1

    @case
    async def test_a_broken_contract_in_a_bulk_writes_nothing(self, stage: Stage) -> None:
        """The last event is wrong, and the transaction stays usable."""
        caller = await stage.caller()
        good = orders(*names(COPY_FROM))
        await caller.begin()
        with refused(InvalidPayload, f"event {COPY_FROM} of {COPY_FROM + 1}", "NUL"):
            await publish(caller, [*good, SuiteOrderPlaced("bad\x00")])
        with refused(PayloadTooLarge, f"event {COPY_FROM} of {COPY_FROM + 1}", "1,048,577"):
            await publish(caller, [*good, sized(LIMIT + 1)])
        await publish(caller, [*good, sized(LIMIT)])
        await caller.commit()
        assert stage.notes() == [*names(COPY_FROM), "sized"]

    @case
    async def test_a_bulk_outside_a_transaction_is_refused_or_committed_whole(self, stage: Stage) -> None:
        """As one event is."""
        caller = await stage.caller(in_transactions=False)
        with refused(NotInTransaction, "outside_transaction=True"):
            await publish(caller, orders(*names(COPY_FROM)))
        assert stage.stored() == []
        await publish(caller, orders(*names(COPY_FROM)), outside_transaction=True)
        assert stage.notes() == names(COPY_FROM)

    @case
    async def test_a_bulk_into_missing_or_older_tables_is_refused_with_the_remedy(self, stage: Stage) -> None:
        """As one event is."""
        caller = await stage.caller()
        missing = Outbox("publish_suite_nowhere")
        older = Outbox("publish_suite", scope={**OUTBOX.shape.scope, "added_since": str})
        for outbox, scope in ((missing, {}), (older, {**SCOPE, "added_since": "x"})):
            note = outbox.declare("suite.note_taken").draft({})
            await caller.begin()
            with refused(SchemaNotMigrated, repr(outbox.schema), MIGRATE):
                await caller.publish(outbox, [note] * COPY_FROM, **scope)
            await caller.rollback()
        assert stage.stored() == []

    @case
    async def test_a_relay_that_falls_asleep_during_a_publish_is_woken(self, stage: Stage) -> None:
        """A publish locks the outbox before it looks for a sleeping relay, whichever way it goes.

        A relay sets its flag, then looks for transactions that hold this lock. If a publish looked for the flag before
        it holds the lock, neither would see the other.
        """
        caller = await stage.caller()
        stage.observer.execute(f'listen "{OUTBOX.shape.publish_channel}"')
        for size in (1, 2, COPY_FROM):
            stage.observer.execute("delete from publish_suite.relay")
            await caller.begin()
            with stage.locked() as relay:
                publishing = asyncio.create_task(publish(caller, orders(*names(size))))
                await stage.session_waits_for_lock()
                relay.execute(
                    "insert into publish_suite.relay (id, name, listening) values (gen_random_uuid(), 'suite', true)"
                )
            await asyncio.wait_for(publishing, DEADLINE)
            await caller.commit()
            assert len(list(stage.observer.notifies(timeout=DEADLINE, stop_after=1))) == 1
            assert list(stage.observer.notifies(timeout=0)) == []
