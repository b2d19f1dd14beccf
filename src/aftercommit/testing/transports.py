"""Transports for tests: one that remembers what it is given, and one that breaks another in every usual way."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Record
from aftercommit.relay.transport import Capabilities, Failure, Transport

Condition = Callable[[Record], bool]


class PoisonedEvent(Exception):
    """What an unreliable transport says of an event that it was told to refuse."""


class RecordingTransport:
    """Accepts everything and keeps it in `records`, in the order of delivery."""

    name = "recording"
    capabilities = Capabilities(carries=True, ordered=True, deduplicates=False, durable=False)

    def __init__(self) -> None:
        """Empty."""
        self.records: list[Record] = []

    @property
    def event_ids(self) -> list[UUID]:
        """The ids of what was delivered; an event delivered twice stands there twice."""
        return [record.event_id for record in self.records]

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Everything is accepted."""
        self.records += records
        return ()


class TransportFaults:
    """What is wrong with a transport. Nothing, until something is said."""

    def __init__(self) -> None:
        """Nothing is wrong."""
        self.is_down = False
        self._poison: list[tuple[Condition, Callable[[], BaseException]]] = []
        self._repeats = 0
        self._lost_answers = 0

    @property
    def are_set(self) -> bool:
        """Whether anything is wrong, or will be."""
        return bool(self.is_down or self._poison or self._repeats or self._lost_answers)

    def down(self) -> None:
        """The destination as a whole cannot be reached, until `up`."""
        self.is_down = True

    def up(self) -> None:
        """It can be reached again."""
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
        """Events for which this holds are refused, each with this error, until `cure`."""
        self._poison.append((where, error or (lambda: PoisonedEvent("the test poisoned this event"))))

    def cure(self) -> None:
        """No event is refused any more."""
        self._poison.clear()

    def repeat(self, times: int = 1) -> None:
        """The next `times` batches are handed over twice, as after a relay's crash."""
        self._repeats += times

    def lose_answers(self, times: int = 1) -> None:
        """The next `times` batches arrive, but the relay never hears of it, and delivers them again."""
        self._lost_answers += times

    def refusal(self, record: Record) -> Failure | None:
        """The failure of a poisoned event."""
        for where, error in self._poison:
            if where(record):
                return Failure(record.event_id, error())
        return None

    def take_repeat(self) -> bool:
        """Whether this batch is to be handed over twice."""
        self._repeats, taken = max(0, self._repeats - 1), self._repeats > 0
        return taken

    def take_lost_answer(self) -> bool:
        """Whether the answer to this batch is lost."""
        self._lost_answers, taken = max(0, self._lost_answers - 1), self._lost_answers > 0
        return taken


class UnreliableTransport:
    """Another transport with faults. Give it to a Relay or Engine; a `World` makes one where its faults need it."""

    def __init__(self, inner: Transport, faults: TransportFaults | None = None) -> None:
        """As reliable as the other, until `faults` says otherwise."""
        self.inner = inner
        self.faults = faults or TransportFaults()
        self.name = inner.name
        # The log carries nothing, so nothing could be refused: here every transport is handed its events.
        self.capabilities = replace(inner.capabilities, carries=True)

    async def open(self) -> None:
        """Open the other, unless it is down."""
        self._refuse_when_down()
        await self.inner.open()

    async def close(self) -> None:
        """Close the other."""
        await self.inner.close()

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        """Deliver through the other, with the faults that are set."""
        self._refuse_when_down()
        refused = [failure for record in records if (failure := self.faults.refusal(record)) is not None]
        poisoned = {failure.event_id for failure in refused}
        healthy = [record for record in records if record.event_id not in poisoned]
        failures = list(await self.inner.deliver(healthy)) if healthy else []
        if healthy and self.faults.take_repeat():
            failures = list(await self.inner.deliver(healthy))
        if healthy and self.faults.take_lost_answer():
            raise TransportUnavailable(f"the answer of {self.name!r} was lost: the test's fault lose_answers")
        return [*refused, *failures]

    def _refuse_when_down(self) -> None:
        if self.faults.is_down:
            raise TransportUnavailable(f"transport {self.name!r} is down: the test's fault, until faults.up()")
