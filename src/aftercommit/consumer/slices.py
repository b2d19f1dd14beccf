"""What slices are made of: events with their handlers, statements and calls. `slice` plans a slice of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec

from aftercommit.consumer.outcome import Failed, failed
from aftercommit.errors import AftercommitError, DeclarationError, NewerVersion
from aftercommit.event.envelope import Event, Record
from aftercommit.outbox.handlers import Consumer, Handler

# A call that takes longer than this many seconds is slow: its aggregate does not share a slice with others.
SLOW_CALL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Query:
    """Run a statement in the slice's transaction; its first row is sent back.

    `prepared`: its plan may be kept, because it suits any number of rows.
    """

    name: str
    parameters: dict[str, Any]
    prepared: bool = False


class HandlerCall(msgspec.Struct, gc=False):
    """A call of a handler with these events (one, unless it takes batches), at these places of the slice."""

    handler: Handler
    events: list[Event[Any]]
    places: list[int]

    @property
    def culprit(self) -> int | None:
        """The place of the event to blame when this call fails."""
        return self.places[0] if len(self.places) == 1 else None


class Recovery(Enum):
    """What becomes of a slice when a handler fails: it is undone, goes back to its savepoint, or nothing is undone."""

    UNDO = 0
    SAVEPOINT = 1
    NOTHING = 2


@dataclass(frozen=True, slots=True)
class Calls:
    """Call handlers, one after the other. The executor may stop between two events when the slice takes long."""

    calls: list[HandlerCall]
    recovery: Recovery

    def may_stop_after(self, index: int) -> bool:
        """Whether the events of the calls so far are complete."""
        following = index + 1
        return following < len(self.calls) and self.calls[following].places[0] > self.calls[index].places[-1]


@dataclass(slots=True)
class Called:
    """The answer to `Calls`: how many were made, and the failure of the next one, if the slice survived it.

    `place`: the event to blame; None if the failed call had several. `slow`: places of events that took long.
    `ended`: the call that ended the transaction.
    """

    made: int = 0
    failure: Failed | None = None
    place: int | None = None
    slow: list[int] = field(default_factory=list)
    ended: HandlerCall | None = None

    def took(self, call: HandlerCall, seconds: float) -> None:
        """A call was made."""
        self.made += 1
        if seconds > SLOW_CALL:
            self.slow += call.places


class SliceItem(msgspec.Struct):
    """One event of a slice: typed, with the handlers that take it, or with the error that made it unreadable.

    `outside`: its handlers act outside our transaction, so undoing a slice would not undo them. `alone`: some do, some
    do not. `due_at`: for a dead letter, when it fell due.
    """

    record: Record
    calls: Sequence[Handler]
    event: Event[Any] | None
    failure: Failed | None
    outside: bool = False
    alone: bool = False
    due_at: datetime | None = None

    @property
    def newer(self) -> NewerVersion | None:
        """Why it cannot be read, if newer code could."""
        error = self.failure.error if self.failure is not None else None
        return error if isinstance(error, NewerVersion) else None

    @property
    def position(self) -> int:
        """Its position in the log (0: it comes from the outbox)."""
        return self.record.position or 0


class HandlerEndedTransaction(AftercommitError):
    """A handler sent COMMIT or ROLLBACK, which ended the transaction of the whole slice."""


class SliceOutdated(AftercommitError):
    """A letter of a slice has changed since it was read: nothing was written, and it has to be read again."""


class SliceFailed(Exception):
    """A slice was undone. `index` is the place of the event that failed, or None if it is not known."""

    def __init__(self, failure: Failed, index: int | None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.index = index


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
            items.append(SliceItem(record, (), None, failed(error)))
            continue
        if taking.all:
            items.append(SliceItem(record, taking.all, event, None, taking.outside, taking.alone))
    return items


@dataclass(frozen=True, slots=True)
class _Handlers:
    """The handlers of a consumer that may take an event type, found once per page and not once per event."""

    all: Sequence[Handler]
    conditional: bool
    outside: bool
    alone: bool

    @classmethod
    def made(cls, handlers: Sequence[Handler]) -> "_Handlers":
        conditional = any(handler.condition is not None for handler in handlers)
        outside = [not handler.takes_transaction and not handler.batch for handler in handlers]
        return cls(handlers, conditional, all(outside), any(outside) and not all(outside))

    def taking(self, event: Event[Any]) -> "_Handlers":
        """The handlers whose condition holds for this event."""
        return self.made([handler for handler in self.all if handler.can_handle(event)])


def name_of(handler: Handler) -> str:
    """A handler's name in messages."""
    return getattr(handler.function, "__qualname__", None) or repr(handler.function)
