"""`python -m tests.faults`: the run, its live line, its verdict."""

import asyncio
import contextlib
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import click

from tests.faults import report
from tests.faults.options import FAULTS, POINTS, Options
from tests.faults.scene import Scene, Tally
from tests.faults.stage import Stage, stage

GREEN, VIOLATION, VOID = 0, 1, 4


async def run(options: Options, history_folder: Path, quiet: bool = False) -> report.Report:
    """The whole run; histories of a bad one are moved to a folder that stays."""
    tally = Tally()
    began = time.monotonic()
    async with stage() as place:
        options = report.with_missing(options, place.missing)
        showing = asyncio.ensure_future(_show(options, tally, began)) if not quiet else None
        try:
            for number in range(1, options.scenes + 1):
                await Scene(number, options, place, tally).play()
                if tally.violations:
                    break
        finally:
            if showing is not None:
                showing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await showing
        kept = _keep(place, tally, history_folder)
    return report.Report(options, tally, time.monotonic() - began, kept)


def _keep(place: Stage, tally: Tally, folder: Path) -> Path | None:
    if not tally.kept:
        return None
    for scene in tally.kept:
        shutil.copytree(scene, folder / scene.name, dirs_exist_ok=True)
    shutil.copy(place.server.cluster.log, folder / "postgres.log")
    return folder


async def _show(options: Options, tally: Tally, began: float) -> None:
    """One line on stderr, renewed every second on a terminal and every ten seconds elsewhere."""
    live = sys.stderr.isatty()
    while True:
        await asyncio.sleep(1.0 if live else 10.0)
        line = report.progress(options, tally, time.monotonic() - began)
        click.echo(f"\r\033[K{line}" if live else line, err=True, nl=not live)


@click.command(help=__doc__)
@click.option(
    "--kills",
    type=click.IntRange(0),
    default=300,
    show_default=True,
    help="SIGKILLs of relays, workers, writers and pollers.",
)
@click.option("--crashes", type=click.IntRange(0), default=20, show_default=True, help="Crashes of PostgreSQL.")
@click.option(
    "--zombies",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Processes stopped until others have taken over.",
)
@click.option(
    "--restores",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Times that PostgreSQL is restored from a backup some seconds old.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=0.0,
    help="Time under faults. [default: 10 minutes, more for more kills]",
)
@click.option("--seed", default=None, type=int, help="Repeats the schedule of a run.")
@click.option("--only", default="", help=f"Only these faults, comma-separated: {', '.join(FAULTS)}.")
@click.option("--points", default="", help="Kill at these points alone, comma-separated.")
@click.option(
    "--scene",
    "scene_seconds",
    type=click.FloatRange(5),
    default=120.0,
    show_default=True,
    help="Seconds after which all is checked.",
)
@click.option(
    "--drain",
    type=click.FloatRange(1),
    default=90.0,
    show_default=True,
    help="Seconds without progress, in calm, that are too many.",
)
@click.option("--keep", is_flag=True, help="Keep the histories of a green run too.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where the figures go, as JSON.")
@click.option("--summary", type=click.Path(path_type=Path), help="Where a readable summary goes, as Markdown.")
@click.option("--record", type=click.Path(path_type=Path), help="Both, as NAME.json and NAME.md, for the repository.")
def main(
    kills: int,
    crashes: int,
    zombies: int,
    restores: int,
    seconds: float,
    seed: int | None,
    only: str,
    points: str,
    scene_seconds: float,
    drain: float,
    keep: bool,
    json_file: Path | None,
    summary: Path | None,
    record: Path | None,
) -> None:
    """Read the options, run, tell."""
    chosen = _listed(only, FAULTS, "--only") or list(FAULTS)
    known = sorted({point for points_of_kind in POINTS.values() for point in points_of_kind})
    options = Options(
        kills=kills,
        crashes=crashes,
        zombies=zombies,
        restores=restores,
        # Two kills in a second is what two cores can replace; a crash needs a few seconds.
        seconds=seconds or max(600.0, kills / 2.0, crashes * 8.0, zombies * 5.0),
        seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed,
        only=frozenset(chosen),
        points=tuple(_listed(points, known, "--points")),
        scene_seconds=scene_seconds,
        drain_seconds=drain,
        keep=keep,
    )
    click.echo(f"seed {options.seed}: {options.scenes} scenes, {options.seconds:.0f} s under faults", err=True)
    folder = Path("build") / "faults" / f"seed-{options.seed}"
    # Both end everything in order, also where a shell in the background has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        outcome = asyncio.run(run(options, folder))
    except KeyboardInterrupt:
        click.echo("interrupted: everything was ended", err=True)
        sys.exit(130)
    if record is not None:
        json_file, summary = json_file or record.with_suffix(".json"), summary or record.with_suffix(".md")
    report.tell(outcome, json_file or Path("build") / "faults" / "last.json", summary)
    sys.exit(VIOLATION if outcome.violations else VOID if outcome.void else GREEN)


def _listed(given: str, known: tuple[str, ...] | list[str], option: str) -> list[str]:
    chosen = [name.strip() for name in given.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise click.BadParameter(f"{name!r} is not known: choose from {', '.join(known)}", param_hint=option)
    return chosen


if __name__ == "__main__":
    main()
