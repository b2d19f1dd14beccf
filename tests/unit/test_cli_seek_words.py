"""What `consumers seek` says about the events between two places."""

import pytest

from aftercommit.cli.consumers import between
from aftercommit.operate import SeekResult


@pytest.mark.parametrize(
    ("events", "handled", "lettered", "said"),
    [
        (0, 0, 0, "0 events in between"),
        (1, 1, 0, "1 event in between: it is in the inbox and will be skipped"),
        (1, 0, 1, "1 event in between: it has an open dead letter, which stays"),
        (1, 0, 0, "1 event in between: it will be handled"),
        (3, 3, 0, "3 events in between: all are in the inbox and will be skipped"),
        (3, 0, 3, "3 events in between: all have an open dead letter, which stays"),
        (3, 1, 1, "3 events in between: 1 is in the inbox and will be skipped, 1 has an open dead letter, which "
         "stays, 1 will be handled"),
    ],
)  # fmt: skip
def test_back_it_says_what_is_skipped_and_what_is_handled(events: int, handled: int, lettered: int, said: str) -> None:
    assert between(SeekResult("index", 9, 0, events, handled, lettered, 0, True, None)) == said


@pytest.mark.parametrize(
    ("events", "handled", "lettered", "said"),
    [
        (0, 0, 0, "0 events in between"),
        (1, 0, 0, "1 event in between: it was not handled and will be skipped"),
        (2, 2, 0, "2 events in between: all were handled"),
        (4, 1, 1, "4 events in between: 1 was handled, 1 has an open dead letter, which stays, 2 were not handled "
         "and will be skipped"),
    ],
)  # fmt: skip
def test_ahead_it_says_what_is_passed_over(events: int, handled: int, lettered: int, said: str) -> None:
    assert between(SeekResult("index", 0, 9, events, handled, lettered, 0, True, None)) == said


def test_without_an_inbox_all_is_handled_again_that_has_no_open_letter() -> None:
    sought = SeekResult("index", 9, 0, 5, 2, 1, 0, False, None)
    assert between(sought) == (
        "5 events in between: 1 has an open dead letter, which stays, 4 will be handled again (no inbox)"
    )
