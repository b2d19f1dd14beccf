"""Our parts beside raw SQL floors and beside peers, side by side in one run on an embedded PostgreSQL of its own.

Tables go to standard output, progress to standard error. A target that is missed is said to be missed; it is no error.
"""

import json
import os
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from aftercommit.embedded import EmbeddedPostgres
from bench import machine, plot, report
from bench.cases import CASES
from bench.figures import as_json
from bench.peers.peer import Peers
from bench.peers.roster import assemble
from bench.stage import SETTINGS, Sizes, Stage, tell

QUICK_SCALE, QUICK_ROUNDS, ROUNDS = 0.06, 3, 5
PAGE, PLOT = "benchmarks.md", "benchmarks.svg"


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Every case, small: a few minutes. The figures are rough.")
@click.option("--only", "cases", multiple=True, type=click.Choice(list(CASES)), help="This case; may be repeated.")
@click.option("--no-peers", is_flag=True, help="Ours and the floors alone: nothing is installed.")
@click.option("--rounds", type=click.IntRange(min=1), help=f"Rounds, {ROUNDS} if not given ({QUICK_ROUNDS} if quick).")
@click.option("--scale", type=click.FloatRange(min=0.001, max=10), help="Sizes as a share of those of a whole run.")
@click.option("--json", "record_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the record here.")
@click.option("--page", type=click.Path(file_okay=False, path_type=Path), help=f"Write {PAGE} and {PLOT} here.")
@click.option("--from", "earlier", type=click.Path(exists=True, path_type=Path), help="Measure nothing: read a record.")
def main(
    quick: bool,
    cases: tuple[str, ...],
    no_peers: bool,
    rounds: int | None,
    scale: float | None,
    record_file: Path | None,
    page: Path | None,
    earlier: Path | None,
) -> None:
    if earlier is not None:
        record = json.loads(earlier.read_text())
        for finding in record["findings"]:
            click.echo(report.terminal(finding))
    else:
        sizes = Sizes(scale or (QUICK_SCALE if quick else 1.0))
        record = measure(cases or tuple(CASES), sizes, rounds or (QUICK_ROUNDS if quick else ROUNDS), not no_peers)
    if record_file is not None:
        record_file.parent.mkdir(parents=True, exist_ok=True)
        record_file.write_text(json.dumps(record, indent=1) + "\n")
    if page is not None:
        page.mkdir(parents=True, exist_ok=True)
        (page / PAGE).write_text(report.page(record, PLOT))
        (page / PLOT).write_text(plot.svg(record))


def measure(cases: tuple[str, ...], sizes: Sizes, rounds: int, with_peers: bool) -> dict[str, Any]:
    """Run the cases on a server in a temporary folder; the record."""
    # Whoever ends a run early ends its servers, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    started, load = time.monotonic(), os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="aftercommit-bench-") as folder,
        EmbeddedPostgres(Path(folder), settings=SETTINGS) as server,
    ):
        stage = Stage(server, sizes, rounds)
        with stage.connect() as connection:
            versions = machine.versions(connection)
        stage.age()
        tell("peers …" if with_peers else "no peers")
        peers = assemble(stage) if with_peers else Peers()
        try:
            findings = [run(stage, peers, name) for name in cases]
        finally:
            peers.close()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "load_before": round(load, 1),
        "rounds": rounds,
        "scale": sizes.scale,
        "machine": machine.describe(),
        "versions": versions,
        "server": SETTINGS,
        "peers": {peer.name: peer.version for peer in peers.present},
        "absent": peers.absent,
        "findings": findings,
    }


def run(stage: Stage, peers: Peers, case: str) -> dict[str, Any]:
    """One case, its tables printed as soon as it is through."""
    tell(f"{case} …")
    finding: dict[str, Any] = as_json(CASES[case](stage, peers))
    click.echo(report.terminal(finding))
    return finding


if __name__ == "__main__":
    main()
