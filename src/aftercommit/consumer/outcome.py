"""What a handler may return. None means done; an exception means that it is tried again by the retry policy."""

from dataclasses import dataclass
from typing import Any, Final, assert_never

from aftercommit.backoff import LONGEST_DELAY, Backoff, bounded, delay_after
from aftercommit.errors import AftercommitError, DeclarationError, UnreadableEvent
from aftercommit.text import readable

# Deadlocks, serialisation failures, lock timeouts and idle timeouts concern the whole transaction. They are more likely
# the larger it is, and often hit an event behind the one that caused them. The same holds for an aborted transaction
# and for a temporary table that exists already.
_SHARED: Final = ("40", "55P03", "25P02", "25P03", "25P04", "42P07")


@dataclass(frozen=True, slots=True)
class Done:
    """Handled. The same as returning nothing."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Undo the handler's writes and try again `after` so many seconds (None: by the retry policy)."""

    after: float | None = None
    reason: str = "the handler asked for a retry"

    def __post_init__(self) -> None:
        """Check the seconds."""
        if self.after is not None and not 0 <= self.after <= LONGEST_DELAY:
            raise DeclarationError(f"Retry(after={self.after!r}): give seconds from 0 to {LONGEST_DELAY:g}")


@dataclass(frozen=True, slots=True)
class Park:
    """Undo the handler's writes and park the event as a dead letter at once."""

    reason: str


Outcome = Done | Retry | Park
"""What a handler may return; None means `Done`."""


class HandlerAskedForRetry(AftercommitError):
    """The handler returned Retry(…)."""


class HandlerParked(AftercommitError):
    """The handler returned Park(…)."""


class UnknownOutcome(AftercommitError):
    """The handler returned something that is not an outcome."""


class Failed(Exception):
    """A failed attempt: the error to record, whether a retry can help, and when to try again."""

    def __init__(self, error: BaseException, *, permanent: bool = False, retry_after: float | None = None) -> None:
        super().__init__(readable(error))
        self.error = error
        self.permanent = permanent
        self.retry_after = retry_after


def judge(answer: Any) -> None:
    """Raise Failed unless the handler's answer means that the event is done."""
    if answer is None:
        return
    if not isinstance(answer, Done | Retry | Park):
        raise Failed(
            UnknownOutcome(f"a handler returned {answer!r:.100}: return None, Done(), Retry(after=…) or Park(reason)"),
            permanent=True,
        )
    match answer:
        case Done():
            return
        case Retry(after, reason):
            raise Failed(HandlerAskedForRetry(reason), retry_after=after)
        case Park(reason):
            raise Failed(HandlerParked(reason), permanent=True)
        case _:
            assert_never(answer)


def failed(error: BaseException) -> Failed:
    """A failed attempt from an exception of a handler."""
    if isinstance(error, Failed):
        return error
    return Failed(error, permanent=isinstance(error, UnreadableEvent))


def concerns_all(failure: Failed) -> bool:
    """Whether the failure concerns the whole transaction, and so perhaps another event than the one that met it."""
    return str(getattr(failure.error, "sqlstate", "")).startswith(_SHARED)


def next_delay(failure: Failed, attempts: int, retry_count: int, backoff: Backoff) -> float | None:
    """Seconds until the next of `retry_count + 1` attempts, or None when this was the last."""
    if failure.permanent or attempts > retry_count:
        return None
    if failure.retry_after is not None:
        return bounded(failure.retry_after)
    return delay_after(backoff, attempts, failure.error)
