"""What wakes a worker: events in the log, changes to its consumer, and a poll as the safety net."""

from typing import Final

from aftercommit.consumer.lease import CONSUMER_CHANGED
from aftercommit.postgres.listen import Listener
from aftercommit.service import Waker

POLL: Final = 1.0
POLL_WITHOUT_LISTENER: Final = 0.05


class Wakeups:
    """`news`: events were appended. `word`: the consumer was handed over, paused or resumed."""

    def __init__(self, channel: str, listener: Listener | None) -> None:
        self.news = listener.subscribe(channel) if listener is not None else Waker()
        self.word = listener.subscribe(channel, {CONSUMER_CHANGED}) if listener is not None else Waker()
        self._listener = listener

    @property
    def poll_seconds(self) -> float:
        """Look again after so many seconds, if nothing has woken the worker."""
        return POLL if self._listener is not None and self._listener.working else POLL_WITHOUT_LISTENER
