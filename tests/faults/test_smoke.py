"""The harness itself, run for a moment: its processes, its faults, its verdict, and nothing left behind."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: pg_basebackup does not take long ones."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        yield Path(folder)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_short_run_is_green_and_leaves_nothing_behind(tmp_path: Path):
    asked = ["--seconds", "5", "--kills", "5", "--crashes", "1", "--zombies", "1", "--restores", "1", "--seed", "7"]
    figures = tmp_path / "figures.json"

    with harness(tmp_path, *asked, "--only", "kills,crashes,zombies,network,restores", "--json", str(figures)) as run:
        said, _ = run.communicate()

    found = json.loads(figures.read_text())
    assert found["violations"] == [], said
    # On a machine with much else to do it may be too little to count; what counts here is that all of it works.
    assert run.returncode in (0, 4), said
    assert found["counts"]["kills"] > 0
    assert found["counts"]["restores"] == 1
    assert found["counts"]["events"] > 0
    assert left_behind(tmp_path) == []


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_a_harness_that_is_killed_leaves_nothing_behind(tmp_path: Path):
    with harness(tmp_path, "--only", "restarts", "--seconds", "60") as run:
        until(lambda: any(tmp_path.glob("aftercommit-faults-*/server/postgres-*/postmaster.pid")))
        run.kill()

    until(lambda: left_behind(tmp_path) == [])


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_an_interrupted_harness_ends_in_order(tmp_path: Path):
    with harness(tmp_path, "--only", "restarts", "--seconds", "60") as run:
        until(lambda: any(tmp_path.glob("aftercommit-faults-*/scene-1/writer-0.jsonl")))
        run.terminate()
        said, _ = run.communicate()

    assert run.returncode == 130, said
    assert left_behind(tmp_path) == []


@pytest.mark.thorough
def test_an_unknown_fault_is_refused_with_those_that_are_known(tmp_path: Path):
    with harness(tmp_path, "--only", "earthquakes") as run:
        said, _ = run.communicate()

    assert run.returncode == 2
    assert "'earthquakes' is not known: choose from kills, crashes, zombies" in said


def harness(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """A run that keeps all its files in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_behind(folder: Path) -> list[str]:
    """Folders of runs, and processes that know of them."""
    found = [path.name for path in folder.glob("aftercommit-faults-*")]
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if f"{folder}/aftercommit-faults-" in line:
            found.append(line)
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s"
        time.sleep(0.05)
