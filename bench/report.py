"""The record as tables, for a terminal and for the page. Reads the record alone, so a page can be made again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Cells = tuple[str, ...]
Record = Mapping[str, Any]

INTRODUCTION = """\
# Benchmarks

Written by `make bench`; do not edit. Our parts beside raw SQL floors and beside peers, side by side in one run, on the
embedded PostgreSQL with `fsync` on and payloads of about 500 bytes. Absolute figures do not carry over to another
machine or another day. Ratios do: contestants take turns, round after round, and a ratio is the median of the ratios of
the rounds, with the lowest and the highest beside it. CPU is the processor time per event of the client's process and
of all of PostgreSQL's processes; its last column is the sum as a ratio to the same contestant that rates are compared
with, and the figure that a busy machine disturbs least; where a server answers over HTTP, it is that of whoever asks
and of the server. Everything in Python runs on uvloop: ours, the floors, the peers.
"""


def terminal(finding: Record) -> str:
    """One case for a terminal."""
    lines = [finding["title"]]
    for group in finding["groups"]:
        lines += ["", f"  {group['title']}", *(f"    {line}" for line in _aligned(list(rows_of(group))))]
        lines += [f"    {name}: absent, {why}" for name, why in group["absent"].items()]
    lines.append("")
    lines += [f"  {verdict['verdict']:12} {sentence(verdict)}" for verdict in finding["verdicts"]]
    return "\n".join(lines) + "\n"


def page(record: Record, plot: str) -> str:
    """The whole record as a Markdown page; `plot` is the picture's file name."""
    parts = [INTRODUCTION, _circumstances(record), "## Targets\n", markdown(list(_targets(record)))]
    parts.append(f"\n![The main figures of this run]({plot})\n")
    for finding in record["findings"]:
        parts += [f"## {finding['title']}\n", f"{finding['about']}\n"]
        for group in finding["groups"]:
            parts += [f"### {group['title']}\n", markdown(list(rows_of(group)))]
            parts += [f"\n{name}: absent, {why}." for name, why in group["absent"].items()]
            parts += [f"\n{each['name']}: {each['note']}." for each in _all(group) if each["note"]]
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def rows_of(group: Record) -> Iterator[Cells]:
    """A group as rows of cells, its head first."""
    # Records of earlier versions have neither.
    if group.get("grown"):
        yield from _grown(group)
        return
    if group.get("stations"):
        yield from _stations(group["delays"])
        return
    if group["delays"]:
        yield ("", "p50 ms", "low–high", "p99 ms", "low–high")
        for delays in group["delays"]:
            p50, p99 = delays["p50"], delays["p99"]
            yield (delays["name"], f"{p50['median']:.2f}", _range(p50), f"{p99['median']:.2f}", _range(p99))
        return
    yield (
        "",
        group["unit"],
        "low–high",
        f"to {group['baseline']}",
        "low–high",
        "CPU µs client",
        "server",
        "sum",
        "to it",
    )
    for series in group["series"]:
        yield _row(series)


def _grown(group: Record) -> Iterator[Cells]:
    small, large = group["sizes"]
    yield ("", "unit", small, large, "ratio", "low–high", group["floor"] or "floor")
    for each in group["grown"]:
        floor = _number(each["floor"]["median"]) if each["floor"] else "–"
        middle = [_number(each[size]["median"]) for size in ("small", "large")]
        yield (each["name"], each["unit"], *middle, f"{each['ratio']['median']:.2f}", _range(each["ratio"]), floor)


def _stations(delays: Sequence[Record]) -> Iterator[Cells]:
    """When an event passed each place, in the order of the medians, and how long it took from the one before."""
    yield ("", "p50 ms", "low–high", "p99 ms", "step ms")
    before = 0.0
    for each in sorted(delays, key=lambda each: float(each["p50"]["median"])):
        middle = each["p50"]["median"]
        yield (
            each["name"],
            f"{middle:.2f}",
            _range(each["p50"]),
            f"{each['p99']['median']:.2f}",
            f"{middle - before:.2f}",
        )
        before = middle


def _number(value: float) -> str:
    """Three digits of a small number, all of a large one."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _row(series: Record) -> Cells:
    rate, ratio = series["per_second"], series["to_baseline"]
    client, server = series["client_cpu_microseconds"], series["server_cpu_microseconds"]
    return (
        series["name"],
        f"{rate['median']:,.0f}",
        f"{rate['low']:,.0f}–{rate['high']:,.0f}",
        f"{ratio['median']:.2f}",
        _range(ratio),
        f"{client:,.1f}",
        f"{server:,.1f}",
        f"{client + server:,.1f}",
        f"{series['cpu_to_baseline']:.2f}",
    )


def sentence(verdict: Record) -> str:
    """A target and what was found, in words."""
    wanted = f"{verdict['direction']} {verdict['target']:g}"
    found = verdict["found"]
    if found is None:
        return f"{verdict['what']}: wanted {wanted}; {verdict['why']}"
    return f"{verdict['what']}: wanted {wanted}, found {found['median']:.2f} ({_range(found)})"


def markdown(rows: Sequence[Cells]) -> str:
    """Rows as a table of a Markdown page."""
    head, *body = rows
    aligned = ("---", *["---:"] * (len(head) - 1))
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, aligned, *body])


def _targets(record: Record) -> Iterator[Cells]:
    yield ("what", "target", "found", "low–high", "")
    for finding in record["findings"]:
        for verdict in finding["verdicts"]:
            found = verdict["found"]
            measured = (f"{found['median']:.2f}", _range(found)) if found else ("–", verdict["why"])
            word = f"**{verdict['verdict']}**" if verdict["verdict"] == "missed" else verdict["verdict"]
            yield (verdict["what"], f"{verdict['direction']} {verdict['target']:g}", *measured, word)


def _circumstances(record: Record) -> str:
    peers = {**record["peers"], **dict.fromkeys(record["absent"], "absent")}
    size = "the whole sizes" if record["scale"] == 1 else f"{record['scale']:g} of the whole sizes: rough figures"
    lines = [
        ("Machine", ", ".join(f"{name} {value}" for name, value in record["machine"].items())),
        ("Versions", ", ".join(f"{name} {value}" for name, value in record["versions"].items())),
        ("Peers", ", ".join(f"{name} {value}" for name, value in peers.items()) or "none in this run"),
        ("PostgreSQL", ", ".join(f"{name}={value}" for name, value in record["server"].items())),
        ("Run", f"{record['date']}, {record['rounds']} rounds, {size}, {record['minutes']:.0f} minutes"),
        ("Load of the machine before it (0 is idle)", f"{record['load_before']:g}"),
    ]
    return "\n".join(f"- {name}: {value}." for name, value in lines) + "\n"


def _all(group: Record) -> list[Record]:
    return [*group["series"], *group["delays"]]


def _aligned(rows: Sequence[Cells]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def _range(spread: Record) -> str:
    return f"{spread['low']:.2f}–{spread['high']:.2f}"
