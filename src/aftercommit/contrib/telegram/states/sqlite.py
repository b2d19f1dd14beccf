"""The bot's state in an SQLite file. A lock on a file beside it, which the kernel releases, keeps other bots out."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from aftercommit.contrib.telegram.states.sql import LOOK, PATIENCE, Rows, Run, outstanding, statements
from aftercommit.embedded.folder_lock import FolderLock
from aftercommit.errors import StateError, StateTaken, StateUnavailable

Result = TypeVar("Result")
_SCHEMA: Final = "main"
_BUSY_SECONDS: Final = 10


class SqliteDriver:
    """One file with one connection, used by one thread at a time."""

    def __init__(self, path: Path, *, lock_wait_seconds: float = PATIENCE) -> None:
        """`lock_wait_seconds` is how long to wait for the lock of a bot that is ending."""
        self.path = path
        self._lock_wait_seconds = lock_wait_seconds
        self._statements = statements(_SCHEMA)
        self._connection: sqlite3.Connection | None = None
        self._turn = threading.RLock()
        self._folder_lock = FolderLock(path.with_name(path.name + ".lock"), "aftercommit bot")

    @property
    def where(self) -> str:
        """The file."""
        return str(self.path)

    def work(self, function: Callable[[Run], Result]) -> Result:
        """Run in one transaction, which is on disk when this returns."""
        with self._turn, self._dropped_on_error():
            connection = self._opened()
            # Immediate: a transaction that reads first would fail if another one has written meanwhile.
            connection.execute("begin immediate")
            try:
                result = function(self._run)
                connection.execute("commit")
            finally:
                if connection.in_transaction:
                    connection.execute("rollback")
            return result

    def one(self, statement: str, /, **parameters: Any) -> Rows:
        """Without BEGIN, so that a read does not wait for a bot that hangs in a write."""
        with self._turn, self._dropped_on_error():
            return self._run(statement, **parameters)

    def version(self) -> int:
        """The file's `user_version`. Opened read-only: it may not be a bot's file."""
        if not self.path.exists():
            return 0
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        with self._dropped_on_error(), closing(sqlite3.connect(address, _BUSY_SECONDS, uri=True)) as reader:
            return int(reader.execute("pragma user_version").fetchone()[0])

    def prepare(self, versions: Mapping[int, str]) -> None:
        """Apply the missing versions; the file stores its version."""

        def work(run: Run) -> None:
            connection = self._opened()
            applied = int(connection.execute("pragma user_version").fetchone()[0])
            for number, text in outstanding(versions, applied, self.where):
                named = (
                    text.replace("{schema}", _SCHEMA).replace("{index}", f"{_SCHEMA}.").replace("{failure}", "failure")
                )
                for statement in named.split(";"):
                    connection.execute(statement)
                # A pragma takes no parameters; this is our own number.
                connection.execute(f"pragma user_version = {int(number)}")

        self.work(work)

    def lock(self) -> None:
        """Lock a file beside the state."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            deadline = time.monotonic() + self._lock_wait_seconds
            while (taken := not self._folder_lock.acquire()) and time.monotonic() < deadline:
                time.sleep(LOOK)
            self._opened()
        except (OSError, sqlite3.Error) as problem:
            # At the start, waiting would only hide the problem.
            raise StateError(f"cannot use the bot's state in {self.path}: {problem}") from problem
        if taken:
            holder = self._folder_lock.holder()
            who = f"process {holder[0]}" if holder is not None else "another process"
            raise StateTaken(
                f"another bot ({who}) uses the state in {self.path}: stop it, or give this bot its own state"
            )

    def is_taken(self) -> bool:
        """Try the lock, and release it at once."""
        probe = FolderLock(self._folder_lock.path, "aftercommit bot status")
        taken = not probe.acquire()
        probe.release()
        return taken

    def close(self) -> None:
        """Close the file and release the lock."""
        with self._turn:
            self._drop()
            self._folder_lock.release()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self.path.exists():
                # Private: the links are personal data.
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.touch(mode=0o600)
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            # Others can read while the bot writes, and commits survive a power failure.
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            self._connection = connection
        return self._connection

    def _run(self, statement: str, /, **parameters: Any) -> Rows:
        return self._opened().execute(self._statements[statement], parameters).fetchall()

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            self._drop()
            raise StateUnavailable(f"the bot's state in {self.path}: {problem}") from problem

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
