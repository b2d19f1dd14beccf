"""Correlation and causation ids, carried by the context (contextvars)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from aftercommit.errors import InvalidEnvelope
from aftercommit.event.json_rules import is_storable

MAX_CORRELATION_LENGTH = 255

_correlation: ContextVar[str | None] = ContextVar("aftercommit_correlation", default=None)
_causation: ContextVar[UUID | None] = ContextVar("aftercommit_causation", default=None)


def current_story() -> tuple[str | None, UUID | None]:
    """The correlation id of this context, and the id of the event that it handles; None where there is none."""
    return _correlation.get(), _causation.get()


def checked_correlation(value: str) -> str:
    """The value, if it can be stored as a correlation id."""
    if not is_storable(value, MAX_CORRELATION_LENGTH):
        raise InvalidEnvelope(
            f"correlation id {value!r:.80} cannot be stored: give a string of 1 to {MAX_CORRELATION_LENGTH} "
            "characters without NUL or lone surrogates"
        )
    return str.__str__(value)


@contextmanager
def correlation(correlation_id: str) -> Iterator[None]:
    """Events published inside this block get this correlation id."""
    token = _correlation.set(checked_correlation(correlation_id))
    try:
        yield
    finally:
        _correlation.reset(token)


def tell(event_id: UUID | None, correlation_id: str | None) -> None:
    """From here on, events published in this context get this correlation id, and this event as their cause."""
    _correlation.set(correlation_id)
    _causation.set(event_id)


@contextmanager
def told() -> Iterator[None]:
    """A block that may call `tell`; afterwards the ids from before are back."""
    before = _causation.get(), _correlation.get()
    try:
        yield
    finally:
        tell(*before)
