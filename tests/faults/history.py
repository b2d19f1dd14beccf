"""History files: what every process set out to do and how it ended, a JSON object per line, written before it goes on.

As in Jepsen: `invoke` when something is begun, `ok` when it is known to have happened, `fail` when it is known not to
have happened, `info` when nobody can know (yet).
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal["invoke", "ok", "fail", "info"]


class History:
    """One process's file. A line is one write, so a killed process leaves whole lines behind."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, outcome: Kind, function: str, /, **detail: Any) -> None:
        line = {"at": round(time.monotonic(), 4), "type": outcome, "f": function, **detail}
        os.write(self._descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file; the last may have been cut by a full disk or a crash of the machine."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def read_all(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """The lines of several files, one after the other."""
    for path in sorted(folder.glob(pattern)):
        yield from read(path)


def last(path: Path, function: str) -> dict[str, Any] | None:
    """The last line about something, for a process that goes on where its predecessor was killed."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (1 << 18)))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if found.get("f") == function:
            return found
    return None
