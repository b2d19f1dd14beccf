"""Delivers one event several times, as it can happen in production, and compares the effects.

1. The handler runs, and its process dies before the commit: PostgreSQL rolls its changes back.
2. The event is delivered again, and the handler's transaction commits.
3. The event is delivered again. The inbox has it, so the handler is not called.
4. The event is delivered without its inbox row: the handler runs again, and its process dies before the commit.

After 2 the effects are those of one delivery, and they must not change any more. Effects outside the transaction (an
e-mail, a call, a file) happen in 1, 2 and 4, so the handler must use the `event_id` there to avoid duplicates.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aftercommit.consumer import Dispatcher
from aftercommit.errors import AftercommitError, DeclarationError
from aftercommit.outbox import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.testing.published import Published
from aftercommit.testing.spy import Ending, Spy
from aftercommit.testing.tables import Tables

NOT_SAID: Final = object()


class DiedBeforeCommit(AftercommitError):
    """Ends the handler's transaction, as a crash would."""


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The effects before and after each delivery, and how often the handler was called."""

    event: Published
    before: Any
    crashed: Any
    delivered: Any
    repeated: Any
    around: Any
    calls: int

    def require_once(self, expected: Any = NOT_SAID) -> None:
        """AssertionError unless the effects are those of one delivery."""
        __tracebackhide__ = True
        if expected is not NOT_SAID and self.delivered != expected:
            raise AssertionError(
                f"after a crash and a second delivery of {self._name} the effects are\n  {self.delivered!r}\n"
                f"expected\n  {expected!r}\n(after the crash alone: {self.crashed!r}. Effects that are there already "
                "happened outside the handler's transaction)"
            )
        if self.repeated != self.delivered:
            raise AssertionError(self._changed("delivered again with its inbox row", self.repeated))
        if self.around != self.delivered:
            raise AssertionError(
                self._changed("delivered again without its inbox row", self.around)
                + "\nThe handler has effects outside its transaction: let it write on the connection it is given, or "
                "pass the event_id as an idempotency key to what it calls"
            )

    @property
    def _name(self) -> str:
        return f"{self.event.type} {self.event.event_id}"

    def _changed(self, how: str, effects: Any) -> str:
        return f"{self._name} had other effects when it was {how}:\n  once:  {self.delivered!r}\n  twice: {effects!r}"


class DeliveredTwice:
    """Delivers one event to one consumer, four times."""

    def __init__(
        self, outbox: Outbox, dsn: str, consumer: Consumer, event: Published, effects: Callable[[], Awaitable[Any]]
    ) -> None:
        if not consumer.inbox:
            raise DeclarationError(
                f"consumer {consumer.name!r} is declared with inbox=False: only its checkpoint keeps an event from "
                "being handled again. Test that with faults.rewind() and drain()"
            )
        self._outbox = outbox
        self._database = Database(dsn)
        self._tables = Tables(outbox, dsn)
        self._consumer = consumer
        self._event = event
        self._effects = effects
        self._calls = 0

    async def run(self) -> Deliveries:
        """All four deliveries."""
        await self._refuse_handled()
        before = await self._effects()
        crashed = await self._deliver(_dies)
        delivered = await self._deliver()
        calls = self._calls
        if calls < 2:
            raise DeclarationError(f"{self._consumer.name!r} has no handler that takes {self._event.type}")
        repeated = await self._deliver()
        if self._calls != calls:
            raise AssertionError(f"the inbox of {self._consumer.name!r} let {self._event.event_id} through twice")
        await self._inbox("kit_forget_handled")
        try:
            around = await self._deliver(_dies)
        finally:
            await self._inbox("kit_remember_handled")
        return Deliveries(self._event, before, crashed, delivered, repeated, around, self._calls)

    async def _deliver(self, *ending: Ending) -> Any:
        spy = Spy(*ending)
        # One event and one attempt: strict ordering and retries play no part.
        watched = spy.watch(self._consumer, retry_count=0, ordering="relaxed")
        dispatcher = Dispatcher(self._outbox, self._database, [watched])
        try:
            failures = await dispatcher.dispatch([self._event.record])
        finally:
            await dispatcher.close()
        self._calls += len(spy.attempts)
        for failure in failures:
            if not isinstance(failure.error, DiedBeforeCommit):
                raise failure.error
        return await self._effects()

    async def _refuse_handled(self) -> None:
        if await self._inbox("kit_forget_handled"):
            await self._inbox("kit_remember_handled")
            raise DeclarationError(
                f"{self._consumer.name!r} has handled {self._event.type} {self._event.event_id} already: give a new "
                "event"
            )

    async def _inbox(self, statement: str) -> int:
        name, event_id = self._consumer.name, self._event.event_id
        return await asyncio.to_thread(self._tables.rows_changed, statement, event_id=event_id, consumer=name)


def _dies(consumer: Consumer) -> BaseException | None:
    return DiedBeforeCommit(f"{consumer.name!r} died before its commit: the test's crash")
