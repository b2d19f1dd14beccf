"""Records the attempts of handlers and transports during a drain."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from aftercommit.backoff import Constant
from aftercommit.consumer.dispatcher import SHORT_WAIT
from aftercommit.consumer.outcome import Failed, Retry, judge
from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer, Handler
from aftercommit.relay.transport import RELAY_NAME, Failure, Transport


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a consumer (or, as @relay, of the transport) at one event; `error` is None if it succeeded."""

    consumer: str
    event_id: UUID
    event_type: str
    event: Event[Any] | None
    error: BaseException | None


Ending = Callable[[Consumer], BaseException | None]


class Spy:
    """Records attempts, and lets handlers fail at their end if a test wants it."""

    def __init__(self, ending: Ending = lambda consumer: None) -> None:
        """`ending` is called after each handler, and may return an error to raise."""
        self.attempts: list[Attempt] = []
        self._ending = ending

    def watch(self, consumer: Consumer, *, at_once: bool = False, **changes: Any) -> Consumer:
        """The consumer with recorded handlers. `at_once`: the bus retries without a pause."""
        if at_once:
            changes["backoff"] = Constant(0.0)
        handlers = [replace(handler, function=self._wrap(consumer, handler, at_once)) for handler in consumer.handlers]
        return replace(consumer, handlers=handlers, **changes)

    def note(self, consumer: str, record: Record, error: BaseException | None) -> None:
        """Record an attempt that is not a handler's."""
        self.attempts.append(Attempt(consumer, record.event_id, record.event_type, None, error))

    def _wrap(self, consumer: Consumer, handler: Handler, at_once: bool) -> Callable[..., Any]:
        function = handler.function

        def answered(argument: Any, answer: Any) -> Any:
            self._judge(consumer, argument, answer)
            return _without_pause(answer) if at_once else answer

        @functools.wraps(function)
        async def watch_async(argument: Any, *connection: Any) -> Any:
            try:
                answer = await function(argument, *connection)
            except Exception as error:
                self._remember(consumer, argument, error)
                raise
            return answered(argument, answer)

        @functools.wraps(function)
        def watch(argument: Any, *connection: Any) -> Any:
            try:
                answer = function(argument, *connection)
            except Exception as error:
                self._remember(consumer, argument, error)
                raise
            return answered(argument, answer)

        return watch_async if consumer.is_async else watch

    def _judge(self, consumer: Consumer, argument: Any, answer: Any) -> None:
        problem = self._ending(consumer)
        if problem is not None:
            self._remember(consumer, argument, problem)
            raise problem
        try:
            judge(answer)
        except Failed as failure:
            self._remember(consumer, argument, failure.error)
        else:
            self._remember(consumer, argument, None)

    def _remember(self, consumer: Consumer, argument: Any, error: BaseException | None) -> None:
        for event in argument if isinstance(argument, list) else [argument]:
            self.attempts.append(Attempt(consumer.name, event.event_id, event.type, event, error))


class WatchedTransport:
    """A transport whose failures and outages are recorded."""

    def __init__(self, inner: Transport, spy: Spy, watched: Sequence[Consumer]) -> None:
        """`watched` are consumers behind it whose handlers are recorded already."""
        self.name = inner.name
        self.capabilities = inner.capabilities
        self.outage: TransportUnavailable | None = None
        self._inner = inner
        self._spy = spy
        self._watched = {consumer.name for consumer in watched}

    async def open(self) -> None:
        """Open it."""
        try:
            await self._inner.open()
        except TransportUnavailable as problem:
            self.outage = problem
            raise

    async def close(self) -> None:
        """Close it."""
        await self._inner.close()

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Deliver, and record failures."""
        try:
            failures = await self._inner.deliver(records)
        except TransportUnavailable as problem:
            self.outage = problem
            raise
        except Exception as error:
            if len(records) == 1:
                self._spy.note(RELAY_NAME, records[0], error)
            raise
        by_id = {record.event_id: record for record in records}
        for failure in failures:
            if failure.consumer not in self._watched and failure.event_id in by_id:
                self._spy.note(failure.consumer, by_id[failure.event_id], failure.error)
        self.outage = None
        return failures


def _without_pause(answer: Any) -> Any:
    """The bus itself waits for a short retry delay; in a test, that delay is 0."""
    if isinstance(answer, Retry) and answer.after is not None and answer.after <= SHORT_WAIT:
        return replace(answer, after=0.0)
    return answer
