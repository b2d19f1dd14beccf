"""What a request for a page asks for, beyond what the declaration of its feed can say by itself."""

import pytest

from aftercommit.errors import BadParameter
from aftercommit.feed import Equals, Everything, Feed
from aftercommit.feed.endpoints.query import LONGEST_WAIT, wait_of
from aftercommit.outbox import Outbox
from aftercommit.redaction import Redactor
from systems.investigations.feeds import logs


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=20", 20),
        ("WAIT = 20", 20),
        ('wait="20"', 20),
        ("respond-async, wait=20;strict", 20),
        ("wait=60", LONGEST_WAIT),
        ("wait=61", LONGEST_WAIT),
        ("wait=1000000", LONGEST_WAIT),
        (f"wait={'9' * 5000}", LONGEST_WAIT),
        ("wait=0", 0),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("wait=soon", 0),
        ("await=20", 0),
        ("", 0),
        (None, 0),
    ],
)
@pytest.mark.contract("L11")
def test_who_prefers_to_wait_waits_as_long_as_that_and_a_minute_at_most(prefer: str | None, seconds: int) -> None:
    assert wait_of(prefer) == seconds


@pytest.mark.parametrize("hidden", ["ada@example.com", "192.168.17.33", "4111 1111 1111 1111", "password=hunter22"])
@pytest.mark.contract("L10")
def test_nobody_learns_by_a_filter_that_something_is_there_which_is_not_shown(hidden: str) -> None:
    """A service is shown redacted. Whoever guesses what it was would be told by the lines that match."""
    with pytest.raises(BadParameter, match="is redacted in items, so you cannot filter by it"):
        logs.chosen({"service": hidden})

    assert logs.chosen({"service": "shop"}).tests
    assert logs.chosen({"service": "[redacted:email]"}).tests


def test_where_nothing_is_redacted_everything_can_be_asked_for() -> None:
    outbox = Outbox("mail_events")
    by_sender = {"facets": {"sender": "sender"}, "filters": (Equals("sender", facet="sender"),)}
    open_feed = Feed("open", outbox, select=Everything(), item=lambda event: {}, **by_sender)  # type: ignore[arg-type]
    kept = Feed("kept", outbox, select=Everything(), item=dict, redactor=Redactor(keep=("email",)), **by_sender)  # type: ignore[arg-type]

    for feed in (open_feed, kept):
        assert feed.chosen({"sender": "ada@example.com"}).tests
