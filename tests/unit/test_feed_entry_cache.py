"""Entries that history keeps: found for the same event and the same rules, and for nothing else."""

import msgspec
import pytest

from aftercommit.feed.declaration.entry import Entry, HeldVersion, StoredEvent
from aftercommit.feed.strands import entry_cache
from aftercommit.feed.strands.entry_cache import EntryCache
from aftercommit.feed.strands.entry_maker import EntryMaker
from bench import feed_logs

replace = msgspec.structs.replace


class Rules:
    """Redaction whose rules change while it runs."""

    version = "1"

    def value(self, value):
        return {**value, "message": f"seen by rules {self.version}"}


@pytest.fixture
def feed():
    feed = feed_logs.declared()
    feed.redactor = Rules()
    return feed


def kept(cache: EntryCache, feed, stored: StoredEvent) -> Entry:
    entry = EntryMaker().entry_of(feed, stored)
    cache.keep(feed, stored, entry, feed.version)
    return entry


def test_the_same_event_is_found_again(feed):
    cache = EntryCache()
    entry = kept(cache, feed, feed_logs.stored(1))

    assert cache.find(feed, feed_logs.stored(1)) is entry
    assert cache.find(feed, feed_logs.stored(2)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: replace(stored, record=replace(stored.record, payload=b'{"erased": true}')),
        lambda stored: replace(stored, record=replace(stored.record, correlation_id=None)),
        lambda stored: replace(stored, record=replace(stored.record, position=99)),
        lambda stored: replace(stored, stream_seq=99),
        lambda stored: replace(stored, ts=feed_logs.moment_of(99)),
    ],
    ids=["erased payload", "erased header", "another position", "another number", "another time"],
)
def test_an_event_that_has_changed_is_made_anew(feed, change):
    cache, stored = EntryCache(), feed_logs.stored(1)
    kept(cache, feed, stored)

    assert cache.find(feed, change(stored)) is None
    assert cache.used == 0, "what was kept of the event is gone"


def test_new_rules_reach_a_line_that_was_read_before(feed):
    cache, stored = EntryCache(), feed_logs.stored(1)
    assert b"rules 1" in kept(cache, feed, stored).body
    feed.redactor.version = "2"

    assert cache.find(feed, stored) is None
    assert b"rules 2" in kept(cache, feed, stored).body


def test_an_entry_of_rules_that_changed_while_it_was_made_is_not_found(feed):
    cache, stored = EntryCache(), feed_logs.stored(1)
    entry = EntryMaker().entry_of(feed, stored)
    feed.redactor.version = "2"
    cache.keep(feed, stored, entry, "1")

    assert cache.find(feed, stored) is None


def test_another_feed_has_entries_of_its_own(feed):
    cache, stored, other = EntryCache(), feed_logs.stored(1), feed_logs.declared()
    kept(cache, feed, stored)

    assert cache.find(other, stored) is None


@pytest.mark.parametrize("change", [{"withheld": True}, {"held": HeldVersion("log.recorded", 2, 1)}])
def test_what_could_not_be_shown_is_tried_again(feed, change):
    cache, stored = EntryCache(), feed_logs.stored(1)
    cache.keep(feed, stored, replace(EntryMaker().entry_of(feed, stored), **change), feed.version)

    assert cache.find(feed, stored) is None


def test_the_least_recently_read_goes_when_there_is_no_room(feed):
    first = feed_logs.stored(1)
    size = entry_cache._AROUND + 1000
    cache = EntryCache(3 * size)
    entry = kept(cache, feed, first)
    for number in range(2, 50):
        kept(cache, feed, feed_logs.stored(number))
        assert cache.find(feed, first) is entry
        assert cache.used <= 3 * size
    assert cache.find(feed, feed_logs.stored(2)) is None
