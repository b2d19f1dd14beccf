"""An event in a feed: as the log has it (`StoredEvent`), typed (`LogEvent`), and encoded for readers (`Entry`)."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from aftercommit.event.envelope import Event, PayloadT, Record


class HeldVersion(msgspec.Struct, frozen=True, gc=False):
    """An event version, or type (`known` is None), that this process is too old to read."""

    event_type: str
    version: int
    known: int | None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event in a strand. `number` is its place there, `body` its item as JSON, `facets` the values for filters.

    A `withheld` entry has a note as its body instead of the item. A `held` entry has none, and no reader gets past it.
    """

    number: int
    position: int
    ts: datetime
    event_id: str
    body: bytes
    facets: tuple[str | None, ...]
    withheld: bool = False
    held: HeldVersion | None = None


class LogEvent(Event[PayloadT], frozen=True, gc=False, kw_only=True):
    """A typed event with its time in the log and its number in its stream: the argument of `item` and of facets."""

    ts: datetime
    stream_seq: int | None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """A row of the log; the payload is still JSON."""

    record: Record
    ts: datetime
    stream_seq: int | None


class Redacting(Protocol):
    """Removes secrets from an item before it is encoded."""

    @property
    def version(self) -> str:
        """Changes with the rules, so that ETags from before do not match any more."""

    def value(self, value: Any) -> Any:
        """The value with its strings redacted."""


Item = Callable[[LogEvent[Any]], Mapping[str, Any]]
