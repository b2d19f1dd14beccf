"""A slice: events handled in one transaction, inbox first. What to do is decided here without IO; `execute` acts.

Sharing a transaction between events is what makes small handlers fast. It changes no promise: when one event
fails, the slice is undone, the others are handled again without it, and nobody outside has seen anything.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aftercommit.consumer.outcome import Failed, failed
from aftercommit.errors import AftercommitError, LeaseLost
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer, Handler


@dataclass(frozen=True, slots=True)
class Query:
    """Run a statement in the slice's transaction; its first row is sent back. `commits`: at once, come what may."""

    name: str
    parameters: dict[str, Any]
    commits: bool = False


@dataclass(slots=True)
class Call:
    """Call a handler with these events (one, unless it takes batches), at these places of the slice.

    Sent back is whether the transaction was over when the handler returned.
    """

    handler: Handler
    events: list[Event[Any]]
    places: list[int]

    @property
    def culprit(self) -> int | None:
        """The place of the event to blame when this call fails."""
        return self.places[0] if len(self.places) == 1 else None


Script = Generator[Query | Call, Any, int]
End = Callable[[], Query | None]


@dataclass(slots=True)
class Item:
    """One event of a slice: typed, with the handlers that take it, or with the error that made it unreadable."""

    record: Record
    calls: list[Handler] = field(default_factory=list)
    event: Event[Any] | None = None
    failure: Failed | None = None

    @property
    def goes_alone(self) -> bool:
        """Whether a handler acts outside our transaction, so that undoing a slice could not undo it."""
        return any(not handler.takes_transaction and not handler.batch for handler in self.calls)


class HandlerEndedTransaction(AftercommitError):
    """A handler sent COMMIT or ROLLBACK itself, and with it ended the transaction of the whole slice."""


class SliceFailed(Exception):
    """A slice was undone. `index` says which event did it, or None when that is not known."""

    def __init__(self, failure: Failed, index: int | None) -> None:
        """The failure and its place."""
        super().__init__(str(failure))
        self.failure = failure
        self.index = index


def prepare(consumer: Consumer, records: Sequence[Record], attempt: int) -> list[Item]:
    """Read records as typed events and find the handlers for each; an event nobody takes is left out."""
    items = []
    types = consumer.types
    for record in records:
        if types is not None and record.event_type not in types:
            continue
        item = Item(record)
        try:
            item.event = consumer.registry.read(record, attempt)
            item.calls = [handler for handler in consumer.handlers if handler.can_handle(item.event)]
        except Exception as error:  # noqa: BLE001 - an unreadable event or a broken can_handle is this event's failure alone
            item.failure = failed(error)
        if item.calls or item.failure:
            items.append(item)
    return items


def script(items: Sequence[Item], begin: Query, end: End) -> Script:
    """The conversation of one slice; returns how many events were handled (the others had been before)."""
    held, fresh, *_ = yield begin
    if not held:
        raise LeaseLost("the consumer was taken over by another worker: nothing of this slice was written")
    new = None if fresh is None else set(fresh)
    handled = [index for index, item in enumerate(items) if new is None or item.record.event_id in new]
    for call in _calls(items, handled):
        ended = yield call
        if ended:
            yield _return_unhandled(items, begin, call.places[-1])
            raise SliceFailed(_ended(call), call.places[-1])
    last = end()
    if last is not None:
        yield last
    return len(handled)


def no_end() -> Query | None:
    """Nothing more to write when the handlers are through."""
    return None


def _calls(items: Sequence[Item], indexes: Sequence[int]) -> list[Call]:
    calls: list[Call] = []
    for index in indexes:
        item = items[index]
        for handler in item.calls:
            assert item.event is not None
            if handler.batch and calls and calls[-1].handler is handler:
                calls[-1].events.append(item.event)
                calls[-1].places.append(index)
            else:
                calls.append(Call(handler, [item.event], [index]))
    return calls


def _return_unhandled(items: Sequence[Item], begin: Query, last: int) -> Query:
    """The inbox rows of all events were committed too early: those of events not handled yet are taken back."""
    moved_checkpoint = "position" in begin.parameters
    parameters = {
        "token": None,
        **begin.parameters,
        "ids": [item.record.event_id for item in items[last + 1 :]],
        "position": items[last].record.position if moved_checkpoint else None,
    }
    return Query("return_unhandled", parameters, commits=True)


def _ended(call: Call) -> Failed:
    return Failed(
        HandlerEndedTransaction(
            f"handler {name_of(call.handler)} ended the transaction it was given: leave COMMIT and ROLLBACK to the "
            "consumer, and use `with connection.transaction():` for what may be undone alone"
        ),
        permanent=True,
    )


def name_of(handler: Handler) -> str:
    """How a handler is called in messages."""
    return getattr(handler.function, "__qualname__", None) or repr(handler.function)
