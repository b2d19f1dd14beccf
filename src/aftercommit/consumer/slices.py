"""A slice: events handled in one transaction, inbox first. It is planned here without IO; `slice_executor` runs it.

Small handlers are fast because their events share a transaction. It changes no promise: when one event fails, what its
handler wrote is undone, with the whole slice or alone, and nobody outside has seen anything.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from aftercommit.consumer.calls import Calls, HandlerCall, name_of
from aftercommit.consumer.outcome import Failed, failed
from aftercommit.errors import AftercommitError, DeclarationError, LeaseLost, NewerVersion
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer, Handler
from aftercommit.postgres.arrays import uuid_array


@dataclass(frozen=True, slots=True)
class Query:
    """Run a statement in the slice's transaction; its first row is sent back.

    `prepared`: its plan may be kept, because it suits any number of rows. `if_repeated`: as the first statement of a
    slice, it takes all events for new; this one runs instead if the inbox knows some of them.
    """

    name: str
    parameters: dict[str, Any]
    prepared: bool = False
    if_repeated: str | None = None


class SliceResult(msgspec.Struct):
    """What became of the events of a slice, by place: `handled` now, failed, or `left` because it took too long.

    The others had been handled before. `slow`: the events whose handlers took long. `undone`: how many failures were
    undone by a savepoint. `seconds`: how long all handlers took.
    """

    items: Sequence["SliceItem"]
    handled: Sequence[int]
    failures: dict[int, Failed] = {}
    left: Sequence[int] = ()
    slow: set[int] = set()
    undone: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> Sequence["SliceItem"]:
        """The events that were handled, now or before."""
        if not self.failures and not self.left:
            return self.items
        others = {*self.failures, *self.left}
        return [item for place, item in enumerate(self.items) if place not in others]

    @property
    def failed(self) -> list[tuple["SliceItem", Failed]]:
        """The events that failed, in order."""
        return [(self.items[place], self.failures[place]) for place in sorted(self.failures)]


# The answer to calls is the one that ended the transaction, if any.
Script = Generator[Query | Calls, Any, SliceResult]
Finish = Callable[[SliceResult], Iterable[Query]]


class SliceItem(msgspec.Struct, gc=False):
    """One event of a slice: typed, with the handlers that take it, or with the error that made it unreadable.

    `outside`: no handler has a connection, so undoing a slice would undo none of them. `goes_alone`: some have one.
    """

    record: Record
    calls: Sequence[Handler]
    event: Event[Any] | None
    failure: Failed | None
    outside: bool = False
    goes_alone: bool = False

    @property
    def newer(self) -> NewerVersion | None:
        """Why it cannot be read, if newer code could."""
        error = self.failure.error if self.failure is not None else None
        return error if isinstance(error, NewerVersion) else None

    @property
    def position(self) -> int:
        """Its position in the log; 0 behind the bus."""
        return self.record.position or 0


class UnreadableItem(SliceItem, gc=True):
    """One with an error. The error knows where it was raised, and so this item: only the garbage collector ends it."""


class HandlerEndedTransaction(AftercommitError):
    """A handler sent COMMIT or ROLLBACK, which ended the transaction of the whole slice."""


class SliceOutdated(AftercommitError):
    """A letter of a slice has changed since it was read: nothing was written, and it has to be read again."""


class SliceFailed(Exception):
    """A slice was undone. `index` is the place of the event that failed, or None if it is not known.

    `failures`: the events that had failed before that, by place.
    """

    def __init__(self, failure: Failed, index: int | None, failures: dict[int, Failed] | None = None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.index = index
        self.failures = failures or {}


def require_handlers(consumer: Consumer) -> None:
    """Raise DeclarationError for a consumer without handlers."""
    if not consumer.handlers:
        raise DeclarationError(f"consumer {consumer.name!r} has no handlers: declare one with @consumer.on(…)")


def prepare(consumer: Consumer, records: Sequence[Record], attempt: int) -> list[SliceItem]:
    """Read records as typed events and find the handlers for each; an event that no handler takes is left out."""
    items: list[SliceItem] = []
    handlers_of: dict[str, _Handlers] = {}
    for record in records:
        handlers = handlers_of.get(record.event_type)
        if handlers is None:
            taking_type = [each for each in consumer.handlers if each.types is None or record.event_type in each.types]
            handlers = handlers_of[record.event_type] = _Handlers.made(taking_type)
        if not handlers.all:
            continue
        try:
            event = consumer.registry.read(record, attempt)
            taking = handlers.taking(event) if handlers.conditional else handlers
        except Exception as error:  # noqa: BLE001 - an unreadable event or a broken can_handle is this event's failure alone
            items.append(UnreadableItem(record, (), None, failed(error)))
            continue
        if taking.all:
            items.append(SliceItem(record, taking.all, event, None, taking.outside, taking.goes_alone))
    return items


@dataclass(frozen=True, slots=True)
class _Handlers:
    """The handlers of a consumer that may take an event type, found once per page and not once per event."""

    all: Sequence[Handler]
    conditional: bool
    outside: bool
    goes_alone: bool

    @classmethod
    def made(cls, handlers: Sequence[Handler]) -> "_Handlers":
        conditional = any(handler.condition is not None for handler in handlers)
        outside = [not handler.takes_transaction and not handler.batch for handler in handlers]
        return cls(handlers, conditional, all(outside), any(outside) and not all(outside))

    def taking(self, event: Event[Any]) -> "_Handlers":
        """The handlers whose condition holds for this event."""
        return self.made([handler for handler in self.all if handler.can_handle(event)])


def script(
    items: Sequence[SliceItem], begin: Query, finish: Finish, *, survives: bool = False, guard_events: int = 0
) -> Script:
    """The steps of one slice."""
    held, fresh, checkpoint, _, *outdated = yield begin
    if not held:
        raise LeaseLost("another worker took over the consumer: nothing of this slice was written")
    if any(outdated):
        raise SliceOutdated("a letter has changed since it was read: nothing of this slice was written")
    new = list(_new(items, None if fresh is None else set(fresh), checkpoint))
    calls = Calls(calls_of(items, new), survives=survives, guard_events=guard_events)
    began = time.monotonic()
    ended: HandlerCall | None = yield calls
    seconds = time.monotonic() - began
    if ended is not None:
        # The executor commits this, and not in a transaction that the handler began.
        unhandled = [place for place in new if place > ended.last_place or place in calls.failures]
        yield _return_unhandled(items, unhandled, begin)
        raise SliceFailed(ended_by(ended), ended.last_place, calls.failures)
    left = list(dict.fromkeys(place for call in calls.calls[calls.next :] for place in call.places))
    left = [place for place in left if place not in calls.failures]
    if left:
        yield _return_unhandled(items, left, begin)
    others = {*left, *calls.failures}
    handled = [place for place in new if place not in others] if others else new
    result = SliceResult(items, handled, calls.failures, left, calls.slow, calls.undone, seconds)
    yield from finish(result)
    return result


def _new(items: Sequence[SliceItem], fresh: set[UUID] | None, checkpoint: int | None) -> Iterable[int]:
    """Places of the events not handled before: by inbox or letter (None: all are new), or by checkpoint."""
    if checkpoint is not None:
        return (index for index, item in enumerate(items) if item.position > checkpoint)
    if fresh is not None:
        # The log may have an event twice, and it is handled once.
        known = {item.record.event_id: index for index, item in reversed(list(enumerate(items)))}
        return sorted(known[event_id] for event_id in fresh)
    return range(len(items))


def calls_of(items: Sequence[SliceItem], indexes: Sequence[int]) -> list[HandlerCall]:
    """The calls of handlers for the events at these places."""
    calls: list[HandlerCall] = []
    events: list[Event[Any]] = []
    places: list[int] = []
    for index in indexes:
        item = items[index]
        for handler in item.calls:
            assert item.event is not None
            if not handler.batch:
                calls.append(HandlerCall(handler, item.event, index))
            elif calls and calls[-1].handler is handler:
                events.append(item.event)
                places.append(index)
            else:
                events, places = [item.event], [index]
                calls.append(HandlerCall(handler, item.event, index, events, places))
    return calls


def _return_unhandled(items: Sequence[SliceItem], unhandled: Sequence[int], begin: Query) -> Query:
    """Take back the inbox rows of these events, and the checkpoint to before them."""
    moved_checkpoint = "position" in begin.parameters and unhandled
    parameters = {
        "token": None,
        "checkpoint": None,
        **begin.parameters,
        "ids": uuid_array(items[place].record.event_id for place in unhandled),
        "position": items[unhandled[0]].position - 1 if moved_checkpoint else None,
    }
    return Query("return_unhandled", parameters)


def ended_by(call: HandlerCall) -> Failed:
    """The failure of a handler that ended the transaction."""
    return Failed(
        HandlerEndedTransaction(
            f"handler {name_of(call.handler)} ended the transaction it was given: leave COMMIT and ROLLBACK to the "
            "consumer, and use `with connection.transaction():` for what may be undone alone"
        ),
        permanent=True,
    )
