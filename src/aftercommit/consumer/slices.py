"""A slice: events handled in one transaction, inbox first. What to do is decided here without IO; `execute` acts on it.

Sharing a transaction between events is what makes small handlers fast. It changes no promise: when one event fails, the
slice is undone, the others are handled again without it, and nobody outside has seen anything.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aftercommit.consumer.outcome import Failed, failed
from aftercommit.errors import LeaseLost
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer, Handler


@dataclass(frozen=True, slots=True)
class Query:
    """Run a statement in the slice's transaction; its first row is sent back."""

    name: str
    parameters: dict[str, Any]


@dataclass(slots=True)
class Call:
    """Call a handler with these events (one, unless it takes batches); `first` is the place of the first in the slice."""

    handler: Handler
    events: list[Event[Any]]
    first: int


Script = Generator[Query | Call, Any, int]


@dataclass(slots=True)
class Item:
    """One event of a slice: typed, with the handlers that take it, or with the error that made it unreadable."""

    record: Record
    calls: list[Handler] = field(default_factory=list)
    event: Event[Any] | None = None
    failure: Failed | None = None


class SliceFailed(Exception):
    """A slice was undone. `index` says which event did it, or None when that is not known."""

    def __init__(self, failure: Failed, index: int | None) -> None:
        """The failure and its place."""
        super().__init__(str(failure.error))
        self.failure = failure
        self.index = index


def prepare(consumer: Consumer, records: Sequence[Record], attempt: int | None = None) -> list[Item]:
    """Read records as typed events and find the handlers for each; an event nobody takes is left out."""
    items = []
    for record in records:
        item = Item(record)
        try:
            if record.event_type in consumer.registry:
                item.event = consumer.registry.read(record, attempt or record.retry_count + 1)
                item.calls = [handler for handler in consumer.handlers if handler.can_handle(item.event)]
            elif consumer.types is not None and record.event_type in consumer.types:
                consumer.registry.named(record.event_type)
        except Exception as error:  # noqa: BLE001 - an unreadable event or a broken can_handle is this event's failure alone
            item.failure = failed(error)
        if item.calls or item.failure:
            items.append(item)
    return items


def script(items: Sequence[Item], begin: Query, end: Query | None, *, inbox: bool) -> Script:
    """The conversation of one slice; returns how many events were handled (the others had been before)."""
    held, fresh = yield begin
    if not held:
        raise LeaseLost("the consumer was taken over by another worker: nothing of this slice was written")
    new = set(fresh or ())
    handled = [index for index, item in enumerate(items) if not inbox or item.record.event_id in new]
    for call in _calls(items, handled):
        yield call
    if end is not None:
        yield end
    return len(handled)


def _calls(items: Sequence[Item], indexes: Sequence[int]) -> list[Call]:
    calls: list[Call] = []
    for index in indexes:
        item = items[index]
        for handler in item.calls:
            assert item.event is not None
            if handler.batch and calls and calls[-1].handler is handler:
                calls[-1].events.append(item.event)
            else:
                calls.append(Call(handler, [item.event], index))
    return calls
