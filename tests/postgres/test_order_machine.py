"""Order under everything at once: a state machine drives writers, two relays and three pollers on real PostgreSQL.

Writers open transactions, lock aggregates, publish, use savepoints, commit late or roll back. Relays are stepped phase
by phase and lose their leases to each other at any moment. Pollers with different page sizes walk all the while. After
every step the log is gapless and unchanged, every walk is a prefix of it, and every aggregate is in order.
"""

import asyncio
from collections import defaultdict
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aftercommit.errors import LeaseLost
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.carrier import BatchOutcome, Carrier
from aftercommit.relay.due_reader import Batch
from tests.support.recording import RecordingTransport
from tests.support.shop import OrderPlaced, Shop
from tests.support.sizes import size

AGGREGATES = ["a", "b", "c"]
WRITERS = 3
PAGES = [1, 3, 100]


class Writer:
    """A transaction somebody has open, and the aggregates it has locked."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """Idle."""
        self.connection = connection
        self.open = False
        self.locked: set[str] = set()
        self.saved: set[str] | None = None


class SteppedRelay:
    """A relay whose phases are called one at a time."""

    def __init__(self, shop: Shop, runner: asyncio.Runner) -> None:
        """Connected, holding nothing."""
        self.transport = RecordingTransport()
        self.relay = Relay(
            shop.outbox, shop.database, self.transport, settings=RelaySettings(lease_seconds=600, batch_size=4)
        )
        self.carrier: Carrier = self.relay.carrier()
        self.connection = runner.run(shop.database.connect())
        self.batch: Batch | None = None
        self.outcome: BatchOutcome | None = None


class OrderMachine(RuleBasedStateMachine):
    """The model is small: what was committed is known from the orders table, whose rows the events speak of."""

    shop: Shop

    def __init__(self) -> None:
        """Empty tables; the schema is kept from run to run."""
        super().__init__()
        self.runner = asyncio.Runner()
        self.control = self.shop.connect(autocommit=True)
        self.control.execute("truncate shop.outbox, shop.log, shop.dead_letter_events, shop.relay, orders")
        self.control.execute("update shop.head set position = 0")
        self.control.execute("update shop.lane set relay = null, token = null, leased_until = null")
        for aggregate in AGGREGATES:
            self.control.execute("insert into orders values (%s, 0)", (aggregate,))
        self.writers = [Writer(self.shop.connect()) for _ in range(WRITERS)]
        self.relays = [SteppedRelay(self.shop, self.runner) for _ in range(2)]
        self.walks: list[list[tuple[int, str, int]]] = [[] for _ in PAGES]
        self.known: list[tuple[int, str, int]] = []

    # Writers

    @rule(which=st.integers(0, WRITERS - 1), early_xid=st.booleans())
    def begin(self, which: int, early_xid: bool) -> None:
        """Open a transaction, perhaps with an xid long before anything is written."""
        writer = self.writers[which]
        if not writer.open:
            writer.connection.execute("select pg_current_xact_id()" if early_xid else "select 1")
            writer.open = True

    @rule(which=st.integers(0, WRITERS - 1), aggregate=st.sampled_from(AGGREGATES), count=st.integers(1, 3))
    def publish(self, which: int, aggregate: str, count: int) -> None:
        """Lock an aggregate that nobody else holds, change it, and say so."""
        writer = self.writers[which]
        if not writer.open or any(aggregate in other.locked for other in self.writers if other is not writer):
            return
        writer.locked.add(aggregate)
        for _ in range(count):
            query = "update orders set version = version + 1 where id = %s returning version"
            row = writer.connection.execute(query, (aggregate,)).fetchone()
            assert row is not None
            self.shop.outbox.publish(writer.connection, OrderPlaced(aggregate, row[0]), tenant_id="acme")

    @rule(which=st.integers(0, WRITERS - 1))
    def savepoint(self, which: int) -> None:
        """Set a savepoint, once per transaction."""
        writer = self.writers[which]
        if writer.open and writer.saved is None:
            writer.connection.execute("savepoint here")
            writer.saved = set(writer.locked)

    @rule(which=st.integers(0, WRITERS - 1))
    def rollback_to_savepoint(self, which: int) -> None:
        """Undo to the savepoint; locks taken after it are free again."""
        writer = self.writers[which]
        if writer.open and writer.saved is not None:
            writer.connection.execute("rollback to savepoint here")
            writer.locked = set(writer.saved)

    @rule(which=st.integers(0, WRITERS - 1), commit=st.booleans())
    def end(self, which: int, commit: bool) -> None:
        """Commit or roll back."""
        writer = self.writers[which]
        if writer.open:
            writer.connection.commit() if commit else writer.connection.rollback()
            writer.open, writer.locked, writer.saved = False, set(), None

    # Relays

    @rule(which=st.integers(0, 1))
    def tick(self, which: int) -> None:
        """Heartbeat, renewal, balance."""
        each = self.relays[which]
        self.runner.run(each.relay.lanes.tick(each.connection))

    @rule(which=st.integers(0, 1))
    def lose_leases(self, which: int) -> None:
        """As if this relay had been silent for too long: its leases run out and the other takes all it can."""
        each, other = self.relays[which], self.relays[1 - which]
        self.control.execute(
            "update shop.lane set leased_until = '-infinity' where relay = %s", (each.relay.lanes.relay,)
        )
        self.control.execute("delete from shop.relay where id = %s", (each.relay.lanes.relay,))
        self.runner.run(other.relay.lanes.tick(other.connection))

    @rule(which=st.integers(0, 1))
    def observe(self, which: int) -> None:
        """The relay looks which writers are open, so that its watermark may move."""
        each = self.relays[which].relay

        async def look(connection: Any) -> None:
            last_seq = await each._writers.last_seq(connection)
            each._marks.observe(last_seq, await each._writers.open(connection))

        self.runner.run(look(self.relays[which].connection))

    @rule(which=st.integers(0, 1))
    def read(self, which: int) -> None:
        """Read what is due."""
        each = self.relays[which]
        if each.batch is None and each.relay.lanes.held:
            batch = self.runner.run(each.carrier.read(each.connection, each.relay.lanes.held))
            each.batch = batch if batch.events else None

    @rule(which=st.integers(0, 1))
    def deliver(self, which: int) -> None:
        """Deliver what was read."""
        each = self.relays[which]
        if each.batch is not None and each.outcome is None:
            each.outcome = self.runner.run(each.carrier.deliver(each.batch))

    @rule(which=st.integers(0, 1))
    def settle(self, which: int) -> None:
        """Append what was delivered, or be refused."""
        each = self.relays[which]
        if each.batch is not None and each.outcome is not None:
            before = self.log()
            try:
                self.runner.run(each.carrier.settle(each.connection, each.batch, each.outcome))
            except LeaseLost:
                assert self.log() == before, "a refused append has written"
                self.runner.run(each.relay.lanes.tick(each.connection))
            each.batch = each.outcome = None

    # Pollers

    @rule(which=st.integers(0, len(PAGES) - 1))
    def poll(self, which: int) -> None:
        """One page from the last position."""
        walk = self.walks[which]
        query = (
            "select position, aggregate_id, (payload->>'number')::int from shop.log where position > %s "
            "order by position limit %s"
        )
        walk += self.control.execute(query, (walk[-1][0] if walk else 0, PAGES[which])).fetchall()

    @invariant()
    def log_is_gapless_immutable_and_in_aggregate_order(self) -> None:
        """What was there is still there; positions are 1..n; every aggregate counts up by one."""
        log = self.log()
        assert log[: len(self.known)] == self.known
        self.known = log
        assert [position for position, _, _ in log] == list(range(1, len(log) + 1))
        numbers: dict[str, list[int]] = defaultdict(list)
        for _, aggregate, number in log:
            numbers[aggregate].append(number)
        for aggregate, found in numbers.items():
            assert found == list(range(1, len(found) + 1)), aggregate
            assert len(found) <= self.versions()[aggregate]

    @invariant()
    def every_walk_is_a_prefix_of_the_log(self) -> None:
        """No skip, no repeat, whatever the page size."""
        for walk in self.walks:
            assert walk == self.known[: len(walk)]

    @precondition(lambda self: any(writer.open for writer in self.writers))
    @rule()
    def late_commit(self) -> None:
        """The longest-open transaction commits after all."""
        self.end(next(index for index, writer in enumerate(self.writers) if writer.open), commit=True)

    def teardown(self) -> None:
        """Everybody ends; the relays drain; all walks are whole."""
        try:
            for index in range(WRITERS):
                self.end(index, commit=True)
            for which in (0, 1):
                self.deliver(which)
                self.settle(which)
            self.drain()
            self.log_is_gapless_immutable_and_in_aggregate_order()
            counts = {aggregate: sum(1 for _, name, _ in self.known if name == aggregate) for aggregate in AGGREGATES}
            assert counts == self.versions()
            for which in range(len(PAGES)):
                while len(self.walks[which]) < len(self.known):
                    self.poll(which)
                assert self.walks[which] == self.known
        finally:
            self.close()

    def drain(self) -> None:
        """Both relays work until the outbox is empty."""
        for _ in range(200):
            for which in (0, 1):
                self.tick(which)
                self.observe(which)
                self.read(which)
                self.deliver(which)
                self.settle(which)
            row = self.control.execute("select count(*) from shop.outbox").fetchone()
            if row == (0,):
                return
        raise AssertionError("the outbox was not drained: an event is hidden from both relays")

    def close(self) -> None:
        """Let go of all connections."""
        for writer in self.writers:
            writer.connection.close()
        for each in self.relays:
            self.runner.run(each.connection.close())
        self.control.close()
        self.runner.close()

    def log(self) -> list[tuple[int, str, int]]:
        """The whole log."""
        query = "select position, aggregate_id, (payload->>'number')::int from shop.log order by position"
        return self.control.execute(query).fetchall()

    def versions(self) -> dict[str, int]:
        """The committed version of every aggregate."""
        return dict(self.control.execute("select id, version from orders").fetchall())


@pytest.mark.thorough
@pytest.mark.contract("T3")
@pytest.mark.sized
@pytest.mark.timeout(900)
def test_no_interleaving_of_writers_relays_and_leases_breaks_the_log(shop: Shop) -> None:
    """T3: hypothesis looks for an interleaving that skips, repeats, reorders or leaves a gap."""
    with shop.connect(autocommit=True) as setup:
        setup.execute("create table orders (id text primary key, version int)")
    machine = type("Machine", (OrderMachine,), {"shop": shop})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=size(20, 300),
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
