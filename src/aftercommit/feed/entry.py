"""One event as it leaves over HTTP: the item as JSON bytes, made once per event and process, whoever reads it.

An event that cannot be read, or whose item cannot be made, leaves as a note that it is withheld: readers see that there
is something, the others go on, and nothing unredacted slips through.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import msgspec

from aftercommit.errors import UnreadableEvent
from aftercommit.event import json_rules
from aftercommit.event.envelope import Event, PayloadT, Record
from aftercommit.telemetry import say

if TYPE_CHECKING:
    from aftercommit.feed.declaration import Feed

logger = logging.getLogger("aftercommit.feed")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event in a strand: `number` orders it there, `body` is its item, `facets` are what filters look at."""

    number: int
    position: int
    ts: datetime
    event_id: UUID
    body: bytes
    facets: tuple[str | None, ...]


class LogEvent(Event[PayloadT], frozen=True, gc=False, kw_only=True):
    """A typed event with its place in the log: what `item` and facets are computed from."""

    ts: datetime
    stream_seq: int | None


class Stored(msgspec.Struct, frozen=True, gc=False):
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


# The values of an event are in the order of its fields; that is more than the checker can follow.
_log_event: Any = LogEvent
Item = Callable[[LogEvent[Any]], Mapping[str, Any]]


def entry_of(feed: "Feed", stored: Stored) -> Entry:
    """The entry of one event; withheld when it cannot be made."""
    record, position = stored.record, stored.record.position or 0
    number = feed.select.number_of(stored)
    try:
        event = log_event(feed, stored)
        item = feed.item(event)
        if feed.redactor is not None:
            item = feed.redactor.value(item)
        body = json_rules.ENCODER.encode(item)
        if body[:1] != b"{":
            raise TypeError(f"the item is {type(item).__name__}, and must be a mapping")
        facets = feed.facets_of(record.payload, event)
    except UnreadableEvent as problem:
        return _withheld(feed, stored, number, "unreadable", problem)
    except Exception as problem:  # noqa: BLE001 - the team's own functions may raise anything, and the others go on
        return _withheld(feed, stored, number, "item failed", problem)
    return Entry(number, position, stored.ts, record.event_id, body, facets)


def log_event(feed: "Feed", stored: Stored) -> LogEvent[Any]:
    """The typed event of a row; UnreadableEvent when this code does not know it."""
    event = feed.outbox.registry.read(stored.record)
    made: LogEvent[Any] = _log_event(*msgspec.structs.astuple(event), ts=stored.ts, stream_seq=stored.stream_seq)
    return made


def _withheld(feed: "Feed", stored: Stored, number: int, reason: str, problem: Exception) -> Entry:
    """A note in place of the item. Why is for the operator's log alone: an error may quote what must not leave."""
    record = stored.record
    feed.withheld += 1
    if feed.withheld_is_news(record.event_type):
        fields = {"feed": feed.name, "event_id": str(record.event_id), "event_type": record.event_type}
        say(logger, logging.ERROR, "feed_item_withheld", problem, **fields, error=repr(problem)[:500])
    facets = feed.facets_of(record.payload, None)
    nothing = Entry(number, record.position or 0, stored.ts, record.event_id, b"", facets)
    note = feed.wire.body.withheld(nothing, feed.cursor, reason)
    return msgspec.structs.replace(nothing, body=msgspec.json.encode(note))
