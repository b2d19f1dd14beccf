"""Where a reader keeps its place between two lives: in memory, in a file, in SQLite or in PostgreSQL.

A bookmark holds the cursor after the last event that is done with. It may lag behind, never run ahead: what is repeated
after a crash can be told by its `event_id`, what is skipped is lost.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final, Protocol

from aftercommit.errors import BookmarkError

_LONGEST: Final = 4096


class Bookmark(Protocol):
    """A place that is kept. Its methods may block; `follow` calls them in a thread, one at a time."""

    def load(self) -> str | None:
        """The cursor that was saved last; None when none was. Raises BookmarkError."""

    def save(self, cursor: str) -> None:
        """Keep the cursor; when this returns it survives a crash. Raises BookmarkError."""

    def close(self) -> None:
        """Let go of what is held open. May be used again afterwards."""


class MemoryBookmark:
    """Kept as long as the object lives: for tests, and for those who keep the place themselves."""

    def __init__(self, cursor: str | None = None) -> None:
        """At this cursor."""
        self.cursor = cursor

    def load(self) -> str | None:
        """The cursor."""
        return self.cursor

    def save(self, cursor: str) -> None:
        """Keep it."""
        self.cursor = cursor

    def close(self) -> None:
        """Nothing is held open."""


class FileBookmark:
    """Kept in a file of its own, which is replaced as a whole: after a crash it has the old cursor or the new one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """The file is made by the first save; its folder has to be there."""
        self.path = Path(path)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        """Where it is, for messages."""
        return str(self.path)

    def load(self) -> str | None:
        """The cursor in the file."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise BookmarkError(f"the bookmark {self.path} cannot be read: {problem}") from problem
        try:
            cursor = text.decode("ascii").removesuffix("\n")
        except UnicodeDecodeError:
            cursor = ""
        if not cursor or not cursor.isprintable() or len(text) > _LONGEST:
            raise BookmarkError(
                f"the bookmark {self.path} holds no cursor but {text[:40]!r}: remove the file to begin anew"
            )
        return cursor

    def save(self, cursor: str) -> None:
        """Write beside the file, reach the disk, then take its place."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with self._lock:
            try:
                _write(beside, f"{cursor}\n".encode())
                beside.replace(self.path)
                _sync_folder(self.path.parent)
            except OSError as problem:
                with contextlib.suppress(OSError):
                    beside.unlink(missing_ok=True)
                raise BookmarkError(f"the bookmark {self.path} cannot be written: {problem}") from problem

    def close(self) -> None:
        """Nothing is held open."""


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """The new name reaches the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
