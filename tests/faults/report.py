"""What a run has shown: a table, a JSON file, a summary to commit. Void is not green."""

import json
import os
import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tests.faults.checkers import CHECKERS, Violation
from tests.faults.options import FLOW_LIMIT, Options, minimum, unreached
from tests.faults.scene import Tally


@dataclass(frozen=True)
class Report:
    """A run that is over."""

    options: Options
    tally: Tally
    seconds: float
    kept: Path | None

    @property
    def violations(self) -> list[Violation]:
        return self.tally.violations

    @property
    def void(self) -> list[str]:
        """Why nothing was shown; empty when enough happened."""
        wanted = minimum(self.options)
        short = [
            f"{name}: {self.tally.counts[name]} of {count}"
            for name, count in wanted.items()
            if self.tally.counts[name] < count
        ]
        missed = unreached(self.options, set(self.tally.reached))
        return short + ([f"nobody was killed at {', '.join(missed)}"] if missed else [])

    @property
    def verdict(self) -> str:
        return "VIOLATION" if self.violations else "VOID" if self.void else "green"

    @property
    def warnings(self) -> list[str]:
        """Figures over their limit: on a busy machine they tell of the machine."""
        limits = {
            "takeover": (self.tally.recoveries.takeover, self.options.takeover_limit),
            "flow after PostgreSQL's return": (self.tally.recoveries.flow, FLOW_LIMIT),
        }
        return [
            f"{name} took up to {max(seconds):.1f} s: "
            f"{sum(one > limit for one in seconds)} of {len(seconds)} times over {limit:g} s"
            for name, (seconds, limit) in limits.items()
            if seconds and max(seconds) > limit
        ]


def with_missing(options: Options, missing: dict[str, str]) -> Options:
    """The faults that cannot be made here are said, and not counted on."""
    names = {"pgbouncer": "pooler"}
    said = {names.get(name, name): reason for name, reason in missing.items()}
    for name, reason in said.items():
        if name in options.only:
            click.echo(f"without {name}: {reason}", err=True)
    return replace(options, missing=said)


def progress(options: Options, tally: Tally, seconds: float) -> str:
    counts = tally.counts
    return (
        f"{seconds:5.0f} s  kills {counts['kills']}/{options.kills}  crashes {counts['crashes']}/{options.crashes}"
        f"  zombies {counts['zombies']}/{options.zombies}  checked events {counts['events']}"
        f"  violations {len(tally.violations)}  {tally.phase}"
    )


def tell(report: Report, json_file: Path, summary: Path | None) -> None:
    """Table on stdout, figures as JSON, summary as Markdown."""
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(figures(report), indent=2) + "\n")
    click.echo("\n".join(_lines(report)))
    click.echo(f"figures: {json_file}", err=True)
    if report.kept is not None:
        click.echo(f"histories and logs: {report.kept}", err=True)
    if summary is not None:
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(markdown(report))
        click.echo(f"summary: {summary}", err=True)


def figures(report: Report) -> dict[str, Any]:
    """Everything, for programs."""
    found = Counter(violation.checker for violation in report.violations)
    recoveries = report.tally.recoveries
    return {
        "verdict": report.verdict,
        "date": datetime.now(UTC).date().isoformat(),
        "seed": report.options.seed,
        "asked": {**report.options.counted, "seconds": report.options.seconds, "lease": report.options.lease},
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "processor": platform.machine()},
        "seconds": round(report.seconds, 1),
        "counts": dict(sorted(report.tally.counts.items())),
        "killed_at": dict(sorted(report.tally.reached.items())),
        "checkers": {name: found[name] for name in CHECKERS},
        "violations": [f"{one.checker}: {one.what}" for one in _some(report.violations, 50)],
        "void": report.void,
        "missing": report.options.missing,
        "recovery": {
            "takeover": _quantiles(recoveries.takeover),
            "takeover_in_trouble": _quantiles(recoveries.takeover_in_trouble),
            "flow_in_trouble": _quantiles(recoveries.flow_in_trouble),
            "progress": _quantiles(recoveries.progress),
            "flow": _quantiles(recoveries.flow),
            "drain": _quantiles(report.tally.drains),
        },
        "warnings": report.warnings,
        "late_takeovers": recoveries.late,
    }


