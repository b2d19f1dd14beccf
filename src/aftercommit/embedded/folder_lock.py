"""An exclusive lock on a folder. The kernel releases it when its holder dies; `acquire` does not wait."""

import fcntl
import os
import weakref
from pathlib import Path


class FolderLock:
    """An exclusive flock on a file that contains the holder's process id and purpose."""

    def __init__(self, path: Path, purpose: str) -> None:
        self.path = path
        self.purpose = purpose
        self._descriptor: int | None = None
        _known_locks.add(self)

    @property
    def held(self) -> bool:
        """Whether this object, in this process, holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> bool:
        """Take the lock if it is free; returns whether we hold it."""
        if self.held:
            return True
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {self.purpose}\n".encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock. The file stays: otherwise two holders could lock two different files."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> tuple[int, str] | None:
        """Process id and purpose of the latest holder, or None if the file is not readable (yet)."""
        try:
            pid, _, purpose = self.path.read_text().strip().partition(" ")
            return int(pid), purpose
        except (OSError, ValueError):
            return None

    def forget_after_fork(self) -> None:
        """In a forked child: the parent holds the lock, so close our copy without unlocking."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_known_locks: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


def _forget_locks_after_fork() -> None:
    for lock in list(_known_locks):
        lock.forget_after_fork()


# Otherwise a forked worker would keep the lock of a killed parent, and no process could adopt its server.
os.register_at_fork(after_in_child=_forget_locks_after_fork)
