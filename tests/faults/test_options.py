"""What a run must have done to count, and whether the harness knows all that it is to break."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.bugs import BUGS, Bug
from tests.faults.checkers import CHECKERS, Violation
from tests.faults.options import FAULTS, NEWER_CODE_POINTS, POINTS, Options, minimum, unreached
from tests.faults.report import Report, figures, markdown
from tests.faults.scene import Tally

ROOT = Path(__file__).resolve().parents[2]
REACHED = re.compile(r'reach\(\s*"((?:relay|consumer|listener)\.\w+)"')


def report(options: Options, counts: dict[str, int], *violations: Violation) -> Report:
    reached = Counter({point: 1 for points in POINTS.values() for point in points})
    return Report(options, Tally(Counter(counts), reached, list(violations)), 600.0, None)


def enough(options: Options) -> dict[str, int]:
    return minimum(options)


def test_the_harness_kills_at_every_point_that_relay_consumer_and_listener_have():
    there = {point for path in (ROOT / "src").rglob("*.py") for point in REACHED.findall(path.read_text())}

    known = {point for points in POINTS.values() for point in points if not point.startswith("handler.")}
    assert known | set(NEWER_CODE_POINTS) == there


def test_a_run_with_enough_of_everything_and_no_violation_is_green():
    options = Options()

    assert report(options, enough(options)).verdict == "green"


@pytest.mark.parametrize("name", sorted(minimum(Options())))
def test_a_run_with_too_little_of_anything_is_void(name: str):
    options = Options()
    counts = enough(options)
    counts[name] -= 1

    outcome = report(options, counts)

    assert outcome.verdict == "VOID"
    assert outcome.void == [f"{name}: {counts[name]} of {counts[name] + 1}"]


def test_a_violation_counts_even_when_little_has_happened():
    assert report(Options(), {}, Violation("lost", "a")).verdict == "VIOLATION"


def test_a_point_at_which_nobody_was_killed_makes_a_long_run_void():
    options = Options()
    outcome = report(options, enough(options))
    del outcome.tally.reached["relay.counted"]

    assert outcome.void == ["nobody was killed at relay.counted"]


def test_what_cannot_be_done_here_is_not_asked_for():
    options = Options(missing={"pooler": "not installed", "disk": "not root"})

    assert not {"pooler", "disk"} & minimum(options).keys()
    assert "listener.deaf" not in unreached(options, set())


def test_the_summary_repeats_the_command_and_all_figures():
    options = Options(seed=42)
    outcome = report(options, enough(options), Violation("poll_skip", "poller-1 never saw position 3"))
    outcome.tally.recoveries.takeover += [0.5, 1.5]

    text = markdown(outcome)

    assert "--seed 42" in text
    assert "| poll skip | 1 |" in text
    assert "| takeover after a kill | 2 | 1.00 s | 1.50 s |" in text
    assert figures(outcome)["verdict"] == "VIOLATION"
    assert figures(outcome)["asked"]["kills"] == options.kills
    assert figures(outcome)["recovery"]["takeover"]["max"] == 1.5


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_has_its_places_and_is_python_afterwards(bug: Bug):
    assert bug.seen_by <= CHECKERS.keys()
    texts: dict[str, str] = {}
    for edit in bug.edits:
        text = texts.setdefault(edit.file, (ROOT / edit.file).read_text())
        assert text.count(edit.right) == 1, edit.right
        texts[edit.file] = text.replace(edit.right, edit.wrong)
    for name, text in texts.items():
        if name.endswith(".py"):
            ast.parse(text)


def test_enough_bugs_are_planted():
    assert len(BUGS) >= 12
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_every_fault_is_explained():
    text = (ROOT / "docs" / "faults.md").read_text()

    assert [fault for fault in FAULTS if f"`{fault}`" not in text] == []
    assert [name for name in CHECKERS if f"| {name.replace('_', ' ')} |" not in text] == []
