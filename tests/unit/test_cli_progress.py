"""Progress of a replay in a pipe: what moves is told, what stands still is not told again and again."""

from uuid import UUID

import pytest

from aftercommit.cli import progress
from aftercommit.cli.progress import ProgressBar
from aftercommit.operate import ReplayProgress

ID = UUID(int=7)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)


def test_a_line_is_written_when_a_count_changes_and_not_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        for done in (0, 0, 0, 1, 1):
            bar.show(ReplayProgress(ID, "running", 7, done=done, under_way=7 - done))

    assert capsys.readouterr().err.splitlines() == ["0/7 7 in progress", "1/7 6 in progress"]


def test_who_is_missing_and_the_way_out_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        for missing in ((), ("it has no worker",), (), ("it has no worker",), ("it is paused",)):
            bar.show(ReplayProgress(ID, "running", 2, under_way=2, missing=missing))

    assert capsys.readouterr().err.splitlines() == [
        "0/2 2 in progress",
        "it has no worker",
        f"the replay is waiting for that. Ctrl-C stops it here; `aftercommit replay resume {ID}` continues it",
        "it is paused",
    ]
