"""The screen of `status --watch`: everything on one page, with the problems at the end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aftercommit.cli.output import printable
from aftercommit.clock import utc_now
from aftercommit.operate.overview import Overview, RelayState
from aftercommit.postgres.shape import LANES


@dataclass(frozen=True)
class Screen:
    """One overview, drawn for the present size of the terminal."""

    seen: Overview | None
    problems: Sequence[str]
    interval: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Problems take precedence; other lines that do not fit are replaced by a count."""
        height = options.height or console.size.height
        problems = [Text(f"problem: {printable(problem)}", style="red") for problem in self.problems]
        below = [wrapped for problem in problems for wrapped in problem.wrap(console, options.max_width)]
        below = below[: max(1, height - 6)]
        above = [Text(printable(text), style=style) for style, text in self._lines()]
        room = max(3, height - len(below) - 1)
        if len(above) > room:
            left_out = len(above) - room + 1
            above = [*above[: room - 1], Text(f"… {left_out} more lines: enlarge the window", style="dim")]
        for text in (*above, *below):
            text.truncate(options.max_width, overflow="ellipsis")
            text.no_wrap = True
            yield text

    def _lines(self) -> Iterator[tuple[str, str]]:
        name = "database unavailable" if self.seen is None else f"outbox {self.seen.outbox}"
        yield "bold", f"{name} at {utc_now():%H:%M:%S} UTC, every {self.interval:g} s, Ctrl-C ends"
        if self.seen is not None:
            for text in (*_flow(self.seen), *_readers(self.seen), *_repair(self.seen)):
                yield "", text


def _flow(seen: Overview) -> Iterator[str]:
    yield (
        f"pending {seen.pending:,} (oldest {seen.oldest_seconds:.1f} s)   retrying {seen.retrying:,}   "
        f"failed {seen.failed:,}   log at {seen.head:,}"
    )
    if seen.life is not None and seen.life.number > 1:
        yield f"life {seen.life.number} of the log, after {seen.life.base:,}: {seen.life.reason}"
    drained = seen.drain_seconds
    when = "not at this rate" if drained is None else f"in {drained:.0f} s"
    held = f"lanes {LANES - seen.free_lanes} of {LANES} held"
    yield f"in {_rate(seen.published_rate)}   out {_rate(seen.delivered_rate)}   drained {when}   {held}"
    for relay in seen.relays:
        yield f"{relay.name}: {_doing(relay)}"


def _doing(relay: RelayState) -> str:
    if relay.is_alive:
        return f"{relay.lanes} lanes"
    if relay.silent_seconds is None:
        return "last seen in the future: the database's clock was set back"
    return f"silent for {relay.silent_seconds:.0f} s"


def _readers(seen: Overview) -> Iterator[str]:
    for each in sorted(seen.consumers, key=lambda consumer: -consumer.lag):
        doing = "paused" if each.paused else each.holder or "no worker"
        yield f"consumer {each.name}: {each.lag:,} behind ({each.lag_seconds:.1f} s), {doing}"
    for wait in seen.version_waits:
        yield f"consumer {wait.consumer} {wait}"


def _repair(seen: Overview) -> Iterator[str]:
    for letters in seen.dead_letters:
        yield f"dead letters of {letters.owner}: {letters.count:,} {letters.status}"
    for each in seen.operations:
        driven = "driven" if each.driven else "not driven"
        yield f"operation {each.id} ({each.kind}): {each.through:,} of {each.total:,}, {each.failed:,} failed, {driven}"
    for holder in seen.holders:
        yield f"blocked by {holder}: {'; '.join(holder.holds)}"
    for upkeep in seen.upkeep:
        for reason in upkeep.kept_back:
            yield f"retention of {upkeep.task.replace('_', ' ')} waits: {reason}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}/s"
