"""What the preview of a replay says about events that are older than the inbox is what the start does with them."""

from datetime import UTC, datetime

import pytest

from aftercommit.cli.repair_output import show_preview
from aftercommit.operate.repair.replay import Preview
from aftercommit.operate.repair.selection import Selection

HORIZON = datetime(2026, 1, 1, tzinfo=UTC)
FOUND = Preview("index", 3, 3, 0, 0, 2, HORIZON, 1, 3, HORIZON, HORIZON, ())


@pytest.mark.parametrize("again", [False, True])
def test_events_older_than_the_inbox_are_refused_unless_past_horizon_is_given(
    again: bool, capsys: pytest.CaptureFixture[str]
):
    show_preview(FOUND, Selection(), again=again, past_horizon=False)
    assert "are refused, unless you give --past-horizon" in capsys.readouterr().err

    show_preview(FOUND, Selection(), again=again, past_horizon=True)
    assert "may be handled twice" in capsys.readouterr().err
