"""Progress of a replay on stderr: a bar on a terminal, elsewhere a line when something has changed."""

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from aftercommit.cli.output import message, printable
from aftercommit.cli.remedies import pasteable
from aftercommit.operate.repair.driver import ReplayProgress

SECONDS_BETWEEN_LINES = 5.0


class ProgressBar:
    """Shows the progress of a replay."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._said: set[str] = set()
        self._line = ""
        self._next_line_at = time.monotonic() + SECONDS_BETWEEN_LINES

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
            self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: ReplayProgress) -> None:
        """Show the present progress."""
        ended = progress.done + progress.skipped + progress.failed
        words = _words(progress)
        for text in (*progress.missing, *_way_out(progress)):
            if text not in self._said:
                self._said.add(text)
                self._say(text)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=progress.total, completed=ended, description=words)
        elif time.monotonic() >= self._next_line_at:
            self._write(f"{ended}/{progress.total} {words}".rstrip())

    def _write(self, line: str) -> None:
        # A replay that waits would otherwise fill a log file with the same line.
        if line != self._line:
            self._line, self._next_line_at = line, time.monotonic() + SECONDS_BETWEEN_LINES
            message(line)

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(printable(pasteable(text)), markup=False)
        else:
            message(printable(text))


def _way_out(progress: ReplayProgress) -> list[str]:
    """What the operator can do while the replay waits."""
    if not progress.missing:
        return []
    resume = f"`aftercommit replay resume {progress.operation_id}`"
    return [f"the replay is waiting for that. Ctrl-C stops it here; {resume} continues it"]


def _words(progress: ReplayProgress) -> str:
    parts = {"in progress": progress.under_way, "skipped": progress.skipped, "failed": progress.failed}
    return ", ".join(f"{count:,} {word}" for word, count in parts.items() if count)
