"""The relay's decisions, without IO: what to do about a failure, which events go together, where to start reading."""

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
    """An event that may be delivered now; `again`: it has been tried before."""

    again: bool
    seq: int
    lane: int
    event_id: UUID
    event_type: str
    retry_count: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about a failed delivery: try again in `delay` seconds, or park it (None)."""

    event_id: UUID
    consumer: str
    error: str
    error_class: str
    delay: float | None
    counted: int
    cause: BaseException | None = None
    attempts: int = 1


def judge(failure: Failure, retry_count: int, *, already_counted: bool, backoff: Backoff, max_attempts: int) -> Verdict:
    """Decide about one failure by the outbox's retry policy."""
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
    """Make all verdicts on an event final when one of them is."""
    ended = {verdict.event_id for verdict in verdicts if verdict.delay is None}
    return [replace(verdict, delay=None) if verdict.event_id in ended else verdict for verdict in verdicts]


def rounds(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Batches, in order, with each aggregate at most once: so a failure can hold back the events behind it."""
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
    """How many lanes each of so many relays may hold."""
    return -(-LANES // max(1, live_relays))


@dataclass(slots=True)
class Marks:
    """The seq up to which every writer's transaction has ended.

    A writer draws its seq under a lock on the outbox table and holds the lock until its transaction ends. So: read the
    last seq drawn, then list the transactions that hold such a lock. When all of those are gone, no event at or below
    that seq can still appear, however late anybody commits.
    """

    resolved: int = 0
    _mark: int | None = None
    _holders: frozenset[str] = frozenset()

    def observe(self, last_seq: int, holders: Collection[str]) -> None:
        """Take in a new observation; read `last_seq` before `holders`."""
        # PREPARE TRANSACTION renames a transaction, so a prepared one may be any of those we wait for.
        renamed = any(holder.startswith(_PREPARED) for holder in holders)
        if self._mark is not None and self._holders.isdisjoint(holders) and not renamed:
            self.resolved = max(self.resolved, self._mark)
            self._mark = None
        if self._mark is None:
            self._mark, self._holders = last_seq, frozenset(holders)
            if not holders:
                self.resolved, self._mark = max(self.resolved, last_seq), None

    def forget(self) -> None:
        """After a reconnect: the server may have restarted, and may use the same transaction names again."""
        self.resolved, self._mark, self._holders = 0, None, frozenset()


@dataclass(slots=True)
class Watermark:
    """Where a carrier starts to read: in its lanes, every event at or below has left the outbox or waits for a retry.

    Without it every read would step over the dead rows of all events moved since the oldest open snapshot, which
    PostgreSQL cannot vacuum.
    """

    value: int = 0
    lanes: frozenset[int] = field(default_factory=frozenset)
    _back_to: int | None = None

    def for_lanes(self, lanes: Collection[int]) -> int:
        """The watermark for a read of these lanes; it starts anew when the lanes change."""
        if self.lanes != frozenset(lanes):
            self.lanes, self.value = frozenset(lanes), 0
        if self._back_to is not None:
            self.value, self._back_to = min(self.value, self._back_to - 1), None
        return self.value

    def look_back_to(self, seq: int) -> bool:
        """An untried event has this seq: the next read must see it, whatever the read under way concludes.

        Returns whether it would have been overlooked.
        """
        is_hidden = seq <= self.value
        if is_hidden:
            self._back_to = seq
        return is_hidden

    def settled(self, read: Sequence[int], unsettled: Collection[int], resolved: int) -> None:
        """These seqs were the lowest in the outbox, and all but `unsettled` are done: move up."""
        if not read:
            return
        reached = min(unsettled) - 1 if unsettled else read[-1]
        self.value = max(self.value, min(reached, resolved))

    def nothing_below(self, lowest: int | None, resolved: int) -> None:
        """No untried event is below `lowest`; None: there is no untried event."""
        reached = resolved if lowest is None else min(resolved, lowest - 1)
        self.value = max(self.value, reached)
