"""`World` and `AsyncWorld`: publish, check what was published, drain, deliver twice, crash, inject faults.

    def test_a_paid_order_is_counted(aftercommit_world):
        pay_order("o-1")                                           # your code, which publishes
        aftercommit_world.assert_published(OrderPaid, payload={"order_id": "o-1"})
        aftercommit_world.drain()                                  # relay and consumers, until nothing is left
        assert total() == 40

`AsyncWorld` is for tests that run in an event loop. Both work without pytest: `World(outbox, dsn)`.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import psycopg

from aftercommit.errors import DeclarationError
from aftercommit.outbox.handlers import Consumer
from aftercommit.testing.assertions import require_in_order, require_not_published, require_published
from aftercommit.testing.deliver_twice import NOT_SAID, Deliveries
from aftercommit.testing.drain import ROUNDS, TIMEOUT, Drained, TransportChoice
from aftercommit.testing.expectations import Expected
from aftercommit.testing.kit import Effects, Kit, expectations
from aftercommit.testing.published import Published
from aftercommit.testing.tables import Letter

# With `__tracebackhide__`, pytest shows the failed line of the test, and not the kit's.

if TYPE_CHECKING:
    from aftercommit.testing.kit import AnyPlace, SyncPlace

Result = TypeVar("Result")
NOTHING: Mapping[str, Any] = {}


class World(Kit):
    """An outbox in the test's own database, for tests without an event loop."""

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection to the test's database."""
        return psycopg.connect(self.dsn, autocommit=autocommit)

    def publish(self, *events: Any, **scope: Any) -> tuple[UUID, ...]:
        """Publish and commit; returns the ids."""
        return self._publish(events, scope)

    def published(self, *, on: "SyncPlace | None" = None) -> list[Published]:
        """All events in the order of publishing: committed ones, or those that the transaction of `on` sees."""
        return self._published(on)

    def dead_letters(self) -> tuple[Letter, ...]:
        """The open dead letters: retrying, waiting or parked."""
        return self._letters()

    def assert_published(
        self,
        event: object,
        *,
        payload: Mapping[str, Any] = NOTHING,
        scope: Mapping[str, Any] = NOTHING,
        aggregate_id: str | None = None,
        correlation_id: str | None = None,
        where: Callable[[Published], bool] | None = None,
        audience: Collection[str] | None = None,
        count: int | None = None,
        on: "SyncPlace | None" = None,
    ) -> list[Published]:
        """The matching events: at least one, or exactly `count`. Otherwise AssertionError shows what was published.

        `event` is a type, or an event to publish, whose whole payload is then compared. `payload` is a part of the
        payload, `audience` the complete audience. With `on`, a connection or session, the events of its open
        transaction count; with a DSN, those of another database. Without, committed events count.
        """
        __tracebackhide__ = True
        expected = Expected(event, payload, scope, aggregate_id, correlation_id, where, audience)
        return require_published(expected, self._published(on), self.outbox.registry, count, self._remark(on))

    def assert_published_in_order(
        self, *events: object, only: bool = False, on: "SyncPlace | None" = None
    ) -> list[Published]:
        """The matching events in this order; with `only`, there are no other events."""
        __tracebackhide__ = True
        published, remark = self._published(on), self._remark(on)
        return require_in_order(expectations(events), published, self.outbox.registry, only, remark)

    def assert_not_published(
        self,
        event: object = None,
        *,
        payload: Mapping[str, Any] = NOTHING,
        scope: Mapping[str, Any] = NOTHING,
        aggregate_id: str | None = None,
        correlation_id: str | None = None,
        where: Callable[[Published], bool] | None = None,
        audience: Collection[str] | None = None,
        on: "SyncPlace | None" = None,
    ) -> None:
        """No event matches; without an event type, there is no event at all."""
        __tracebackhide__ = True
        like = Expected(event, payload, scope, aggregate_id, correlation_id, where, audience)
        expected = None if event is None else like
        require_not_published(expected, self._published(on), self.outbox.registry)

    def drain(
        self,
        *,
        through_retries: bool = False,
        raise_errors: bool = True,
        transport: TransportChoice | None = None,
        consumers: Sequence[str] | None = None,
        rounds: int = ROUNDS,
        timeout: float = TIMEOUT,
    ) -> Drained:
        """Run relay and consumers until nothing is left to do; returns what happened.

        If something failed, raises DrainFailed, with the handler's error as its cause, unless `raise_errors=False`.
        Retries that are not due yet are left, unless `through_retries` makes them due. `consumers` names the consumers
        to run (from the log only). `rounds` and `timeout` are limits.
        """
        __tracebackhide__ = True
        limits = {"through_retries": through_retries, "rounds": rounds, "timeout": timeout}
        drained = _run(self._drain(transport, consumers, **limits), "drain()")
        if raise_errors:
            drained.require_success()
        return drained

    def deliver_twice(
        self,
        consumer: str | Consumer | Callable[..., Any],
        event: Any,
        *,
        effects: Effects,
        expected: Any = NOT_SAID,
        **scope: Any,
    ) -> Deliveries:
        """Deliver an event several times, with crashes, and require the effects of one delivery.

        `consumer` is a consumer, its name, or one of its handlers. `event` is a payload to publish (with its scope),
        the id of a committed event, or a `Published`. `effects` is a query, or a function that returns what to compare,
        and `expected` its value after one delivery. `aftercommit.testing.deliver_twice` describes the deliveries.
        """
        __tracebackhide__ = True
        deliveries = _run(self._deliver_twice(consumer, event, effects, scope), "deliver_twice()")
        deliveries.require_once(expected)
        return deliveries