def markdown(report: Report) -> str:
    """A summary that a person reads, with the command that repeats the schedule."""
    options, tally = report.options, report.tally
    asked = (
        f"--kills {options.kills} --crashes {options.crashes} --zombies {options.zombies} --restores {options.restores}"
    )
    when = datetime.now(UTC).date().isoformat()
    lines = [
        f"# Fault run of {when}: {report.verdict}",
        "",
        f"{report.seconds / 60:.0f} minutes on {os.cpu_count()} cores ({platform.machine()}, {platform.system()}), "
        f"PostgreSQL 18 with fsync on, leases of {options.lease:g} s.",
        "",
        f"    python -m tests.faults {asked} --seconds {options.seconds:.0f} --seed {options.seed}",
        "",
        "| what happened | times |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in sorted(_shown(tally).items())),
        "",
        "| checker | violations |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {count} |" for name, count in figures(report)["checkers"].items()),
        "",
        "| recovery | times | median | longest |",
        "|---|---|---|---|",
        *(_recovery_row(name, seconds) for name, seconds in _recoveries(report)),
        "",
        "| killed at | times |",
        "|---|---|",
        *(f"| `{point}` | {count:,} |" for point, count in sorted(tally.reached.items())),
        "",
        *(f"- {line}" for line in [*report.void, *report.warnings, *options.missing.values()]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _lines(report: Report) -> list[str]:
    found = Counter(violation.checker for violation in report.violations)
    lines = [f"{name:32}{count:>10,}" for name, count in sorted(_shown(report.tally).items())]
    lines += ["", *(f"{name.replace('_', ' '):32}{found[name]:>10}" for name in CHECKERS), ""]
    for name, seconds in _recoveries(report):
        if seconds:
            lines.append(f"{name:32}{statistics.median(seconds):>9.2f} s median {max(seconds):>7.2f} s longest")
    lines += [f"warning: {line}" for line in report.warnings]
    lines += [f"late takeover: {line}" for line in report.tally.recoveries.late]
    lines += [f"{one.checker}: {one.what}" for one in _some(report.violations, 5)]
    lines += [f"void: {line}" for line in report.void]
    points = len(report.tally.reached)
    lines.append(f"{report.verdict}  seed {report.options.seed}, {report.seconds:.0f} s, killed at {points} points")
    return lines


def _some(violations: Sequence[Violation], of_each: int) -> list[Violation]:
    seen: Counter[str] = Counter()
    chosen = []
    for violation in violations:
        seen[violation.checker] += 1
        if seen[violation.checker] <= of_each:
            chosen.append(violation)
    return chosen


def _shown(tally: Tally) -> dict[str, int]:
    return dict(tally.counts)


def _recoveries(report: Report) -> list[tuple[str, Sequence[float]]]:
    recoveries = report.tally.recoveries
    return [
        ("takeover after a kill", recoveries.takeover),
        ("the same, everybody else in trouble too", recoveries.takeover_in_trouble),
        ("progress after a kill", recoveries.progress),
        ("flow after a crash or full disk", recoveries.flow),
        ("the same, relays in trouble too", recoveries.flow_in_trouble),
        ("drain in calm", report.tally.drains),
    ]


def _recovery_row(name: str, seconds: Sequence[float]) -> str:
    if not seconds:
        return f"| {name} | 0 | | |"
    return f"| {name} | {len(seconds):,} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s |"


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {"count": 0}
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "p50": round(statistics.median(ordered), 3),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "max": round(ordered[-1], 3),
    }
