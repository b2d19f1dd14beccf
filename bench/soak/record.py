"""What a soak found: a sample a minute, and whether the last third is like the middle one. Plain data and a page."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.report import markdown

Sample = Mapping[str, float]
PROCESSES: Final = ("relay", "worker", "serve", "publish", "read")
# What may be at most how much larger in the last third than in the middle one. Sizes and lags come in waves.
LIMITS: Final[Mapping[str, float]] = {
    **{f"RSS of {name}, MB": 1.1 for name in ("relay", "worker", "serve")},
    "WAL per event, B": 1.2,
    "outbox, MB": 1.5,
    "log per event, B": 1.1,
    "inbox per event, B": 1.1,
    "dead rows": 2.0,
    "lag, events": 2.0,
    "stream p99, ms": 2.0,
    "poll p99, ms": 2.0,
}
# Growth below these figures is not reported: a lag of three events instead of one means nothing.
FLOORS: Final[Mapping[str, float]] = {
    "outbox, MB": 20.0,
    "dead rows": 50_000.0,
    "lag, events": 500.0,
    "stream p99, ms": 250.0,
    "poll p99, ms": 2000.0,
}
SHORTEST: Final = 3
INTRODUCTION: Final = """\
# Soak

Written by `make soak`; do not edit. One PostgreSQL with `fsync` on, and processes of their own for the publisher, the
relay, three consumers that write a row per event, a feed server, and its readers: half of them hold streams open, half
poll every second. A sample is taken once a minute. A figure is *flat* if its median over the last third of the run is
not larger than over the middle third, within a limit that allows for waves of vacuum. At the end every consumer must
have handled every event once, and every reader must have seen every position once and in order.
"""


def flatness(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A verdict for each figure that has a limit; none where there are too few samples for thirds."""
    if len(samples) < SHORTEST:
        return []
    third = max(1, len(samples) // 3)
    middle, last = samples[third : 2 * third], samples[-third:]
    return [_verdict(name, limit, middle, last) for name, limit in LIMITS.items() if name in samples[0]]


def _verdict(name: str, limit: float, middle: Sequence[Sample], last: Sequence[Sample]) -> dict[str, Any]:
    before, after = (statistics.median(each[name] for each in part) for part in (middle, last))
    is_flat = after <= max(before * limit, FLOORS.get(name, 0.0))
    return {"what": name, "middle": before, "last": after, "limit": limit, "verdict": "flat" if is_flat else "GROWS"}


def exactness(published: int, effects: Mapping[str, tuple[int, int]], readers: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong, by whom; empty if every event was handled once by each consumer and seen once by each reader."""
    wrong = {}
    for consumer, (rows, different) in effects.items():
        if rows != published or different != published:
            wrong[f"consumer {consumer}"] = f"{rows:,} effects of {different:,} events, {published:,} were published"
    if readers["counts"] != [published]:
        wrong["readers"] = f"they saw {readers['counts']} events, {published:,} were published"
    if readers["faults"]:
        wrong["order"] = ", ".join(readers["faults"])
    return wrong


def is_green(record: Mapping[str, Any]) -> bool:
    """Whether everything is exact, and flat where the run was long enough to tell."""
    return not record["wrong"] and all(each["verdict"] == "flat" for each in record["flatness"])


def _verdict_of(record: Mapping[str, Any]) -> str:
    if not is_green(record):
        return "**not as it should be**, see below"
    return "flat and exact" if record["flatness"] else "exact; too short to tell whether it is flat"


def page(record: Mapping[str, Any]) -> str:
    """The record for a person."""
    about = [
        ("Run", f"{record['date']}, {record['minutes']:g} minutes"),
        ("Load", f"{record['rate']:g} events/s asked for, {record['readers']} readers"),
        ("Machine", ", ".join(f"{name} {value}" for name, value in record["machine"].items())),
        ("Versions", ", ".join(f"{name} {value}" for name, value in record["versions"].items())),
        ("Events", f"{record['published']:,} published, each handled by {len(record['effects'])} consumers"),
        ("Verdict", _verdict_of(record)),
    ]
    verdicts = [("what", "middle third", "last third", "may be times", "")]
    verdicts += [
        (each["what"], _short(each["middle"]), _short(each["last"]), f"{each['limit']:g}", each["verdict"])
        for each in record["flatness"]
    ]
    names = list(record["samples"][0])
    rows = [tuple(names), *(tuple(_short(sample[name]) for name in names) for sample in record["samples"])]
    parts = [INTRODUCTION, "\n".join(f"- {name}: {value}." for name, value in about)]
    if record["flatness"]:
        parts += ["\n## Flat\n", markdown(verdicts)]
    if record["wrong"]:
        parts += ["\n## Wrong\n", "\n".join(f"- {who}: {what}." for who, what in record["wrong"].items())]
    parts += ["\n## Minute by minute\n", markdown(rows)]
    return "\n".join(parts) + "\n"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
