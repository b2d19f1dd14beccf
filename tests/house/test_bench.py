"""The bench cannot rot: every case runs, on sizes so small that its figures mean nothing."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import growing, plot, report
from bench.cases import CASES
from bench.figures import Delays, Finding, Group, Grown, Sample, Series, Spread, Verdict, against, as_json, percentile
from bench.peers import environment, roster
from bench.peers.peer import Peer, PeerFailed
from bench.soak import record as soak
from bench.soak.readers import Place
from bench.stage import Contestant, ContestantFailed, Sizes, Stage

REPOSITORY = Path(__file__).resolve().parents[2]


def series(name: str, *rates: float, peer: str | None = None) -> Series:
    return Series(name, peer, samples=[Sample(int(rate), 1.0, 0.001, 0.002) for rate in rates])


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("cases", [("bulk", "drain"), pytest.param(tuple(CASES), marks=pytest.mark.long)])
def test_cases_run_and_the_record_the_page_and_the_picture_are_written(tmp_path: Path, cases: tuple[str, ...]):
    record_file, page = tmp_path / "record.json", tmp_path / "page"
    options = [
        *(word for case in cases for word in ("--only", case)),
        "--quick",
        "--no-peers",
        "--rounds",
        "1",
        "--scale",
        "0.001",
        "--json",
        str(record_file),
        "--page",
        str(page),
    ]
    command = [sys.executable, "-m", "bench", *options]

    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    record = json.loads(record_file.read_text())
    assert [finding["case"] for finding in record["findings"]] == list(cases)
    written = (page / "benchmarks.md").read_text()
    for finding in record["findings"]:
        for verdict in finding["verdicts"]:
            assert verdict["what"] in written
            assert verdict["verdict"] in ("met", "missed", "not measured")
    assert ElementTree.parse(page / "benchmarks.svg").getroot().tag.endswith("svg")
    assert socket.gethostname() not in written
    assert os.environ.get("TMPDIR", "/tmp") not in written


def test_a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_the_medians():
    ours, floor = series("ours", 100, 10, 300), series("floor", 100, 20, 200)

    assert ours.ratio_to(floor) == Spread(median=1.0, low=0.5, high=1.5)


@pytest.mark.parametrize(
    ("direction", "found", "word"),
    [("at least", 0.9, "met"), ("at least", 0.89, "missed"), ("at most", 1.0, "met"), ("at most", 1.01, "missed")],
)
def test_a_target_is_met_or_missed_by_the_median(direction, found, word):
    target = 0.9 if direction == "at least" else 1.0

    assert Verdict("what", direction, target, Spread(found, 0.0, 9.0)).word == word


def test_what_could_not_be_compared_is_not_measured_and_says_why():
    verdict = against("bus: times the best Python peer", "at least", 2.5, series("bus", 10), None)

    assert verdict.word == "not measured"
    assert "nobody to compare with" in report.sentence(as_json(verdict))


def test_percentiles_are_taken_by_rank():
    values = [float(number) for number in range(1, 101)]

    assert percentile(values, 0.50) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def a_record() -> dict[str, object]:
    rates = Group(
        "a handler per event", "ev/s", [series("bus", 9000, 9100), series("other <&> one", 3000, 2900, peer="python")]
    )
    rates.absent["pg-boss"] = "pg-boss could not be installed"
    delays = Group("commit to handler", "ms", delays=[Delays("bus", rounds=[[1.0, 2.0], [1.5, 2.5]])])
    verdicts = [
        Verdict("bus: times the best", "at least", 2.5, Spread(3.0, 2.9, 3.1)),
        Verdict("p50", "at most", 1, None, "no"),
    ]
    return {
        "date": "2026-01-01",
        "minutes": 1.0,
        "load_before": 0.1,
        "rounds": 2,
        "scale": 0.1,
        "machine": {"cores": "2"},
        "versions": {"Python": "3.11"},
        "server": {"fsync": "on"},
        "peers": {"other": "1.0"},
        "absent": {"pg-boss": "pg-boss could not be installed"},
        "findings": [as_json(Finding("bus", "Bus", "About it.", [rates, delays], verdicts))],
    }


def test_the_page_names_an_absent_peer_and_every_verdict():
    written = report.page(a_record(), "picture.svg")

    assert "pg-boss: absent, pg-boss could not be installed" in written
    assert "| bus: times the best | at least 2.5 | 3.00 | 2.90–3.10 | met |" in written
    assert "not measured" in written
    assert "rough figures" in written


def test_what_grows_is_told_as_a_ratio_of_the_rounds_with_its_floor():
    grown = Grown("page", "ms", small=[1.0, 2.0, 4.0], large=[2.0, 2.0, 12.0], floor=[0.5])
    group = Group("log", "", grown=[grown], sizes=("few", "many"), floor="plain SQL")

    head, row = report.rows_of(as_json(group))

    assert head == ("", "unit", "few", "many", "ratio", "low–high", "plain SQL")
    assert row == ("page", "ms", "2", "2", "2.00", "1.00–3.00", "0.5")
    assert growing.ratio(group, "page", "at most", 2.0).word == "met"
    assert growing.value(group, "page", "at most", 1.9).word == "missed"


def test_stations_are_told_in_the_order_in_which_events_pass_them():
    delays = [Delays("handler called", rounds=[[3.0]]), Delays("COMMIT returned", rounds=[[1.0]])]
    group = Group("where a millisecond goes", "ms", delays=delays, stations=True)

    rows = list(report.rows_of(as_json(group)))

    assert [(row[0], row[-1]) for row in rows[1:]] == [("COMMIT returned", "1.00"), ("handler called", "2.00")]


def soaked(memory: list[float]) -> list[dict[str, float]]:
    return [{"RSS of relay, MB": each, "lag, events": 3.0} for each in memory]


def test_a_soak_tells_growth_from_the_middle_third_to_the_last():
    memories = {"warm-up": [10.0, 50, 50, 50, 50, 50], "leak": [50.0, 60, 70, 80, 90, 100]}
    verdicts = {name: [each["verdict"] for each in soak.flatness(soaked(memory))] for name, memory in memories.items()}

    assert verdicts == {"warm-up": ["flat", "flat"], "leak": ["GROWS", "flat"]}
    assert soak.flatness(soaked([50, 60])) == []


def test_a_soak_finds_what_is_lost_doubled_or_out_of_order():
    seen = {"counts": [10], "faults": []}
    torn = {"counts": [9, 10], "faults": ["3 after 1"]}

    assert soak.exactness(10, {"first": (10, 10)}, seen) == {}
    assert soak.exactness(10, {"first": (11, 10)}, seen).keys() == {"consumer first"}
    assert soak.exactness(10, {"first": (9, 9)}, seen).keys() == {"consumer first"}
    assert soak.exactness(10, {"first": (10, 10)}, torn).keys() == {"readers", "order"}


def test_a_reader_of_a_soak_notices_a_position_that_is_missing_or_comes_twice():
    place, delays = Place(), list[float]()

    count = place.take(b'{"position":1,"number":1,"sent":5},{"position":3,"number":3,"sent":5}', delays)
    place.take(b'{"position":3,"number":3,"sent":5}', delays)

    assert (count, place.faults) == (2, ["3 after 1", "3 after 3"])


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_short_soak_is_exact(tmp_path: Path):
    command = [sys.executable, "-m", "bench.soak", "--minutes", "0.1", "--rate", "50", "--readers", "4", "--out"]

    done = subprocess.run([*command, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "soak.json").read_text())
    assert record["published"] > 0
    assert record["wrong"] == {}
    assert "exact; too short to tell" in (tmp_path / "soak.md").read_text()


def test_the_picture_is_well_formed_whatever_contestants_are_called():
    root = ElementTree.fromstring(plot.svg(a_record()))

    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "other <&> one" in texts


class NoServer:
    """Stands where a stage has its server, in tests that start none."""

    pid = None


def test_a_contestant_that_fails_leaves_the_group_and_the_others_go_on():
    stage = Stage(NoServer(), Sizes(1.0), rounds=2)  # type: ignore[arg-type]
    plays: Iterator[Sample] = iter([Sample(1, 1.0), Sample(2, 1.0)])

    def twice() -> Sample:
        try:
            return next(plays)
        except StopIteration:
            raise ContestantFailed("it ended") from None

    group = stage.measure("t", "ev/s", [Contestant("good", lambda: Sample(5, 1.0)), Contestant("bad", twice)])

    assert [each.name for each in group.series] == ["good"]
    assert group.absent == {"bad": "it ended"}
    assert len(group["good"].samples) == 2


def test_a_peer_that_cannot_be_installed_is_absent_and_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str, *beside: str) -> str:
        raise environment.NotInstalled(f"{name} could not be installed")

    monkeypatch.setattr(environment, "python_package", refuse)
    monkeypatch.setattr(environment, "node_package", refuse)

    peers = roster.assemble(Stage(NoServer(), Sizes(1.0), 1))  # type: ignore[arg-type]

    assert peers.present == []
    assert set(peers.absent) == {candidate.name for candidate in roster.ROSTER}


def test_a_peer_whose_process_ends_fails_with_its_name_and_what_it_was_asked(monkeypatch: pytest.MonkeyPatch):
    stage = Stage(NoServer(), Sizes(1.0), 1)  # type: ignore[arg-type]
    monkeypatch.setattr(stage, "database", lambda name: "postgresql:///nowhere")
    peer = Peer("some-peer", "1.0", [sys.executable, "-c", "pass"], language="python", backlog=1.0)

    with pytest.raises(PeerFailed, match="some-peer failed when it was asked to open"):
        peer.open(stage)
