"""Decides what to do with the next items of a replay, and how many to feed. No IO here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from aftercommit.operate.repair.selection import OPEN

Way = Literal["letter", "new letter", "row", "skip", "fail"]


@dataclass(frozen=True, slots=True)
class ReplayItem:
    """One item of a replay, and its present state.

    `known_status` is the status of its letter, also if that belongs to the whole delivery; `frozen_status` is the one
    it had when the replay was started. `has_open_letter` means that the relay or a consumer behind the bus still waits
    for the event; `is_wanted_again`, that its consumer skipped the event because this letter was discarded.
    """

    ordinal: int
    event_id: UUID
    consumer: str | None
    position: int | None
    letter_status: str | None
    row_status: str | None
    was_handled: bool
    is_there: bool
    is_past_horizon: bool
    has_consumer: bool
    attempts: int | None = None
    known_status: str | None = None
    frozen_status: str | None = None
    has_open_letter: bool = False
    is_wanted_again: bool = False

    @property
    def key(self) -> tuple[UUID, str | None]:
        """The key of its letter."""
        return self.event_id, self.consumer

    @property
    def goes_by_letter(self) -> bool:
        """Whether a consumer of the log gets it as a letter; otherwise it is delivered through the outbox."""
        return self.position is not None and self.consumer is not None


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """What happens to an item now."""

    item: ReplayItem
    way: Way
    note: str | None = None

    @property
    def state(self) -> str:
        """Its state after this step."""
        return {"skip": "skipped", "fail": "failed"}.get(self.way, "started")

    @property
    def former_status(self) -> str | None:
        """The status that an abort would restore."""
        return self.item.letter_status if self.item.goes_by_letter else self.item.row_status


def decide(item: ReplayItem, *, again: bool, past_horizon: bool, to_owner: bool = False) -> ReplayStep:
    """The step for one item. Handled items are skipped unless they are to be handled again."""
    is_open = item.letter_status in OPEN
    if item.goes_by_letter and not item.has_consumer:
        return ReplayStep(
            item, "fail", f"consumer {item.consumer!r} has no checkpoint: it was forgotten, or has never run"
        )
    if item.known_status == "discarded" and item.frozen_status != "discarded":
        return ReplayStep(item, "skip", "was discarded since the replay was started")
    if item.was_handled and not again and not is_open and not item.is_wanted_again:
        return ReplayStep(item, "skip", "was handled already")
    if item.is_past_horizon and not past_horizon:
        return ReplayStep(item, "skip", "is older than the inbox, so nobody knows whether it was handled")
    if not item.is_there:
        return ReplayStep(item, "fail", "is no longer in the log: retention has removed it")
    if not item.goes_by_letter:
        return _deliver(item, again=again, to_owner=to_owner)
    return ReplayStep(item, "new letter" if item.letter_status is None else "letter")


def _deliver(item: ReplayItem, *, again: bool, to_owner: bool) -> ReplayStep:
    """Deliver through the outbox, unless that would publish twice, or join a delivery that skips its consumer."""
    given_up = item.known_status == "discarded"
    if to_owner and item.row_status is None and not item.has_open_letter and not given_up:
        return ReplayStep(item, "skip", "was delivered since the replay was started")
    if item.row_status == "pending" and (given_up or (item.was_handled and again)):
        return ReplayStep(item, "fail", "is being delivered to other consumers at the moment: replay it afterwards")
    return ReplayStep(item, "row")


@dataclass(slots=True)
class ReplayPace:
    """How many items may be fed, limited by the rate and by the number of items in progress.

    Items that wait for their next attempt count little: only many of them delay the others.
    """

    per_second: float | None
    started_at: float
    chunk: int = 1_000
    most_untried: int = 3_000
    most_under_way: int = 20_000
    fed: int = 0

    def room(self, now: float, under_way: int, untried: int) -> int:
        """How many may be fed now."""
        room = min(self.chunk, self.most_untried - untried, self.most_under_way - under_way)
        if self.per_second is not None:
            # One at once, so that a slow rate does not begin with a pause; at most one second's worth at a time.
            allowed = int((now - self.started_at) * self.per_second) + 1 - self.fed
            if allowed > self.per_second + 1:
                self.started_at = now - self.fed / self.per_second
                allowed = 1
            room = min(room, allowed)
        return max(0, room)


def by_way(steps: Sequence[ReplayStep], way: Way) -> list[ReplayItem]:
    """The items of one way, in order."""
    return [step.item for step in steps if step.way == way]
