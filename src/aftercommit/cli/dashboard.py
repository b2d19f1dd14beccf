"""The output of `aftercommit up`: a live panel on a terminal, one plain line every few seconds elsewhere."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from aftercommit._version import __version__
from aftercommit.cli.figures import Figures, RateWindow
from aftercommit.cli.output import line, printable
from aftercommit.cli.overview_reader import OverviewReader
from aftercommit.cli.recent import RecentLines
from aftercommit.errors import DatabaseUnavailable
from aftercommit.operate.overview import Overview
from aftercommit.outbox import Outbox
from aftercommit.postgres.statements import Statements
from aftercommit.service import Service

Seen = Overview | DatabaseUnavailable
Sight = tuple[str, Seen, Figures]
# Longer consumer names are cut off, so that the figures fit on eighty columns.
_LONGEST_NAME = 20
# Lines that the panel's border and blank lines take, and columns that its border takes.
_FRAME = 5
_SIDES = 6
# Log lines that are always shown: if the panel gets too high, the terminal cuts off its end.
_LEAST_ROOM = 3
_INDENT = 2

Show = Callable[[Sequence[Sight]], object]


class Dashboard(Service):
    """Reads and shows the state of all outboxes every `interval_seconds`."""

    name = "dashboard"

    def __init__(
        self,
        reader: OverviewReader,
        outboxes: Sequence[Outbox],
        interval_seconds: float,
        recent: RecentLines | None,
    ) -> None:
        """Shows a panel with the `recent` log lines; without `recent`, plain lines."""
        super().__init__()
        self._views = [(reader, outbox, Statements(outbox.shape), RateWindow(outbox.meter)) for outbox in outboxes]
        self._interval = interval_seconds
        self._recent = recent

    async def run(self) -> None:
        """Run until stopped."""
        with self._shown() as show:
            while not self.stopping.is_set():
                show(await asyncio.to_thread(lambda: [_sight(*view) for view in self._views]))
                await self.pause(self._interval)

    @contextmanager
    def _shown(self) -> Iterator[Show]:
        if self._recent is None:
            yield lambda sights: line("\n".join(plain_line(*sight) for sight in sights))
            return
        recent = self._recent
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            yield LivePanel(live, recent).show


class LivePanel:
    """The panel on a terminal. It is drawn again only if it has changed: drawing costs more than reading."""

    def __init__(self, live: Live, recent: RecentLines) -> None:
        self._live = live
        self._recent = recent
        self._shown: Any = None

    def show(self, sights: Sequence[Sight]) -> None:
        """Show this state, and the recent log lines."""
        lines = self._recent.lines
        shown = [list(_rows(seen, figures)) for _, seen, figures in sights], lines, self._live.console.size
        if shown != self._shown:
            self._shown = shown
            self._live.update(Screenful(sights, lines), refresh=True)


def _sight(reader: OverviewReader, outbox: Outbox, statements: Statements, window: RateWindow) -> Sight:
    """An outbox: its name, the state of its tables, and the figures of this process."""
    try:
        seen: Seen = reader.glance(statements)
    except DatabaseUnavailable as problem:
        seen = problem
    return outbox.schema, seen, replace(window.figures(), has_consumers=bool(outbox.consumers))


@dataclass(frozen=True)
class Screenful:
    """The panel: the figures, and below them as many of the last log lines as the terminal has room for."""

    sights: Sequence[Sight]
    recent: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Wrap log lines, so that remedies stay readable; if there is no room, leave out the oldest."""
        figures = list(_figures(self.sights))
        height = options.height or console.size.height
        room = height - _FRAME - sum(each.row_count if isinstance(each, Table) else 1 for each in figures)
        told = _wrapped(console, self.recent, options.max_width - _SIDES, max(_LEAST_ROOM, room))
        yield Panel(
            Group(*figures, *([Text("")] if told else []), *told),
            title=f"aftercommit {__version__}",
            subtitle="Ctrl-C stops",
            title_align="left",
            subtitle_align="left",
            padding=(1, 2),
        )


