"""Where a reader keeps its place across restarts. Bookmarks in SQLite and PostgreSQL are in `bookmark_table`.

A bookmark holds the cursor of the last event that is done. It may lag behind but never run ahead: a repeated event can
be recognised by its `event_id`, a skipped one is lost.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final, Protocol

from aftercommit.errors import BookmarkError

_LONGEST: Final = 4096


class Bookmark(Protocol):
    """A saved place. Its methods may block; `follow` calls them in a thread, one at a time."""

    def load(self) -> str | None:
        """The cursor that was saved last; None if none was. Raises BookmarkError."""

    def save(self, cursor: str) -> None:
        """Save the cursor. Once this returns, it survives a crash. Raises BookmarkError."""

    def close(self) -> None:
        """Close connections and files. The bookmark may be used again afterwards."""


class MemoryBookmark:
    """Kept in memory: for tests, and if you save the place yourself."""

    def __init__(self, cursor: str | None = None) -> None:
        self.cursor = cursor

    def load(self) -> str | None:
        """The cursor."""
        return self.cursor

    def save(self, cursor: str) -> None:
        """Keep the cursor."""
        self.cursor = cursor

    def close(self) -> None:
        """Do nothing."""


class FileBookmark:
    """Kept in a file, which is replaced as a whole: after a crash it has the old cursor or the new one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """The first save creates the file. Its folder must exist."""
        self.path = Path(path)
        self._lock = threading.Lock()

    def __str__(self) -> str:
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
                f"the bookmark {self.path} holds {text[:40]!r}, not a cursor: remove the file to begin anew"
            )
        return cursor

    def save(self, cursor: str) -> None:
        """Write a new file, flush it to disk, then replace the old one."""
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
        """Do nothing."""


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush the new name to disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
