"""The main figures as one SVG, written by hand: bars with their spread, readable on a light page and on a dark one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, LABELS, VALUES = 880, 260, 110
BAR, GAP, HEAD, MARGIN = 16, 6, 34, 20
FARTHEST = 20
FLOORS = ("raw", "COPY", "unnest", "no ", "NOTIFY", "by hand", "route")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600 } .quiet { fill: #59636e }
  .ours { fill: #2563a8 } .floor { fill: #9aa4af } .peer { fill: #c9832b }
  .spread { stroke: #1f2328; stroke-width: 1.5 } .target { stroke: #b3261e; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .quiet { fill: #9198a1 } .ours { fill: #5b9bd9 } .floor { fill: #6b7480 }
    .peer { fill: #dca25c } .spread { stroke: #e6edf3 } .target { stroke: #ff7b72 }
  }
"""
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """One contestant: what it is called, its median and spread, and whose it is."""

    label: str
    median: float
    low: float
    high: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars that share a scale; a target is a line across them."""

    title: str
    bars: Sequence[Bar]
    target: float | None = None

    @property
    def height(self) -> int:
        """Of the panel with its title."""
        return HEAD + len(self.bars) * (BAR + GAP) + MARGIN


def svg(record: Record) -> str:
    """The picture of a record."""
    panels = [panel for finding in record["findings"] for panel in _panels(finding) if panel.bars]
    height = sum(panel.height for panel in panels) + MARGIN
    drawn: list[str] = []
    top = MARGIN
    for panel in panels:
        drawn += _draw(panel, top)
        top += panel.height
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
    title = "<title>Main figures of the benchmark: ours, floors and peers</title>"
    return "\n".join([opening, title, f"<style>{STYLE}</style>", *drawn, "</svg>"]) + "\n"


def _panels(finding: Record) -> Iterator[Panel]:
    if finding["case"] == "publish":
        yield Panel(
            "Publish in a transaction: share of the raw INSERT on the same driver",
            [_share(verdict) for verdict in finding["verdicts"] if _is_share(verdict)],
            next((verdict["target"] for verdict in finding["verdicts"] if _is_share(verdict)), None),
        )
        return
    for group in finding["groups"]:
        if group.get("stations"):
            continue
        if group["delays"]:
            title = f"{finding['title']}: p50 and, as a line, p99, ms; who polls is left out"
            yield Panel(title, _comparable([_delay(each) for each in group["delays"]]))
        else:
            yield Panel(
                f"{finding['title']}: {group['title']}, {group['unit']}", [_rate(each) for each in group["series"]]
            )


def _comparable(bars: list[Bar]) -> list[Bar]:
    """Without those who wait for their next look: beside them nobody else's bar could be seen."""
    shortest = min(bar.median for bar in bars)
    return [bar for bar in bars if bar.median <= FARTHEST * shortest]


def _is_share(verdict: Record) -> bool:
    return verdict["found"] is not None and "share of the raw INSERT" in verdict["what"]


def _share(verdict: Record) -> Bar:
    label = verdict["what"].removeprefix("publish, ").partition(":")[0]
    found = verdict["found"]
    return Bar(label, found["median"], found["low"], found["high"], "ours", f"{found['median']:.2f}")


def _rate(series: Record) -> Bar:
    rate = series["per_second"]
    return Bar(series["name"], rate["median"], rate["low"], rate["high"], _kind(series), f"{rate['median']:,.0f}")


def _delay(delays: Record) -> Bar:
    p50, p99 = delays["p50"]["median"], delays["p99"]["median"]
    return Bar(delays["name"], p50, p50, p99, _kind(delays), f"{p50:.1f} / {p99:.1f}")


def _kind(contestant: Record) -> str:
    if contestant["peer"]:
        return "peer"
    return "floor" if any(word in contestant["name"] for word in FLOORS) else "ours"


def _draw(panel: Panel, top: int) -> Iterator[str]:
    room = WIDTH - LABELS - VALUES
    scale = room / max([bar.high for bar in panel.bars] + [panel.target or 0])
    yield f'<text class="title" x="{MARGIN}" y="{top + 14}">{escape(panel.title)}</text>'
    for number, bar in enumerate(panel.bars):
        y = top + HEAD + number * (BAR + GAP)
        middle = y + BAR / 2
        yield f'<text x="{LABELS - 10}" y="{y + 13}" text-anchor="end">{escape(bar.label)}</text>'
        yield f'<rect class="{bar.kind}" x="{LABELS}" y="{y}" width="{bar.median * scale:.1f}" height="{BAR}" rx="2"/>'
        low, high = LABELS + bar.low * scale, LABELS + bar.high * scale
        yield f'<line class="spread" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>'
        yield f'<text class="quiet" x="{high + 8:.1f}" y="{y + 13}">{escape(bar.text)}</text>'
    if panel.target is not None:
        x = LABELS + panel.target * scale
        bottom = top + panel.height - MARGIN
        yield f'<line class="target" x1="{x:.1f}" y1="{top + HEAD - 6}" x2="{x:.1f}" y2="{bottom}"/>'
