"""The figures of a process that serves feeds, in the text form that Prometheus scrapes. Reads memory; asks nobody.

Labels are names that code declares, never a key, a user or an id: the number of series is bounded by the code.
"""

from collections.abc import Iterable, Iterator

from aftercommit.feed.app.feed_app import FeedApp

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, float]


def exposition(app: FeedApp) -> str:
    """All figures of one application."""
    streams, hub = app.streams, app.hub
    ended = [(f'{{reason="{reason}"}}', count) for reason, count in sorted(streams.ended.items())]
    answers = [
        (f'{{feed="{feed}",status="{status}"}}', count) for (feed, status), count in sorted(streams.answers.items())
    ]
    positions = [(f'{{outbox="{outbox}"}}', position) for outbox, position in hub.positions.items()]
    read_at = [(f'{{outbox="{outbox}"}}', moment.timestamp()) for outbox, moment in hub.read_at.items()]
    withheld = [(f'{{feed="{feed.name}"}}', hub.withheld[feed.name]) for feed in app.feeds.values()]
    held = [(f'{{feed="{feed.name}"}}', float(feed.name in hub.held)) for feed in app.feeds.values()]
    families = (
        _family("feed_streams_open", "gauge", "Streams that are open.", [("", len(streams))]),
        _family("feed_streams_opened_total", "counter", "Streams that were opened.", [("", streams.opened)]),
        _family("feed_streams_ended_total", "counter", "Streams that ended, by reason.", ended),
        _family("feed_polls_waiting", "gauge", "Polls that wait for news.", [("", streams.waiting)]),
        _family("feed_pages_total", "counter", "Polls answered, by status.", answers),
        _family("feed_items_withheld_total", "counter", "Items that could not be made.", withheld),
        _family("feed_held", "gauge", "1 once the process has met an event that needs newer code.", held),
        _family("feed_strands", "gauge", "Strands that are kept in memory.", [("", hub.strands)]),
        _family("feed_ring_bytes", "gauge", "Bytes of entries in memory.", [("", hub.ring_bytes)]),
        _family("feed_questions_total", "counter", "Questions that readers cost the database.", [("", hub.questions)]),
        _family("feed_unanswered_total", "counter", "Readers the database did not answer.", [("", hub.unanswered)]),
        _family("feed_following", "gauge", "1 while the log is being read.", [("", float(hub.is_following))]),
        _family("feed_read_timestamp_seconds", "gauge", "When the log was last read.", read_at),
        _family("feed_position", "gauge", "Up to where the log was read.", positions),
    )
    return "".join(line for family in families for line in family)


def _family(name: str, kind: str, told: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {told}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        # To the last digit: of a counter that is rounded, a rate sees nothing for a while and then a leap.
        yield f"{name}{labels} {value:.17g}\n"