def _wrapped(console: Console, recent: Sequence[str], width: int, room: int) -> list[Text]:
    """The newest lines that fit, with continuation lines indented; the oldest of them may be cut off."""
    told: list[Text] = []
    for each in reversed(recent):
        left = room - len(told)
        if left <= 0:
            break
        wrapped = list(Text(printable(each), style="yellow").wrap(console, max(1, width - _INDENT)))
        if len(wrapped) > left:
            wrapped = wrapped[:left]
            wrapped[-1].truncate(max(0, width - _INDENT - 2))
            wrapped[-1].append(" …")
        for text in wrapped[1:]:
            text.pad_left(_INDENT)
        told = wrapped + told
    return told


def plain_line(outbox: str, seen: Seen, figures: Figures) -> str:
    """The state of an outbox as one line."""
    told = f"outbox={outbox} published={figures.published} rate={figures.publish_rate:.1f}/s"
    told += f" p50={_milliseconds(figures.p50_ms)} p99={_milliseconds(figures.p99_ms)}"
    if figures.has_consumers:
        told += f" handled={figures.handled}"
    if isinstance(seen, DatabaseUnavailable):
        return f"{told} database=unavailable"
    return (
        f"{told} pending={seen.pending} oldest={seen.oldest_seconds:.1f}s log={seen.head} lag={seen.max_lag} "
        f"failed_attempts={figures.failed} retrying={seen.dead('retrying')} parked={seen.dead('parked')}"
    )


def _figures(sights: Sequence[Sight]) -> Iterator[Text | Table]:
    """The figures of each outbox in the same columns; if there are several outboxes, each has a heading."""
    blocks = [(outbox, list(_rows(seen, figures))) for outbox, seen, figures in sights]
    rows = [row for _, block in blocks for row in block]
    widths = min(_LONGEST_NAME, max(len(row[0]) for row in rows)), max(7, *(len(row[1]) for row in rows))
    for place, (outbox, block) in enumerate(blocks):
        if place:
            yield Text("")
        if len(blocks) > 1:
            yield Text(printable(outbox), style="underline", overflow="ellipsis", no_wrap=True)
        yield _grid(block, *widths)


def _grid(rows: Sequence[tuple[str, str, str]], name_width: int, value_width: int) -> Table:
    # Figures do not wrap, or the lines below would jump. In a narrow window the right side is cut off.
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", width=name_width)
    grid.add_column(no_wrap=True, justify="right", width=value_width)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for name, value, detail in rows:
        grid.add_row(Text(name), Text(value, style="bold"), Text(detail))
    return grid


def _rows(seen: Seen, figures: Figures) -> Iterator[tuple[str, str, str]]:
    latency = f"to the log p50 {_milliseconds(figures.p50_ms)}, p99 {_milliseconds(figures.p99_ms)}"
    yield "published", f"{figures.published:,}", f"{figures.publish_rate:.1f}/s, {latency}"
    if figures.has_consumers:
        yield "handled", f"{figures.handled:,}", f"{figures.handle_rate:.1f}/s, {figures.failed:,} failed attempts"
    if isinstance(seen, DatabaseUnavailable):
        yield "database", "down", printable(str(seen))
        return
    yield "pending", f"{seen.pending:,}", f"oldest {seen.oldest_seconds:.1f} s" if seen.pending else ""
    yield "in the log", f"{seen.head:,}", f"relays running: {sum(relay.is_alive for relay in seen.relays)}"
    for consumer in seen.consumers:
        doing = "paused" if consumer.paused else f"worker {consumer.holder}" if consumer.holder else "no worker"
        yield printable(consumer.name), f"{consumer.lag:,}", f"behind, {printable(doing)}"
    retrying, parked = seen.dead("retrying"), seen.dead("parked")
    yield "dead letters", f"{parked:,}", f"parked, {retrying:,} to be retried"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}ms" if value < 10 else f"{value:.0f}ms"
