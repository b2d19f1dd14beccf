"""Selections of events and dead letters, shared by the command line, Python and JSON.

All given conditions must match.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Literal, Self, get_args
from uuid import UUID

from aftercommit.errors import RepairError, SelectionError
from aftercommit.event.envelope import rfc3339
from aftercommit.event.json_rules import text_problem
from aftercommit.outbox.row_maker import EARLIEST, LATEST
from aftercommit.postgres.shape import Shape
from aftercommit.relay.transport import RELAY_NAME

LetterStatus = Literal["retrying", "waiting", "parked", "resolved", "discarded"]
STATUSES: Final[tuple[str, ...]] = get_args(LetterStatus)
OPEN: Final = ("retrying", "waiting", "parked")
# Open letters that have failed themselves, and do not just wait behind another one.
FAILING: Final = ("retrying", "parked")
RELAY: Final = RELAY_NAME
"""The owner of dead letters that the transport did not accept."""
LARGEST: Final = 2**63 - 1
# The SQL function `facet`, which reads payloads, cuts longer values off.
_LONGEST_VALUE: Final = 254
_OF_LETTERS: Final = ("consumer", "error_class", "error", "statuses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects events of the log, or dead letters.

    `types`, `aggregate_type`, `aggregate_id`, `correlation_id` and `scope` match the event, `where` values in its
    payload, as text, by their path (`{"order.currency": "EUR"}`). `since` (inclusive) and
    `until` (exclusive) match its time of publication, `from_position` and `to_position` (both inclusive) its position.
    `consumer` (`"@relay"` for the transport), `error_class`, `error` (a part of the text) and `statuses` match dead
    letters: with any of them, the selection is of letters, not of events in the log.
    """

    event_ids: tuple[UUID, ...] = ()
    types: tuple[str, ...] = ()
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    correlation_id: str | None = None
    scope: Mapping[str, str | int | UUID] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    from_position: int | None = None
    to_position: int | None = None
    consumer: str | None = None
    error_class: str | None = None
    error: str | None = None
    statuses: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse malformed conditions, and conditions that nothing can match."""
        for name in ("event_ids", "types", "statuses"):
            _check_list(name, getattr(self, name), UUID if name == "event_ids" else str)
        for name in ("aggregate_type", "aggregate_id", "correlation_id", "consumer", "error_class", "error"):
            _check_text(name, getattr(self, name))
        _check_scope(self.scope)
        _check_where(self.where)
        for name in ("since", "until"):
            _check_moment(name, getattr(self, name))
        for name in ("from_position", "to_position"):
            _check_position(name, getattr(self, name))
        if unknown := set(self.statuses) - set(STATUSES):
            raise SelectionError(f"unknown status {sorted(unknown)[0]!r}: use one of {', '.join(STATUSES)}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise SelectionError(f"since {self.since} must be before until {self.until}")
        if self.from_position is not None and self.to_position is not None and self.from_position > self.to_position:
            raise SelectionError(
                f"from_position {self.from_position} must not be greater than to_position {self.to_position}"
            )

    @property
    def is_of_letters(self) -> bool:
        """Whether it selects dead letters, not events of the log."""
        return any(getattr(self, name) for name in _OF_LETTERS)

    @property
    def is_everything(self) -> bool:
        """Whether it has no conditions."""
        return not self.as_json()

    def as_json(self) -> dict[str, Any]:
        """The given conditions as JSON-compatible data; `from_json` reads them back."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _plain(value) for name, value in said.items() if value not in (None, (), {})}

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read a selection from its JSON form."""
        if not isinstance(document, Mapping):
            raise SelectionError(f"a selection must be a JSON object, not {document!r:.80}")
        known = {each.name for each in fields(cls)}
        if unknown := sorted(set(document) - known):
            raise SelectionError(f"a selection has no field {unknown[0]!r}: use {', '.join(sorted(known))}")
        return cls(**{name: _read(name, value) for name, value in document.items() if value is not None})

    def scope_values(self, shape: Shape) -> dict[str, Any]:
        """The scope values in the types of the outbox's columns."""
        return {name: _scope_value(shape, name, value) for name, value in self.scope.items()}


