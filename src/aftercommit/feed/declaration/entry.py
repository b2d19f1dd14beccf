"""An event as a feed deals with it: as it was read from the log, typed, and as it leaves. Nothing is made here."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from aftercommit.event.envelope import Event, PayloadT, Record


class HeldVersion(msgspec.Struct, frozen=True, gc=False):
    """What this process is too old to read: an event of a version, or of a type (`known` is None), that it lacks."""

    event_type: str
    version: int
    known: int | None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event in a strand: `number` orders it there, `body` is its item, `facets` are what filters look at.

    One that is `withheld` has a note for a body. One that is `held` has none, and no reader may be led past it.
    """

    number: int
    position: int
    ts: datetime
    event_id: UUID
    body: bytes
    facets: tuple[str | None, ...]
    withheld: bool = False
    held: HeldVersion | None = None


class LogEvent(Event[PayloadT], frozen=True, gc=False, kw_only=True):
    """A typed event with its place in the log: what `item` and facets are computed from."""

    ts: datetime
    stream_seq: int | None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """A row of the log as it was read; the payload is still JSON."""

    record: Record
    ts: datetime
    stream_seq: int | None


class Redacting(Protocol):
    """What takes secrets out of an item before it is encoded."""

    @property
    def version(self) -> str:
        """Changes when the rules change, so that nobody is told that an old page is still good."""

    def value(self, value: Any) -> Any:
        """The same value with its strings redacted."""


Item = Callable[[LogEvent[Any]], Mapping[str, Any]]
