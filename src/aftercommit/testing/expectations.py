"""Compares published events with what a test expects. Pure."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

import msgspec

from aftercommit.event import json_rules
from aftercommit.event.definition import EventType
from aftercommit.event.registry import Registry
from aftercommit.outbox.handlers import Reference
from aftercommit.testing.published import Published

SHOWN: Final = 20
WIDTH: Final = 160
ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected event. Fields that are None or empty are not compared.

    `event` is a type (its class, name or declaration), or an event to publish, whose whole payload must then be equal.
    `payload` is a part of the payload as JSON: `{"total": 40, "customer": {"id": "c-1"}}`. Lists must be equal.
    `audience` is the complete audience.
    """

    event: object
    payload: Mapping[str, Any] = field(default_factory=dict)
    scope: Mapping[str, Any] = field(default_factory=dict)
    aggregate_id: str | None = None
    correlation_id: str | None = None
    where: Callable[[Published], bool] | None = None
    audience: Collection[str] | None = None

    def differences(self, found: Published, registry: Registry) -> list[str]:
        """How a published event differs from the expected one, in words; empty if it matches."""
        wanted = self.type_in(registry)
        if found.type != wanted.name:
            return [f"type: expected {wanted.name}, was {found.type}"]
        different = [
            f"{name}: expected {expected!r}, was {actual!r}"
            for name, expected, actual in (
                ("aggregate_id", self.aggregate_id, found.aggregate_id),
                ("correlation_id", self.correlation_id, found.correlation_id),
            )
            if expected is not None and expected != actual
        ]
        different += _compare(dict(self.scope), found.scope, "scope", plain=False)
        different += self._other_readers(found)
        different += self._whole_payload(found, registry)
        different += _compare(dict(self.payload), found.data, "$", plain=True)
        if not different and self.where is not None and not self.where(found):
            different.append("where: the condition is false")
        return different

    def type_in(self, registry: Registry) -> EventType:
        """The declared type; UnknownEventType if there is none."""
        return registry.resolve(self.event) if _is_reference(self.event) else registry.draft(self.event)[0]

    def _other_readers(self, found: Published) -> list[str]:
        """How the audience differs; its order does not matter."""
        if self.audience is None or set(self.audience) == set(found.audience):
            return []
        return [f"audience: expected {sorted(self.audience)!r}, was {sorted(found.audience)!r}"]

    def _whole_payload(self, found: Published, registry: Registry) -> list[str]:
        """How the whole payload differs, if the expectation is an event and not a type."""
        if _is_reference(self.event):
            return []
        event_type, draft = registry.draft(self.event)
        expected: dict[str, Any] = json.loads(event_type.encode(draft.payload))
        more = [f"$.{name}: expected nothing, was {value!r}" for name, value in _more(expected, found.data)]
        return _compare(expected, found.data, "$", plain=False) + more

    def __str__(self) -> str:
        parts = [name_of(self.event)]
        if self.payload:
            parts.append(f"with {_short(dict(self.payload))}")
        if self.aggregate_id is not None:
            parts.append(f"about {self.aggregate_id}")
        parts += [f"{name}={value!r}" for name, value in self.scope.items()]
        if self.audience is not None:
            parts.append(f"for {', '.join(sorted(self.audience)) or 'no readers'}")
        if self.correlation_id is not None:
            parts.append(f"correlation_id={self.correlation_id!r}")
        if self.where is not None:
            parts.append(f"where {getattr(self.where, '__qualname__', repr(self.where))}")
        return " ".join(parts)


def name_of(event: object) -> str:
    """The name of an event type, or an event as text, for messages."""
    if isinstance(event, EventType):
        return event.name
    if isinstance(event, str):
        return event
    return event.__name__ if isinstance(event, type) else _cut(repr(event))


def _is_reference(event: object) -> TypeGuard[Reference]:
    """Whether this is an event type, not an event."""
    return isinstance(event, EventType | type | str)


def matching(expected: Expected, published: Sequence[Published], registry: Registry) -> list[Published]:
    """The events that match."""
    return [found for found in published if not expected.differences(found, registry)]


def first_missing(
    expected: Sequence[Expected], published: Sequence[Published], registry: Registry
) -> tuple[list[Published], int | None]:
    """The events that match one after the other, and the number of the first expectation without a match."""
    found: list[Published] = []
    rest = iter(published)
    for number, each in enumerate(expected):
        match = next((event for event in rest if not each.differences(event, registry)), None)
        if match is None:
            return found, number
        found.append(match)
    return found, None


def nearest(expected: Expected, published: Sequence[Published], registry: Registry) -> list[str]:
    """The event of the same type with the fewest differences, and the differences."""
    wanted = expected.type_in(registry).name
    candidates = [event for event in published if event.type == wanted]
    if not candidates:
        return []
    closest = min(candidates, key=lambda event: len(expected.differences(event, registry)))
    different = expected.differences(closest, registry)
    if not different:
        return []
    return [f"the nearest, {closest.event_id}, differs:", *(f"    {line}" for line in different)]


def listed(published: Sequence[Published]) -> list[str]:
    """The published events, one line each, at most the last SHOWN."""
    if not published:
        return ["nothing was published"]
    left_out = len(published) - SHOWN
    lines = [f"published, in order ({len(published)}):"]
    if left_out > 0:
        lines.append(f"    … {left_out} earlier ones")
    return lines + [f"    {_line(event)}" for event in published[-SHOWN:]]


def _line(event: Published) -> str:
    scope = " ".join(f"{name}={value!r}" for name, value in event.scope.items())
    place = f"position {event.position}" if event.position is not None else event.status
    about = f"{event.record.aggregate_type}/{event.aggregate_id}"
    return "  ".join(part for part in (event.type, about, scope, place, _short(event.data)) if part)


def _short(value: Any) -> str:
    return _cut(json.dumps(value, default=repr, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _compare(expected: Any, actual: Any, path: str, *, plain: bool) -> list[str]:
    """Differences between expected and actual values; mappings may have more keys than expected."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return [
            line
            for key, value in expected.items()
            for line in _compare(value, actual.get(key, ABSENT), f"{path}.{key}", plain=plain)
        ]
    if isinstance(expected, list | tuple) and isinstance(actual, list):
        return _compare_lists(expected, actual, path, plain=plain)
    if actual is ABSENT:
        return [f"{path}: expected {expected!r}, was missing"]
    if expected == actual or (plain and _as_json(expected) == actual):
        return []
    return [f"{path}: expected {expected!r}, was {actual!r}"]


def _compare_lists(expected: Sequence[Any], actual: Sequence[Any], path: str, *, plain: bool) -> list[str]:
    if len(expected) != len(actual):
        return [f"{path}: expected {len(expected)} items, were {len(actual)}"]
    return [
        line
        for index, (one, other) in enumerate(zip(expected, actual, strict=True))
        for line in _compare(one, other, f"{path}[{index}]", plain=plain)
    ]


def _more(expected: Any, actual: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Keys that the actual mappings have and the expected ones do not, with their path and value."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key, value in actual.items():
            if key not in expected:
                yield f"{path}{key}", value
            else:
                yield from _more(expected[key], value, f"{path}{key}.")
    elif isinstance(expected, list) and isinstance(actual, list):
        for index, (one, other) in enumerate(zip(expected, actual, strict=False)):
            yield from _more(one, other, f"{path.removesuffix('.')}[{index}].")


def _as_json(value: Any) -> Any:
    """A UUID, a datetime or an enum as JSON; a value without a JSON form stays as it is."""
    try:
        return msgspec.json.decode(json_rules.ENCODER.encode(value))
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return value
