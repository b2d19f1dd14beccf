"""The relay's decisions, without IO: what to do about a failure, what may go together, where to start reading."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from aftercommit.backoff import Backoff, bounded, delay_after
from aftercommit.event.envelope import Record
from aftercommit.postgres.shape import LANES
from aftercommit.relay.transport import Failure
from aftercommit.text import storable_error

MAX_CONSUMER_NAME = 100
_PREPARED = "-1/"


@dataclass(frozen=True, slots=True)
class Due:
    """An event that may be delivered now."""

    seq: int
    lane: int
    id: UUID
    event_type: str
    retry_count: int
    created_at: datetime
    again: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a failed delivery: `delay` seconds until the next attempt, or None for the end."""

    event_id: UUID
    consumer: str
    error: str
    error_class: str
    delay: float | None
    counted: int
    cause: BaseException | None = None
    attempts: int = 1


def judge(failure: Failure, retry_count: int, *, already_counted: bool, backoff: Backoff, max_attempts: int) -> Verdict:
    """The verdict on one failure, by the outbox's policy."""
    counted = (0 if already_counted else 1) - (0 if failure.attempts else 1)
    attempts = retry_count + counted
    delay: float | None = None
    if not failure.attempts:
        delay = bounded(failure.retry_after or 0.0)
    elif not failure.permanent and attempts < max_attempts:
        asked = failure.retry_after
        delay = bounded(asked) if asked is not None else delay_after(backoff, attempts, failure.error)
    return Verdict(
        failure.event_id,
        failure.consumer[:MAX_CONSUMER_NAME],
        storable_error(failure.error),
        type(failure.error).__name__,
        delay,
        counted,
        failure.error,
        failure.attempts,
    )


def agreed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """An event has one fate: where one verdict on it is final, all of them are."""
    ended = {verdict.event_id for verdict in verdicts if verdict.delay is None}
    return [replace(verdict, delay=None) if verdict.event_id in ended else verdict for verdict in verdicts]


def rounds(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Batches in which every aggregate occurs once, in order: so that a failure can hold back what is behind it."""
    waiting = list(records)
    while waiting:
        taken: set[tuple[str, str]] = set()
        batch, rest = [], []
        for record in waiting:
            if record.aggregate in taken:
                rest.append(record)
            else:
                taken.add(record.aggregate)
                batch.append(record)
        yield batch
        waiting = rest


def share_of_lanes(live_relays: int) -> int:
    """How many lanes one of so many relays should hold at most."""
    return -(-LANES // max(1, live_relays))


@dataclass(slots=True)
class Marks:
    """Up to which seq every writer's transaction has ended.

    seq is drawn while a writer holds a lock on the outbox table, until its transaction ends. So: read the last seq
    drawn, then list the transactions that hold such a lock; when all of those are gone, no event at or below that seq
    can still appear. Nothing older than `resolved` needs to be looked for again, however late anybody commits.
    """

    resolved: int = 0
    _mark: int | None = None
    _holders: frozenset[str] = frozenset()

    def observe(self, last_seq: int, holders: Collection[str]) -> None:
        """A new observation: `last_seq` must have been read before `holders` was."""
        # PREPARE TRANSACTION gives a transaction another name, so such a one may be any of those we wait for.
        renamed = any(holder.startswith(_PREPARED) for holder in holders)
        if self._mark is not None and self._holders.isdisjoint(holders) and not renamed:
            self.resolved = max(self.resolved, self._mark)
            self._mark = None
        if self._mark is None:
            self._mark, self._holders = last_seq, frozenset(holders)
            if not holders:
                self.resolved, self._mark = max(self.resolved, last_seq), None

    def forget(self) -> None:
        """After a reconnect: the server may have restarted, and transaction names may come again."""
        self.resolved, self._mark, self._holders = 0, None, frozenset()


@dataclass(slots=True)
class Watermark:
    """Where one carrier starts to read: everything of its lanes at or below has left the outbox or waits for a retry.

    Without it every read would step over all events that were moved since some old snapshot was taken, because
    PostgreSQL cannot clean those up while anybody's transaction might still look at them.
    """

    value: int = 0
    lanes: frozenset[int] = field(default_factory=frozenset)
    _back_to: int | None = None

    def for_lanes(self, lanes: Collection[int]) -> int:
        """The watermark for a read of these lanes; other lanes have a past of their own, so it starts anew."""
        if self.lanes != frozenset(lanes):
            self.lanes, self.value = frozenset(lanes), 0
        if self._back_to is not None:
            self.value, self._back_to = min(self.value, self._back_to - 1), None
        return self.value

    def look_back_to(self, seq: int) -> None:
        """An event of this seq was never tried: the next read must see it, whatever the one under way concludes."""
        if seq <= self.value:
            self._back_to = seq

    def settled(self, read: Sequence[int], unsettled: Collection[int], resolved: int) -> None:
        """These seqs were the lowest there were; all but `unsettled` are dealt with, so the watermark may follow."""
        if not read:
            return
        reached = min(unsettled) - 1 if unsettled else read[-1]
        self.value = max(self.value, min(reached, resolved))

    def nothing_below(self, lowest: int | None, resolved: int) -> None:
        """No untried event exists below `lowest` (None: none exists at all)."""
        reached = resolved if lowest is None else min(resolved, lowest - 1)
        self.value = max(self.value, reached)
