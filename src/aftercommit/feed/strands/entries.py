"""One event as it leaves over HTTP: the item as JSON bytes, made once per event and process, whoever reads it.

An event that cannot be read, or whose item cannot be made, leaves as a note that it is withheld: readers see that there
is something, the others go on, and nothing unredacted slips through. An event that newer code wrote does not leave at
all: it is held, until a process serves it that can read it.
"""

import logging
from collections import Counter
from typing import Any, Final

import msgspec

from aftercommit.errors import NewerSchemaVersion, UnreadableEvent
from aftercommit.event import json_rules
from aftercommit.feed.declaration.entry import Entry, HeldVersion, LogEvent, StoredEvent
from aftercommit.feed.declaration.feed import Feed
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

# The values of an event are in the order of its fields; that is more than the checker can follow.
_log_event: Any = LogEvent
# Clients take an item for a note that it is withheld when it has this text and nothing beside its place.
_NOTE: Final = {"event_id", "ts", "seq", "position", "withheld"}


class EntryMaker:
    """Makes the entries of one hub.

    `withheld` counts, for each feed by name, the items that could not be made; `held` has what this process was too
    old to read, by feed.
    """

    def __init__(self) -> None:
        """Nothing is made yet."""
        self.withheld: Counter[str] = Counter()
        self.held: set[tuple[str, HeldVersion]] = set()
        self._said: set[tuple[str, str]] = set()

    def entry_of(self, feed: Feed, stored: StoredEvent) -> Entry:
        """The entry of one event; withheld when it cannot be made, held when newer code is needed for it."""
        record, position = stored.record, stored.record.position or 0
        number = feed.select.number_of(stored)
        if record.event_type not in feed.outbox.registry:
            return self._hold(feed, stored, number, None)
        try:
            event = typed_event(feed, stored)
            item = feed.item(event)
            if feed.redactor is not None:
                item = feed.redactor.value(item)
            body = json_rules.ENCODER.encode(item)
            if body[:1] != b"{":
                raise TypeError(f"the item is {type(item).__name__}, and must be a mapping")
            _check_is_no_note(body)
            facets = feed.facets_of(record.payload, event)
        except NewerSchemaVersion:
            return self._hold(feed, stored, number, feed.outbox.registry.named(record.event_type).version)
        except UnreadableEvent as problem:
            self._count(feed, stored, problem)
            return _note(feed, stored, number, "unreadable")
        except Exception as problem:  # noqa: BLE001 - the team's own functions may raise anything, and the others go on
            self._count(feed, stored, problem)
            return _note(feed, stored, number, "item failed")
        return Entry(number, position, stored.ts, record.event_id, body, facets)

    def _hold(self, feed: Feed, stored: StoredEvent, number: int, known: int | None) -> Entry:
        """Said once for each version of a type: nothing changes before this process is started with newer code."""
        record = stored.record
        held = HeldVersion(record.event_type, record.schema_version, known)
        if (feed.name, held) not in self.held:
            self.held.add((feed.name, held))
            remedy = "start this server with code that declares the event; until then readers of this feed wait here"
            fields = {"event_type": held.event_type, "version": held.version, "known": known, "remedy": remedy}
            log_event(logger, logging.WARNING, "feed_held", feed=feed.name, event_id=str(record.event_id), **fields)
        facets = feed.facets_of(record.payload, None)
        return Entry(number, record.position or 0, stored.ts, record.event_id, b"", facets, held=held)

    def _count(self, feed: Feed, stored: StoredEvent, problem: Exception) -> None:
        """One more; said once for each type of event, or a log would drown in it."""
        self.withheld[feed.name] += 1
        event_type = stored.record.event_type
        if (feed.name, event_type) in self._said:
            return
        self._said.add((feed.name, event_type))
        fields = {"feed": feed.name, "event_id": str(stored.record.event_id), "event_type": event_type}
        log_event(logger, logging.ERROR, "feed_item_withheld", problem, **fields, error=repr(problem)[:500])


def typed_event(feed: Feed, stored: StoredEvent) -> LogEvent[Any]:
    """The typed event of a row; UnreadableEvent when this code does not know it."""
    event = feed.outbox.registry.read(stored.record)
    made: LogEvent[Any] = _log_event(*msgspec.structs.astuple(event), ts=stored.ts, stream_seq=stored.stream_seq)
    return made


def _check_is_no_note(body: bytes) -> None:
    """TypeError for an item that every client would take for a note: better withheld here, where it is said."""
    if b'"withheld"' not in body:
        return
    item = msgspec.json.decode(body)
    if item.keys() <= _NOTE and isinstance(item.get("withheld"), str) and item["withheld"]:
        raise TypeError("the item has only its place and `withheld`, as a note has: rename that field, or add another")


def _note(feed: Feed, stored: StoredEvent, number: int, reason: str) -> Entry:
    """A note in place of the item. Why is for the operator's log alone: an error may quote what must not leave."""
    record = stored.record
    facets = feed.facets_of(record.payload, None)
    nothing = Entry(number, record.position or 0, stored.ts, record.event_id, b"", facets, withheld=True)
    note = feed.wire.body.withheld(nothing, feed.cursor, reason)
    return msgspec.structs.replace(nothing, body=msgspec.json.encode(note))
