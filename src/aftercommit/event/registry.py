"""The event types of an outbox, by name and by payload class."""

from collections.abc import Iterator
from typing import Any

from aftercommit.errors import DeclarationError, DuplicateDeclaration, NewerVersion, UnknownEventType
from aftercommit.event.definition import EventType, Upcaster
from aftercommit.event.envelope import Draft, Event, Record


class Registry:
    """The declared event types of one outbox."""

    def __init__(self) -> None:
        self._by_name: dict[str, EventType] = {}
        self._by_class: dict[type[Any], EventType] = {}

    def __iter__(self) -> Iterator[EventType]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def add(self, event_type: EventType) -> EventType:
        """Declare a type; a name or a payload class can be declared once."""
        if event_type.name in self._by_name:
            raise DuplicateDeclaration(f"event type {event_type.name!r} is declared twice: choose another name")
        payload_class = event_type.payload_class
        if payload_class is not None and payload_class is not dict:
            taken = self._by_class.get(payload_class)
            if taken is not None:
                raise DuplicateDeclaration(
                    f"{payload_class.__name__} is already the payload of {taken.name!r}: "
                    "publishing it would be ambiguous, give each event type a class of its own"
                )
            self._by_class[payload_class] = event_type
        self._by_name[event_type.name] = event_type
        return event_type

    def add_upcaster(self, name: str, from_version: int, upcaster: Upcaster) -> None:
        """Declare how payloads of one version become the next."""
        event_type = self.named(name)
        if not 1 <= from_version < event_type.version:
            raise DeclarationError(
                f"{name!r} is at version {event_type.version}: an upcaster must be from version 1 to "
                f"{event_type.version - 1}, not {from_version}"
            )
        if from_version in event_type.upcasters:
            raise DuplicateDeclaration(f"{name!r} already has an upcaster from version {from_version}")
        event_type.upcasters[from_version] = upcaster

    def require_upcasters(self) -> None:
        """DeclarationError if an upcaster is missing. Called when an outbox is put to use, after all imports."""
        for event_type in self:
            if missing := event_type.missing_upcasters:
                raise DeclarationError(
                    f"{event_type.name!r} is at version {event_type.version} and has no upcaster from version "
                    f"{', '.join(map(str, missing))}: declare it with @outbox.upcast({event_type.name!r}, "
                    f"from_version={missing[0]}), and import its module first; or declare oldest_version="
                    f"{missing[-1] + 1}, if no older event is left anywhere"
                )

    def named(self, name: str) -> EventType:
        """The type of this name."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownEventType(f"event type {name!r} is not declared on this outbox: {self._known()}") from None

    def resolve(self, reference: EventType | type[Any] | str) -> EventType:
        """The event type by its declaration, its payload class or its name."""
        if isinstance(reference, EventType):
            return self.named(reference.name)
        if isinstance(reference, str):
            return self.named(reference)
        try:
            return self._by_class[reference]
        except KeyError:
            raise UnknownEventType(
                f"{reference!r} is not the payload of a declared event type: {self._known()}"
            ) from None

    def of_payload(self, payload: Any) -> EventType | None:
        """The event type of a payload object, or None (for a draft, a dict or an undeclared class)."""
        return self._by_class.get(type(payload))

    def draft(self, event: Any) -> tuple[EventType, Draft]:
        """A payload object or a draft as a draft, with its event type."""
        if isinstance(event, Draft):
            return self.named(event.type_name), event
        event_type = self._by_class.get(type(event))
        if event_type is None:
            raise UnknownEventType(
                f"{event!r:.120} ({type(event).__name__}) is not a declared event: {self._known()}; "
                "a dict needs its type, e.g. OrderPlaced(order_id=…) or event_type.draft({…})"
            )
        return event_type, Draft(type_name=event_type.name, payload=event)

    def read(self, record: Record, attempt: int = 1) -> Event[Any]:
        """A stored record as a typed event."""
        event_type = self._by_name.get(record.event_type)
        if event_type is None:
            raise NewerVersion(
                f"event type {record.event_type!r} of {record.event_id} is not declared here: {self._known()}",
                event_type=record.event_type,
                version=record.schema_version,
                known=0,
            )
        return event_type.read(record, attempt)

    def _known(self) -> str:
        names = ", ".join(sorted(self._by_name)) or "none yet"
        return f"declared types are {names:.300}"
