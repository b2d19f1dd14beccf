"""Decides what a follower does next: stream, poll, wait, renew its token, or give up. Pure: it is told what happened.

    connecting ──▶ streaming        a stream first; 2^n seconds between attempts
        ▲  │           │
        │  ▼           ▼
      waiting ◀── ended, refused    three failures in a row, or a server without streams:
        ▼
     polling                        5 s, slower when idle or limited; the stream is tried again every minute

Every input is answered with one `FollowStep`. The cases in `conformance/machine.yaml` list the answers.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

UNAUTHORIZED: Final = 401
GONE: Final = 410
TOO_MANY: Final = 429
# The server has no stream at this address, or none that we can read. A poll finds out whether there is a feed.
_NO_STREAM: Final = frozenset({404, 405, 406, 501})
_PASSING: Final = frozenset({408, 425, TOO_MANY})


def is_passing(status: int) -> bool:
    """Whether a refusal with this status may pass, so that trying again makes sense."""
    return status >= 500 or status in _PASSING


class State(StrEnum):
    """The state of a follower, for its user."""

    CONNECTING = "connecting"
    STREAMING = "streaming"
    POLLING = "polling"
    WAITING = "waiting"
    STOPPED = "stopped"


class Do(StrEnum):
    """What the follower has to do next."""

    STREAM = "stream"
    READ = "read"
    POLL = "poll"
    WAIT = "wait"
    REFRESH = "refresh"
    STOP = "stop"


class FollowStep(msgspec.Struct, frozen=True):
    """One thing to do; for a wait, how long."""

    do: Do
    seconds: float = 0.0


class Pace(msgspec.Struct, frozen=True):
    """The waits and time limits of a follower, in seconds. The defaults are those of the protocol.

    A stream has `first_bytes` to send its first bytes, and may be silent for `silence` if its server does not announce
    an interval between heartbeats. It counts as good after the first event, or after `steady`. A follower that polls
    tries the stream again after `probe`. `answer` is the time limit of a poll.
    """

    failures: int = 3
    backoff: float = 1.0
    jitter: float = 0.5
    spread: float = 0.1
    poll: float = 5.0
    idle_factor: float = 1.5
    idle_longest: float = 30.0
    limited_factor: float = 2.0
    limited_longest: float = 60.0
    probe: float = 60.0
    steady: float = 30.0
    bye: float = 2.0
    bye_shortest: float = 1.0
    bye_longest: float = 60.0
    longest: float = 3600.0
    first_bytes: float = 10.0
    silence: float = 45.0
    answer: float = 30.0


class FollowMachine:
    """The decisions of one follower."""

    def __init__(
        self, pace: Pace, random: Callable[[], float], *, streams: bool = True, can_refresh: bool = False
    ) -> None:
        """`random` returns numbers in [0, 1). Without `streams` it only polls."""
        self.state = State.STOPPED
        self.failures = 0
        self._pace = pace
        self._random = random
        self._streams = streams
        self._can_refresh = can_refresh
        self._polling = False
        self._interval = pace.poll
        self._probe_at = 0.0
        self._opened_at: float | None = None
        self._good = False
        self._fresh_token = False
        self._resets = 0
        self._reset_here = False
        self._doing = Do.STOP

    def start(self, now: float) -> FollowStep:
        """An iteration begins."""
        self.failures, self._polling, self._resets, self._fresh_token = 0, False, 0, False
        if not self._streams:
            return self._fall_back(now, 0.0)
        return self._connect()

    def opened(self, now: float) -> FollowStep:
        """The first bytes of a stream are here."""
        self._opened_at, self._fresh_token = now, False
        return self._now(State.STREAMING, Do.READ)

    def news(self, now: float) -> FollowStep:
        """An event or a place came through the stream, so it works."""
        self._good, self._resets, self._reset_here = True, 0, False
        return self._now(State.STREAMING, Do.READ)

    def bye(self, now: float, retry: float | None) -> FollowStep:
        """The server said goodbye, and with `retry` when to come back."""
        pace = self._pace
        asked = pace.bye if retry is None else retry
        wait = self._lengthened(min(max(asked, pace.bye_shortest), pace.bye_longest))
        if self._was_good(now):
            return self._wait(State.WAITING, wait)
        return self._failed(now, wait, backoff=False)

    def reset(self, now: float) -> FollowStep:
        """The stream replaced our cursor. It may go on, or end."""
        self._resets += 1
        self._reset_here = True
        return self._now(State.STREAMING, Do.READ)

    def ended(self, now: float) -> FollowStep:
        """The stream ended without a goodbye, was silent, could not be read, or could not be opened."""
        if self._reset_here and self._resets == 1:
            return self._connect()
        self._was_good(now)
        return self._failed(now)

    def stream_refused(self, now: float, status: int, retry_after: float | None = None) -> FollowStep:
        """The request for a stream was answered with something else."""
        if status == UNAUTHORIZED:
            return self._unauthorized()
        self._fresh_token = False
        if status == GONE:
            self._resets += 1
            return self._connect() if self._resets == 1 else self._failed(now)
        if status in _NO_STREAM:
            self.failures = self._pace.failures
            return self._fall_back(now, 0.0)
        if status < 300 or is_passing(status):
            return self._failed(now, self._asked(retry_after))
        return self._now(State.STOPPED, Do.STOP)

    def page(self, now: float, events: int, more: bool) -> FollowStep:
        """A poll returned so many events; `more` says that the next page is there already."""
        self._fresh_token = False
        if events:
            self._interval, self._resets = self._pace.poll, 0
        if more:
            return self._poll_or_probe(now)
        if not events:
            self._slow_down()
        return self._wait(State.POLLING, self._interval)

    def unchanged(self, now: float) -> FollowStep:
        """A poll found nothing new."""
        return self.page(now, 0, more=False)

    def poll_failed(self, now: float, floor: float = 0.0) -> FollowStep:
        """A poll got no answer, or one that cannot be read."""
        self._slow_down()
        return self._wait(State.POLLING, max(self._interval, floor))

    def poll_refused(self, now: float, status: int, retry_after: float | None = None) -> FollowStep:
        """A poll was answered with an error."""
        if status == UNAUTHORIZED:
            return self._unauthorized()
        self._fresh_token = False
        if status == GONE:
            self._resets += 1
            return self._now(State.POLLING, Do.POLL) if self._resets == 1 else self.poll_failed(now)
        if status == TOO_MANY:
            pace = self._pace
            self._interval = min(self._interval * pace.limited_factor, pace.limited_longest)
            return self._wait(State.POLLING, max(self._interval, self._asked(retry_after)))
        if is_passing(status):
            return self.poll_failed(now, self._asked(retry_after))
        return self._now(State.STOPPED, Do.STOP)

    def elapsed(self, now: float) -> FollowStep:
        """The wait is over."""
        return self._poll_or_probe(now) if self.state is State.POLLING else self._connect()

    def refreshed(self, now: float) -> FollowStep:
        """There is a new token: repeat the refused request."""
        return self._now(State.POLLING, Do.POLL) if self._doing is Do.POLL else self._connect()

    def stopped(self) -> None:
        """The follower was closed."""
        self.state = State.STOPPED

    def _connect(self) -> FollowStep:
        self._opened_at, self._good, self._reset_here = None, False, False
        # While a stream is only tried, the state stays: the reader is still served by polls.
        return self._now(State.POLLING if self._polling else State.CONNECTING, Do.STREAM)

    def _was_good(self, now: float) -> bool:
        stood = self._opened_at is not None and now - self._opened_at >= self._pace.steady
        if self._good or stood:
            self.failures, self._polling = 0, False
        return self._good or stood

    def _failed(self, now: float, floor: float = 0.0, *, backoff: bool = True) -> FollowStep:
        self.failures += 1
        if self.failures >= self._pace.failures:
            return self._fall_back(now, floor)
        wait = self._pace.backoff * 2**self.failures * (1 - self._pace.jitter * self._random())
        return self._wait(State.WAITING, max(wait, floor) if backoff else floor)

    def _fall_back(self, now: float, floor: float) -> FollowStep:
        if not self._polling:
            self._polling, self._interval = True, self._pace.poll
            self._probe_at = now + self._pace.probe
        return self._wait(State.POLLING, floor) if floor else self._now(State.POLLING, Do.POLL)

    def _poll_or_probe(self, now: float) -> FollowStep:
        if self._streams and now >= self._probe_at:
            self._probe_at = now + self._pace.probe
            return self._connect()
        return self._now(State.POLLING, Do.POLL)

    def _unauthorized(self) -> FollowStep:
        if self._fresh_token or not self._can_refresh:
            return self._now(State.STOPPED, Do.STOP)
        self._fresh_token = True
        # `_doing` keeps what to repeat afterwards.
        return FollowStep(Do.REFRESH)

    def _slow_down(self) -> None:
        self._interval = min(self._interval * self._pace.idle_factor, self._pace.idle_longest)

    def _asked(self, retry_after: float | None) -> float:
        """How long the server asks us to wait, in bounds; lengthened, so that its clients do not all come together."""
        return 0.0 if retry_after is None else self._lengthened(min(max(retry_after, 0.0), self._pace.longest))

    def _lengthened(self, seconds: float) -> float:
        return seconds * (1 + self._pace.spread * self._random())

    def _now(self, state: State, do: Do, seconds: float = 0.0) -> FollowStep:
        self.state, self._doing = state, do
        return FollowStep(do, seconds)

    def _wait(self, state: State, seconds: float) -> FollowStep:
        return self._now(state, Do.WAIT, seconds)
