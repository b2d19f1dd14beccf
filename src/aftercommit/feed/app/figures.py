"""The metrics of a process that serves feeds, in Prometheus' text format. Reads memory only.

Labels are names that code declares (feed, outbox, status, reason), so the number of series is bounded.
"""

from collections.abc import Iterable, Iterator

from aftercommit.feed.app.feed_app import FeedApp

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, float]


def exposition(app: FeedApp) -> str:
    """All metrics of one application."""
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
        _family("feed_streams_open", "gauge", "Open streams.", [("", len(streams))]),
        _family("feed_streams_opened_total", "counter", "Streams opened.", [("", streams.opened)]),
        _family("feed_streams_ended_total", "counter", "Streams ended, by reason.", ended),
        _family("feed_polls_waiting", "gauge", "Long polls that wait for new events.", [("", streams.waiting)]),
        _family("feed_pages_total", "counter", "Polls answered, by status.", answers),
        _family("feed_items_withheld_total", "counter", "Events whose item could not be made.", withheld),
        _family("feed_held", "gauge", "1 once the process has met an event that needs newer code.", held),
        _family("feed_strands", "gauge", "Strands in memory.", [("", hub.strands)]),
        _family("feed_ring_bytes", "gauge", "Bytes of entries in memory.", [("", hub.ring_bytes)]),
        _family("feed_questions_total", "counter", "Database queries made for readers.", [("", hub.questions)]),
        _family(
            "feed_unanswered_total",
            "counter",
            "Requests that the database did not answer in time.",
            [("", hub.unanswered)],
        ),
        _family("feed_following", "gauge", "1 while the process reads the log.", [("", float(hub.is_following))]),
        _family("feed_read_timestamp_seconds", "gauge", "Time of the last read of the log.", read_at),
        _family("feed_position", "gauge", "Position up to which the log was read.", positions),
    )
    return "".join(line for family in families for line in family)


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        # All digits: the rate of a rounded counter would be zero for a while and then jump.
        yield f"{name}{labels} {value:.17g}\n"
