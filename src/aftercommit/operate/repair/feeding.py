"""What to do with an item of a replay when its turn comes, and how fast items may come. Decides only; no IO here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from aftercommit.operate.repair.selection import OPEN

Way = Literal["letter", "new letter", "row", "skip", "fail"]


@dataclass(frozen=True, slots=True)
class ReplayItem:
    """One item of a frozen set, and how things stand with it right now.

    `known_status` is that of its letter, also of a whole delivery; `frozen_status` what it was when the set was frozen.
    `has_open_letter` says whether a relay or somebody behind the bus still waits for the event; `is_wanted_again` that
    its consumer was spared the event when the letter was discarded, and the letter is what is replayed.
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
        """Whose letter it is, of which event."""
        return self.event_id, self.consumer

    @property
    def goes_by_letter(self) -> bool:
        """Put before a consumer of the log; otherwise delivered through the outbox."""
        return self.position is not None and self.consumer is not None


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """What becomes of an item now."""

    item: ReplayItem
    way: Way
    note: str | None = None

    @property
    def state(self) -> str:
        """Its state after this step."""
        return {"skip": "skipped", "fail": "failed"}.get(self.way, "started")

    @property
    def former_status(self) -> str | None:
        """What an abort would have to bring back."""
        return self.item.letter_status if self.item.goes_by_letter else self.item.row_status


def decide(item: ReplayItem, *, again: bool, past_horizon: bool, to_owner: bool = False) -> ReplayStep:
    """The step for one item. What was handled is skipped unless it is to be handled again."""
    is_open = item.letter_status in OPEN
    if item.goes_by_letter and not item.has_consumer:
        return ReplayStep(
            item, "fail", f"consumer {item.consumer!r} has no checkpoint: it was forgotten, or never began"
        )
    if item.known_status == "discarded" and item.frozen_status != "discarded":
        return ReplayStep(item, "skip", "was discarded since the replay was started")
    if item.was_handled and not again and not is_open and not item.is_wanted_again:
        return ReplayStep(item, "skip", "was handled already")
    if item.is_past_horizon and not past_horizon:
        return ReplayStep(
            item, "skip", "is past the horizon of the inbox: nobody knows any more whether it was handled"
        )
    if not item.is_there:
        return ReplayStep(item, "fail", "is gone from the log: retention has removed it")
    if not item.goes_by_letter:
        return _deliver(item, again=again, to_owner=to_owner)
    return ReplayStep(item, "new letter" if item.letter_status is None else "letter")


def _deliver(item: ReplayItem, *, again: bool, to_owner: bool) -> ReplayStep:
    """Through the outbox, unless that would publish twice, or join a delivery that passes its consumer by."""
    given_up = item.known_status == "discarded"
    if to_owner and item.row_status is None and not item.has_open_letter and not given_up:
        return ReplayStep(item, "skip", "was delivered since the replay was started")
    if item.row_status == "pending" and (given_up or (item.was_handled and again)):
        return ReplayStep(item, "fail", "is on its way to others at this moment: replay it when that has ended")
    return ReplayStep(item, "row")


@dataclass(slots=True)
class ReplayPace:
    """How many items may be fed: bounded by the rate, and by how much is under way.

    Items that were tried and wait for their next attempt weigh little: only many of them hold up the others.
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
            # One at once, so that a slow rate does not begin with a pause; never more than a second's worth in one go.
            allowed = int((now - self.started_at) * self.per_second) + 1 - self.fed
            if allowed > self.per_second + 1:
                self.started_at = now - self.fed / self.per_second
                allowed = 1
            room = min(room, allowed)
        return max(0, room)


def by_way(steps: Sequence[ReplayStep], way: Way) -> list[ReplayItem]:
    """The items that go one way, in order."""
    return [step.item for step in steps if step.way == way]