def _check_list(name: str, values: Any, kind: type[Any]) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
        raise SelectionError(f"{name}={values!r:.100} must be a tuple of {kind.__name__}")
    if kind is str:
        for value in values:
            _check_text(name, value)


def _check_text(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise SelectionError(f"{name}={value!r:.100} must be non-empty text")
    if problem := text_problem(value):
        raise SelectionError(f"{name}={value!r:.100} {problem}")


def _check_scope(scope: Any) -> None:
    if not isinstance(scope, Mapping):
        raise SelectionError(f"scope={scope!r:.100} must be a mapping of names to values")
    for name, value in scope.items():
        _check_text("the name of a scope", name)
        if not isinstance(value, str | int | UUID) or isinstance(value, bool):
            raise SelectionError(f"scope {name}={value!r:.80} must be text, an integer or a UUID")
        if isinstance(value, str):
            _check_text(f"scope {name}", value)


def _check_where(where: Any) -> None:
    if not isinstance(where, Mapping):
        raise SelectionError(f"where={where!r:.100} must be a mapping of paths to values")
    for path, value in where.items():
        _check_text("a path of where", path)
        _check_text(f"where {path}", value)
        if not all(path.split(".")):
            raise SelectionError(f"{path!r:.80} is not the path of a field: write it like order.currency")
        if len(value) > _LONGEST_VALUE:
            raise SelectionError(f"where {path}={value!r:.40}… is too long: give at most {_LONGEST_VALUE} characters")


def _check_moment(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise SelectionError(f"{name}={value!r:.60} must be a time with a time zone, like 2026-03-01T10:00:00Z")
    if not EARLIEST <= value < LATEST:
        raise SelectionError(
            f"{name}={value.isoformat()} is out of range: give a time from year 2 to year 9998, in UTC"
        )


def _check_position(name: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and 0 <= value <= LARGEST):
        raise SelectionError(f"{name}={value!r:.60} must be a position in the log, an integer from 0")


def checked_count(name: str, value: Any, least: int) -> int:
    """A limit or an offset; RepairError if it is not an integer in range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise RepairError(f"{name}={value!r:.60} must be an integer from {least} to {LARGEST}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(each) for each in value]
    if isinstance(value, Mapping):
        return {name: each if isinstance(each, int) else str(each) for name, each in value.items()}
    return rfc3339(value) if isinstance(value, datetime) else value


def _read(name: str, value: Any) -> Any:
    try:
        if name == "event_ids":
            return tuple(UUID(each) for each in _listed(name, value))
        if name in ("types", "statuses"):
            return tuple(_listed(name, value))
        if name in ("since", "until"):
            return datetime.fromisoformat(value)
    except (ValueError, TypeError, AttributeError):
        raise SelectionError(f"{name}={value!r:.100} is malformed") from None
    if name in ("scope", "where") and not isinstance(value, Mapping):
        raise SelectionError(f"{name}={value!r:.100} must be an object of names and values")
    return value


def _listed(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise SelectionError(f"{name}={value!r:.100} must be a list")
    return value


def _scope_value(shape: Shape, name: str, value: Any) -> Any:
    kind = shape.scope.get(name)
    if kind is None:
        known = ", ".join(shape.scope) or "none"
        raise SelectionError(f"outbox {shape.schema!r} has no scope {name!r}: it has {known}")
    try:
        found = value if isinstance(value, kind) else kind(value)
    except (ValueError, TypeError, AttributeError):
        raise SelectionError(f"scope {name}={value!r:.80} is not of type {kind.__name__}") from None
    if isinstance(found, int) and not -LARGEST - 1 <= found <= LARGEST:
        raise SelectionError(f"scope {name}={hex(found):.40} is too large: it must fit a signed 64-bit integer")
    return found
