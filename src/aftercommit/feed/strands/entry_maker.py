"""Turns an event into the item that leaves over HTTP, as JSON bytes.

An event that cannot be read, or whose item cannot be made, leaves as a note that it is withheld. Readers see that there
is an event, other events go on, and nothing unredacted leaves. An event that newer code wrote is held: it does not
leave until a process serves it that can read it.
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

# An event's values are in the order of its fields, which mypy cannot follow.
_log_event: Any = LogEvent
# Clients take an item for a note if it has `withheld` and no other field than these.
_NOTE: Final = {"event_id", "ts", "seq", "position", "withheld"}


class EntryMaker:
    """Makes the entries of one hub.

    `withheld` counts the items that could not be made, by the feed's name. `held` has the feed's name and the version
    of each event that this process is too old to read.
    """

    def __init__(self) -> None:
        self.withheld: Counter[str] = Counter()
        self.held: set[tuple[str, HeldVersion]] = set()
        self._said: set[tuple[str, str]] = set()

    def entry_of(self, feed: Feed, stored: StoredEvent) -> Entry:
        """The entry of an event; withheld if its item cannot be made, held if reading it takes newer code."""
        record, position = stored.record, stored.record.position or 0
        number = feed.select.number_of(stored)
        if record.event_type not in feed.outbox.registry:
            return self._hold(feed, stored, number, None)
        try:
            read = feed.outbox.registry.read(record)
            event = _log_event(*msgspec.structs.astuple(read), ts=stored.ts, stream_seq=stored.stream_seq)
            item = feed.item(event)
            if feed.redactor is not None:
                item = feed.redactor.value(item)
            body = json_rules.ENCODER.encode(item)
            if body[:1] != b"{":
                raise TypeError(f"the item must be a mapping, not {type(item).__name__}")
            _check_not_a_note(body)
            facets = feed.facets_of(record.payload, event)
        except NewerSchemaVersion:
            return self._hold(feed, stored, number, feed.outbox.registry.named(record.event_type).version)
        except UnreadableEvent as problem:
            self._count(feed, stored, problem)
            return _note(feed, stored, number, "unreadable")
        except Exception as problem:  # noqa: BLE001 - users' functions may raise anything; other events go on
            self._count(feed, stored, problem)
            return _note(feed, stored, number, "item failed")
        return Entry(number, position, stored.ts, str(record.event_id), body, facets)

    def _hold(self, feed: Feed, stored: StoredEvent, number: int, known: int | None) -> Entry:
        """Logs each version of a type once: nothing changes until this process is started with newer code."""
        record = stored.record
        held = HeldVersion(record.event_type, record.schema_version, known)
        if (feed.name, held) not in self.held:
            self.held.add((feed.name, held))
            remedy = "start this server with code that declares the event; until then, readers wait before it"
            fields = {"event_type": held.event_type, "version": held.version, "known": known, "remedy": remedy}
            log_event(logger, logging.WARNING, "feed_held", feed=feed.name, event_id=str(record.event_id), **fields)
        facets = feed.facets_of(record.payload, None)
        return Entry(number, record.position or 0, stored.ts, str(record.event_id), b"", facets, held=held)

    def _count(self, feed: Feed, stored: StoredEvent, problem: Exception) -> None:
        """Counts every event, and logs the first of each type: more would flood the log."""
        self.withheld[feed.name] += 1
        event_type = stored.record.event_type
        if (feed.name, event_type) in self._said:
            return
        self._said.add((feed.name, event_type))
        fields = {"feed": feed.name, "event_id": str(stored.record.event_id), "event_type": event_type}
        log_event(logger, logging.ERROR, "feed_item_withheld", problem, **fields, error=repr(problem)[:500])


def _check_not_a_note(body: bytes) -> None:
    """Raise TypeError for an item that clients would take for a note, so that it is withheld and logged instead."""
    if b'"withheld"' not in body:
        return
    item = msgspec.json.decode(body)
    if item.keys() <= _NOTE and isinstance(item.get("withheld"), str) and item["withheld"]:
        raise TypeError("the item looks like a note (only its place and `withheld`): rename that field, or add another")


def _note(feed: Feed, stored: StoredEvent, number: int, reason: str) -> Entry:
    """A note in place of the item. The error itself goes to the log only: it may quote what must not leave."""
    record = stored.record
    facets = feed.facets_of(record.payload, None)
    nothing = Entry(number, record.position or 0, stored.ts, str(record.event_id), b"", facets, withheld=True)
    note = feed.wire.body.withheld(nothing, feed.cursor, reason)
    return msgspec.structs.replace(nothing, body=msgspec.json.encode(note))
