"""`python -m tests.faults.planted`: each bug is put into a copy of the tree, where a short run must see it.

A harness that has never found anything proves little. The copy is thrown away; nothing is changed here.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.faults.bugs import BUGS, Bug
from tests.faults.stage import faketime

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "pyproject.toml")
ATTEMPTS = 3


def plant(bug: Bug, folder: Path) -> None:
    """A copy of the tree with the bug in it."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    for edit in bug.edits:
        target = folder / edit.file
        text = target.read_text()
        if text.count(edit.right) != 1:
            raise SystemExit(
                f"{edit.file} no longer has the place for {bug.name!r}: bring tests/faults/bugs.py up to date"
            )
        target.write_text(text.replace(edit.right, edit.wrong))


def find(bug: Bug, seed: int) -> set[str]:
    """The checkers that saw something in a run on a tree with the bug."""
    with tempfile.TemporaryDirectory(prefix="aftercommit-planted-") as name:
        folder = Path(name)
        plant(bug, folder)
        command = [sys.executable, "-m", "tests.faults", *bug.run.split(), "--drain", "15", "--seed", str(seed)]
        run = subprocess.Popen(
            [*command, "--json", folder / "figures.json"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = run.communicate()
        except BaseException:
            run.terminate()
            run.wait()
            raise
        if not (folder / "figures.json").exists():
            raise SystemExit(f"the run on {bug.name!r} came to nothing:\n{said[-3000:]}")
        figures = json.loads((folder / "figures.json").read_text())
        return {checker for checker, count in figures["checkers"].items() if count}


@click.command(help=__doc__)
@click.option("--only", default="", help="Only bugs whose name contains this.")
@click.option("--seed", default=1, show_default=True, help="Of the first run; the next attempt takes the next.")
def main(only: str, seed: int) -> None:
    """Plant, run, tell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = [bug for bug in BUGS if only in bug.name]
    missed = 0
    for bug in chosen:
        if bug.needs == "clock" and faketime() is None:
            click.echo(f"skipped {bug.name}: libfaketime is not installed: apt install faketime")
            continue
        seen: set[str] = set()
        # A race needs its moment: what one short run does not meet, another may.
        for attempt in range(ATTEMPTS):
            seen |= find(bug, seed + attempt)
            if seen & bug.seen_by:
                break
        caught = bool(seen & bug.seen_by)
        missed += not caught
        others = ", ".join(sorted(seen)) or "nothing"
        click.echo(f"{'caught' if caught else 'MISSED'}  {bug.name}\n        seen by {others}")
    click.echo(f"{len(chosen) - missed} of {len(chosen)}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
