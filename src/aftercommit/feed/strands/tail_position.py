"""Where a tailer reads next in its log, and whether it still can. No I/O."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class Tip(NamedTuple):
    """Where the log stands: the columns of `feed_tail` before its event."""

    position: int
    ts: datetime
    epoch: UUID
    before: datetime | None
    follows: bool


class TailPosition:
    """The place of one tailer. Nobody else decides where it reads next."""

    def __init__(self, max_lag_events: int) -> None:
        self.position = 0
        self.epoch: UUID | None = None
        self._max_lag_events = max_lag_events
        # The highest position that a strand was loaded with, which may be ahead of the tailer.
        self._loaded_upto = 0
        # The time of the event at our position, if known. Another time there means another log.
        self._ts: datetime | None = None

    @property
    def end(self) -> int:
        """How far the log has reached, as far as this process knows."""
        return max(self.position, self._loaded_upto)

    def begin(self, position: int, ts: datetime | None, epoch: UUID) -> None:
        """Go on from here, in this epoch."""
        self.position, self._ts, self.epoch = position, ts, epoch
        self._loaded_upto = position

    def loaded(self, position: int) -> None:
        """A strand was loaded with the event at this position."""
        self._loaded_upto = max(self._loaded_upto, position)

    def move(self, upto: int, tip: Tip) -> None:
        """Everything up to here was read."""
        self._ts = tip.ts if upto == tip.position else None
        self.position = upto

    def lost(self, tip: Tip, end: int) -> str | None:
        """Why the tailer cannot go on from its position; None if it can. `end` is that of before the log was read."""
        if tip.epoch != self.epoch:
            return "the log has a new epoch"
        if tip.position < end:
            return f"the log ends at {tip.position}, and had reached {end}"
        if self._ts is not None and tip.before is not None and tip.before != self._ts:
            return f"another event is at position {self.position}"
        if tip.position > self.position and not tip.follows:
            return f"the events after position {self.position} are no longer kept"
        if tip.position - self.position > self._max_lag_events:
            return f"the log is {tip.position - self.position} events ahead"
        return None
