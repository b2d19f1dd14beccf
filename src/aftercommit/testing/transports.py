"""Transports for tests: one that records events, and one that adds faults to another transport."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure, Transport

Condition = Callable[[Record], bool]


class PoisonedEvent(Exception):
    """The error of an event that a test has poisoned."""


class RecordingTransport:
    """Accepts all events and keeps them in `records`, in the order of delivery."""

    name = "recording"
    capabilities = Capabilities(carries=True, ordered=True, deduplicates=False, durable=False)

    def __init__(self) -> None:
        self.records: list[Record] = []

    @property
    def event_ids(self) -> list[UUID]:
        """The ids of the delivered events; one that was delivered twice is listed twice."""
        return [record.event_id for record in self.records]

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Accept all events."""
        self.records += records
        return ()


class TransportFaults:
    """The faults of a transport; none at first."""

    def __init__(self) -> None:
        self.is_down = False
        self._poison: list[tuple[Condition, Callable[[], BaseException]]] = []
        self._repeats = 0
        self._lost_answers = 0

    @property
    def are_set(self) -> bool:
        """Whether there is a fault, now or planned."""
        return bool(self.is_down or self._poison or self._repeats or self._lost_answers)

    def down(self) -> None:
        """Make the destination unreachable, until `up`."""
        self.is_down = True

    def up(self) -> None:
        """Make the destination reachable again."""
        self.is_down = False

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The destination is down inside this block."""
        self.down()
        try:
            yield
        finally:
            self.up()

    def poison(self, where: Condition, error: Callable[[], BaseException] | None = None) -> None:
        """Refuse the events that match, each with this error, until `cure`."""
        self._poison.append((where, error or (lambda: PoisonedEvent("the test poisoned this event"))))

    def cure(self) -> None:
        """Refuse no events any more."""
        self._poison.clear()

    def repeat(self, times: int = 1) -> None:
        """Deliver the next `times` batches twice, as after a crash of the relay."""
        self._repeats += times

    def lose_answers(self, times: int = 1) -> None:
        """Deliver the next `times` batches but lose the answer, so that the relay delivers them again."""
        self._lost_answers += times

    def refusal(self, record: Record) -> Failure | None:
        """The failure of a poisoned event."""
        for where, error in self._poison:
            if where(record):
                return Failure(record.event_id, error())
        return None

    def take_repeat(self) -> bool:
        """Whether to deliver this batch twice."""
        self._repeats, taken = max(0, self._repeats - 1), self._repeats > 0
        return taken

    def take_lost_answer(self) -> bool:
        """Whether the answer to this batch is lost."""
        self._lost_answers, taken = max(0, self._lost_answers - 1), self._lost_answers > 0
        return taken


class UnreliableTransport:
    """Adds faults to another transport. Give it to a Relay or Engine; a `World` makes its own."""

    def __init__(self, inner: Transport, faults: TransportFaults | None = None) -> None:
        self.inner = inner
        self.faults = faults or TransportFaults()
        self.name = inner.name
        # The log transport is not given events. With `carries`, every transport is, and can refuse them.
        self.capabilities = replace(inner.capabilities, carries=True)

    async def open(self) -> None:
        """Open the transport, unless it is down."""
        self._refuse_when_down()
        await self.inner.open()

    async def close(self) -> None:
        """Close the transport."""
        await self.inner.close()

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Deliver through the transport, with faults."""
        self._refuse_when_down()
        refused = [failure for record in records if (failure := self.faults.refusal(record)) is not None]
        poisoned = {failure.event_id for failure in refused}
        healthy = [record for record in records if record.event_id not in poisoned]
        failures = list(await self.inner.deliver(healthy)) if healthy else []
        if healthy and self.faults.take_repeat():
            failures = list(await self.inner.deliver(healthy))
        if healthy and self.faults.take_lost_answer():
            raise TransportUnavailable(f"the answer of {self.name!r} was lost (simulated by the test: lose_answers)")
        return [*refused, *failures]

    def _refuse_when_down(self) -> None:
        if self.faults.is_down:
            raise TransportUnavailable(f"transport {self.name!r} is down (simulated by the test, until faults.up())")
