"""A slice: events handled in one transaction, inbox first. It is planned here without IO; `slice_executor` runs it.

Small handlers are fast because their events share a transaction. It changes no promise: what a failed handler wrote is
undone, its dead letter is written in the same transaction, and nobody outside has seen anything.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from aftercommit.consumer.outcome import Failed
from aftercommit.consumer.slices import (
    Called,
    Calls,
    HandlerCall,
    HandlerEndedTransaction,
    Query,
    Recovery,
    SliceFailed,
    SliceItem,
    SliceOutdated,
    name_of,
)
from aftercommit.errors import LeaseLost
from aftercommit.postgres.arrays import uuid_array

# A guarded slice has a savepoint every so many events at most.
WIDEST_GUARD: Final = 64
# The server keeps so many subtransactions of a session in memory; with more, every snapshot becomes slower.
MOST_SAVEPOINTS: Final = 60

Step = Query | Calls
Script = Generator[Step, Any, int]
Aggregate = tuple[str, str]


class Slice:
    """The events of one slice and what has become of them.

    `known`: failures from an earlier try. `guard_events`: the slice sets a savepoint every so many events (0: none, and
    a failure undoes the slice). `beyond`: finds the events behind the slice of these aggregates, which have to wait
    (strict ordering).
    """

    def __init__(
        self,
        items: Sequence[SliceItem],
        *,
        known: dict[int, Failed] | None = None,
        guard_events: int = 0,
        strict: bool = False,
        beyond: Callable[[Collection[Aggregate]], list[SliceItem]] | None = None,
    ) -> None:
        self.items = items
        self.guard_events = guard_events
        # The failures by place. The first ones are known before anything is called.
        self.failures: dict[int, Failed] = dict(known or {})
        self.slow: list[int] = []
        self.handled: list[int] = []
        self._strict = strict
        self._beyond = beyond
        self._fresh: set[int] = set()
        self._pending: list[int] = []
        # Strict ordering: the place of the first failed event of an aggregate.
        self._blocked: dict[Aggregate, int] = {}
        self._behind: list[int] = []

    @property
    def failed(self) -> list[tuple[SliceItem, Failed]]:
        """The events that failed, in order."""
        return [(self.items[place], self.failures[place]) for place in sorted(self.failures)]

    @property
    def behind(self) -> list[SliceItem]:
        """Strict ordering: the events that wait behind a failed one, also those beyond this slice."""
        beyond = self._beyond(self._blocked) if self._beyond is not None and self._blocked else []
        own = {id(item) for item in self.items}
        return [*(self.items[place] for place in self._behind), *(item for item in beyond if id(item) not in own)]

    @property
    def left(self) -> list[SliceItem]:
        """The events that the slice did not get to."""
        return [self.items[place] for place in sorted(self._pending)]

    @property
    def done(self) -> list[SliceItem]:
        """The events that were handled, now or before."""
        others = {*self.failures, *self._behind, *self._pending}
        return [item for place, item in enumerate(self.items) if place not in others]

    @property
    def unhandled(self) -> list[UUID]:
        """The events whose inbox rows must not stay."""
        places = sorted(place for place in (*self.failures, *self._behind, *self._pending) if place in self._fresh)
        return [self.items[place].record.event_id for place in places]

    @property
    def blocked_aggregates(self) -> Collection[Aggregate]:
        """Strict ordering: the aggregates of the events that failed."""
        return self._blocked.keys()

    @property
    def slow_aggregates(self) -> set[Aggregate]:
        """The aggregates whose handlers took long."""
        return {self._aggregate(place) for place in self.slow}

    @property
    def only_failures(self) -> bool:
        """Whether every event of the slice is known to fail, so that nothing is called."""
        return all(item.failure is not None or place in self.failures for place, item in enumerate(self.items))

    def take_failures(self) -> None:
        """Accept the known failures without a transaction."""
        self._sort(None, None)

    def script(self, begin: Query, finish: Callable[[], Iterable[Query]]) -> Script:
        """The steps of the slice; returns how many events were handled (the others had been before)."""
        held, fresh, checkpoint, _, *outdated = yield begin
        if not held:
            raise LeaseLost("another worker took over the consumer: nothing of this slice was written")
        if any(outdated):
            raise SliceOutdated("a letter has changed since it was read: nothing of this slice was written")
        self._sort(None if fresh is None else set(fresh), checkpoint)
        if self._pending:
            yield from self._handle(begin)
        if self._pending:
            yield self._returning(begin, self._pending)
        yield from finish()
        return len(self.handled)

    def _sort(self, fresh: set[UUID] | None, checkpoint: int | None) -> None:
        """Find the events not handled before: by inbox or letter (None: all are new), or by checkpoint."""
        known, self.failures = self.failures, {}
        for place, item in enumerate(self.items):
            if checkpoint is not None:
                is_new = item.position > checkpoint
            else:
                is_new = fresh is None or item.record.event_id in fresh
            if is_new:
                self._fresh.add(place)
                if fresh is not None:
                    # The log may have an event twice, and it is handled once.
                    fresh.discard(item.record.event_id)
            failure = item.failure or known.get(place)
            # An event that ended its transaction counts as handled, and still needs its letter.
            if failure is not None and (is_new or failure.committed):
                self._fail(place, failure)
            elif is_new and item.calls:
                self._pending.append(place)

    def _handle(self, begin: Query) -> Generator[Step, Any, None]:
        outside = self.items[0].outside
        recovery = Recovery.NOTHING if outside else Recovery.SAVEPOINT if self.guard_events else Recovery.UNDO
        savepoints = 0
        while group := self._next_group(recovery):
            if recovery is Recovery.SAVEPOINT:
                if savepoints == MOST_SAVEPOINTS:
                    return
                yield Query("savepoint" if savepoints == 0 else "next_savepoint", {})
                savepoints += 1
            if not (yield from self._call(group, recovery, begin)):
                return

    def _next_group(self, recovery: Recovery) -> list[int]:
        if self._blocked:
            waiting = {place for place in self._pending if place > self._blocked.get(self._aggregate(place), place)}
            self._behind += sorted(waiting)
            self._pending = [place for place in self._pending if place not in waiting]
        return self._pending[: self.guard_events] if recovery is Recovery.SAVEPOINT else list(self._pending)

    def _call(self, group: list[int], recovery: Recovery, begin: Query) -> Generator[Step, Any, bool]:
        """Call the handlers of these events; False when there is no time for more."""
        while group:
            calls = _calls(self.items, group)
            called: Called = yield Calls(calls, recovery)
            made = [place for call in calls[: called.made] for place in call.places]
            if called.ended is not None:
                self._finished(made)
                # The executor commits this, and not in a transaction that the handler began.
                last = called.ended.places[-1]
                self._pending = [place for place in self._pending if place not in called.ended.places]
                yield self._returning(begin, [*self._pending, *self.failures, *self._behind])
                raise SliceFailed(_ended(called.ended), last)
            self.slow += called.slow
            if called.failure is None:
                self._finished(made)
                self.guard_events = min(WIDEST_GUARD, self.guard_events * 2)
                return called.made == len(calls)
            group = self._after_failure(group, made, called, recovery)
        return True

    def _after_failure(self, group: list[int], made: list[int], called: Called, recovery: Recovery) -> list[int]:
        """What of the group has to be called again: with a savepoint, what the failure has undone."""
        assert called.failure is not None
        if called.place is None and len(group) > 1:
            # A batch: its events go one by one to find the one to blame.
            self.guard_events = 1
            return []
        place = group[0] if called.place is None else called.place
        self._pending.remove(place)
        self._fail(place, called.failure)
        if recovery is Recovery.NOTHING:
            self._finished([each for each in made if each != place])
            return []
        self.guard_events = max(2, self.guard_events // 2)
        return [each for each in group if each < place]

    def _finished(self, places: Sequence[int]) -> None:
        self.handled += dict.fromkeys(places)
        done = set(places)
        self._pending = [place for place in self._pending if place not in done]

    def _fail(self, place: int, failure: Failed) -> None:
        self.failures[place] = failure
        if self._strict:
            aggregate = self._aggregate(place)
            self._blocked[aggregate] = min(place, self._blocked.get(aggregate, place))

    def _aggregate(self, place: int) -> Aggregate:
        return self.items[place].record.aggregate

    def _returning(self, begin: Query, places: Collection[int]) -> Query:
        """Take back inbox rows of events that are not handled and, in order, the checkpoint to before these places."""
        upto = None
        if "position" in begin.parameters:
            upto = self.items[min(places)].position - 1 if places else self.items[-1].position
        parameters = {"token": None, **begin.parameters, "ids": uuid_array(self.unhandled), "position": upto}
        return Query("return_unhandled", parameters)


def _calls(items: Sequence[SliceItem], places: Sequence[int]) -> list[HandlerCall]:
    calls: list[HandlerCall] = []
    for place in places:
        item = items[place]
        for handler in item.calls:
            assert item.event is not None
            if handler.batch and calls and calls[-1].handler is handler:
                calls[-1].events.append(item.event)
                calls[-1].places.append(place)
            else:
                calls.append(HandlerCall(handler, [item.event], [place]))
    return calls


def _ended(call: HandlerCall) -> Failed:
    return Failed(
        HandlerEndedTransaction(
            f"handler {name_of(call.handler)} ended the transaction it was given: leave COMMIT and ROLLBACK to the "
            "consumer, and use `with connection.transaction():` for what may be undone alone"
        ),
        permanent=True,
        committed=True,
    )