class AsyncWorld(Kit):
    """A `World` for tests that run in an asyncio event loop, such as those of pytest-asyncio or anyio."""

    async def connect(self, *, autocommit: bool = False) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """A new connection to the test's database."""
        return await psycopg.AsyncConnection.connect(self.dsn, autocommit=autocommit)

    async def publish(self, *events: Any, **scope: Any) -> tuple[UUID, ...]:
        """Publish and commit; returns the ids."""
        return await asyncio.to_thread(self._publish, events, scope)

    async def published(self, *, on: "AnyPlace | None" = None) -> list[Published]:
        """All events in the order of publishing: committed ones, or those that the transaction of `on` sees."""
        return await self._published_async(on)

    async def dead_letters(self) -> tuple[Letter, ...]:
        """The open dead letters: retrying, waiting or parked."""
        return await asyncio.to_thread(self._letters)

    async def assert_published(
        self,
        event: object,
        *,
        payload: Mapping[str, Any] = NOTHING,
        scope: Mapping[str, Any] = NOTHING,
        aggregate_id: str | None = None,
        correlation_id: str | None = None,
        where: Callable[[Published], bool] | None = None,
        audience: Collection[str] | None = None,
        count: int | None = None,
        on: "AnyPlace | None" = None,
    ) -> list[Published]:
        """As `World.assert_published`; `on` may be an async connection or session."""
        __tracebackhide__ = True
        expected = Expected(event, payload, scope, aggregate_id, correlation_id, where, audience)
        published, remark = await self._published_async(on), await asyncio.to_thread(self._remark, on)
        return require_published(expected, published, self.outbox.registry, count, remark)

    async def assert_published_in_order(
        self, *events: object, only: bool = False, on: "AnyPlace | None" = None
    ) -> list[Published]:
        """As `World.assert_published_in_order`."""
        __tracebackhide__ = True
        published, remark = await self._published_async(on), await asyncio.to_thread(self._remark, on)
        return require_in_order(expectations(events), published, self.outbox.registry, only, remark)

    async def assert_not_published(
        self,
        event: object = None,
        *,
        payload: Mapping[str, Any] = NOTHING,
        scope: Mapping[str, Any] = NOTHING,
        aggregate_id: str | None = None,
        correlation_id: str | None = None,
        where: Callable[[Published], bool] | None = None,
        audience: Collection[str] | None = None,
        on: "AnyPlace | None" = None,
    ) -> None:
        """As `World.assert_not_published`."""
        __tracebackhide__ = True
        like = Expected(event, payload, scope, aggregate_id, correlation_id, where, audience)
        expected = None if event is None else like
        require_not_published(expected, await self._published_async(on), self.outbox.registry)

    async def drain(
        self,
        *,
        through_retries: bool = False,
        raise_errors: bool = True,
        transport: TransportChoice | None = None,
        consumers: Sequence[str] | None = None,
        rounds: int = ROUNDS,
        timeout: float = TIMEOUT,
    ) -> Drained:
        """As `World.drain`, in the test's own event loop."""
        __tracebackhide__ = True
        limits = {"through_retries": through_retries, "rounds": rounds, "timeout": timeout}
        drained = await self._drain(transport, consumers, **limits)
        if raise_errors:
            drained.require_success()
        return drained

    async def deliver_twice(
        self,
        consumer: str | Consumer | Callable[..., Any],
        event: Any,
        *,
        effects: Effects,
        expected: Any = NOT_SAID,
        **scope: Any,
    ) -> Deliveries:
        """As `World.deliver_twice`; `effects` may be a coroutine function."""
        __tracebackhide__ = True
        deliveries = await self._deliver_twice(consumer, event, effects, scope)
        deliveries.require_once(expected)
        return deliveries


def _run(work: Coroutine[Any, Any, Result], what: str) -> Result:
    if not _in_event_loop():
        return asyncio.run(work)
    work.close()
    raise DeclarationError(
        f"this test runs in an event loop, which {what} would block: use the fixture aftercommit_async_world (or "
        "AsyncWorld) and await it"
    )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
