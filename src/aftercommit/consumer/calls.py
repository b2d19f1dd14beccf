"""The calls of handlers in a slice: what has become of them, and what a failure undoes. Nothing runs here."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

import msgspec

from aftercommit.consumer.outcome import Failed, concerns_all
from aftercommit.event.envelope import Event
from aftercommit.outbox.handlers import Handler

# A call that takes longer than this many seconds is slow: its aggregate does not share a slice with others.
SLOW_CALL: Final = 0.01


class HandlerCall(msgspec.Struct, gc=False):
    """A call of a handler with an event, which has this place in the slice.

    `batch`, `batch_places`: all events of the call, and their places, if the handler takes batches. There is a call for
    every event, so it holds nothing that the garbage collector has to look at.
    """

    handler: Handler
    event: Event[Any]
    place: int
    batch: Sequence[Event[Any]] = ()
    batch_places: Sequence[int] = ()

    @property
    def places(self) -> Sequence[int]:
        """The places of its events."""
        return self.batch_places or (self.place,)

    @property
    def last_place(self) -> int:
        """The place of its last event."""
        return self.batch_places[-1] if self.batch_places else self.place

    @property
    def culprit(self) -> int | None:
        """The place of the event to blame when this call fails."""
        return self.place if len(self.batch_places) <= 1 else None


class Recovery(Enum):
    """What happens to a slice in which a call has failed: it is undone, goes on, or goes back to its savepoint."""

    UNDO = auto()
    GO_ON = auto()
    SAVEPOINT = auto()

    @property
    def goes_on(self) -> bool:
        """Whether the slice is not undone."""
        return self is not Recovery.UNDO


class Calls:
    """The calls of a slice, one after the other, and what has become of them.

    `survives`: a failed event need not undo the slice, if nothing is left of what its handler wrote. `guard_events`: to
    that end, the slice sets a savepoint every so many events; 0: none.
    """

    def __init__(self, calls: list[HandlerCall], *, survives: bool = False, guard_events: int = 0) -> None:
        self.calls = calls
        self.survives = survives
        self.guard_events = guard_events
        self.failures: dict[int, Failed] = {}
        self.slow: set[int] = set()
        # How many events went back to a savepoint.
        self.undone = 0
        # The next call to make, and the one at which the savepoint stands.
        self.next = 0
        self._saved: int | None = None
        self._touched = -1

    def following(self) -> HandlerCall | None:
        """The next call; calls for events that have failed already are left out."""
        while self.next < len(self.calls):
            call = self.calls[self.next]
            if not self.failures or call.place not in self.failures:
                return call
            self.next += 1
        return None

    def savepoint(self) -> str | None:
        """The statement that sets a savepoint before the next call, if it is time for one."""
        if not self.guard_events or not self._begins_event:
            return None
        is_first = self._saved is None
        if self._saved is not None and self.next - self._saved < self.guard_events:
            return None
        self._saved = self.next
        return "savepoint" if is_first else "next_savepoint"

    def made(self, seconds: float, *, touched: bool = False) -> None:
        """The next call was made, and took so long. `touched`: it has used the connection."""
        call = self.calls[self.next]
        if touched:
            self._touched = call.last_place
        if seconds > SLOW_CALL:
            self.slow.update(call.places)
        self.next += 1

    def may_stop(self) -> bool:
        """Whether all calls of the events so far were made, and there are more."""
        return self._begins_event and self.next < len(self.calls)

    def recover(self, failure: Failed, *, touched: bool) -> Recovery:
        """How the slice goes on after a failure of the next call. `touched`: that call has used the connection."""
        place = self.calls[self.next].culprit
        if not self.survives or place is None or concerns_all(failure):
            return Recovery.UNDO
        wrote = touched or self._touched == place
        if wrote and self._saved is None:
            return Recovery.UNDO
        self.failures[place] = failure
        if not wrote:
            return Recovery.GO_ON
        self.undone += 1
        self.next, self._touched = self._saved or 0, -1
        return Recovery.SAVEPOINT

    @property
    def _begins_event(self) -> bool:
        return (
            self.next == 0
            or self.next == len(self.calls)
            or self.calls[self.next].place > self.calls[self.next - 1].last_place
        )


def name_of(handler: Handler) -> str:
    """A handler's name in messages."""
    return getattr(handler.function, "__qualname__", None) or repr(handler.function)
