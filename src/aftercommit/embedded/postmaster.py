"""The postmaster of one data folder: which process it is, whether it lives, how to end it.

A pid in a file proves nothing, because pids are reused: a process counts as the postmaster only when it is a
`postgres` that works in this data folder. Never starts a server and never removes its files.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aftercommit.errors import EmbeddedPostgresError, MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A living postmaster, as its `postmaster.pid` describes it."""

    pid: int
    port: int
    socket_folder: Path
    listens_on_tcp: bool
    status: str

    @property
    def is_ready(self) -> bool:
        """Whether it accepts connections."""
        return self.status == "ready"


def find_postmaster(data_folder: Path) -> Postmaster | None:
    """The living postmaster of the data folder, or None (also when `postmaster.pid` is stale)."""
    try:
        lines = [line.strip() for line in (data_folder / "postmaster.pid").read_text().splitlines()]
        pid = int(lines[0])
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return None
    if not is_postmaster_of(pid, data_folder):
        return None
    # A server that has just begun has written only the first lines.
    lines += [""] * (8 - len(lines))
    return Postmaster(
        pid=pid,
        port=int(lines[3] or 0),
        socket_folder=Path(lines[4]),
        listens_on_tcp=bool(lines[5]),
        status=lines[7] or "starting",
    )


def is_postmaster_of(pid: int, data_folder: Path) -> bool:
    """Whether the process is a living `postgres` that works in the data folder."""
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or process.name() != "postgres":
            return False
        return _works_in(process, data_folder)
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int, timeout: float) -> bool:
    """Wait for a process to end; False when it outlived the timeout."""
    psutil = _psutil()
    try:
        return not _outliving([psutil.Process(pid)], timeout)
    except psutil.NoSuchProcess:
        return True


def kill_postmaster(pid: int, timeout: float) -> None:
    """SIGKILL a postmaster, as a crash would, and wait until its backends have noticed and ended."""
    psutil = _psutil()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        # Stopped first, so that no backend is forked between the listing and the kill.
        process.suspend()
        family = [process, *process.children(recursive=True)]
        process.kill()
        if alive := _outliving(family, timeout):
            raise EmbeddedPostgresError(
                f"postmaster {pid} was killed, but its processes {sorted(one.pid for one in alive)} live on "
                f"after {timeout:g} s: end them before the server is started again"
            )


def describe_process(pid: int) -> str:
    """A pid with its command line, for messages to people."""
    psutil = _psutil()
    try:
        return f"{pid} ({' '.join(psutil.Process(pid).cmdline())[:120]})"
    except psutil.NoSuchProcess:
        return f"{pid} (which has ended since)"
    except psutil.AccessDenied:
        return str(pid)


def disown_stale_files(data_folder: Path, socket_folder: Path) -> None:
    """Keep a reused pid in the files of a dead postmaster from blocking the next one.

    PostgreSQL refuses to start while the pid in `postmaster.pid` exists, whatever process that is now. The
    pid of its own parent it takes as stale, so ours goes in. The rest of the file must stay: with it
    PostgreSQL finds out whether backends of the dead server still use its shared memory.
    """
    if find_postmaster(data_folder) is not None:
        return
    pid_file = data_folder / "postmaster.pid"
    with contextlib.suppress(FileNotFoundError):
        _, newline, rest = pid_file.read_text().partition("\n")
        pid_file.write_text(f"{os.getpid()}{newline}{rest}")
    for socket_lock in socket_folder.glob(".s.PGSQL.*.lock"):
        socket_lock.unlink(missing_ok=True)


def _outliving(processes: list[Any], timeout: float) -> list[Any]:
    """The processes that are still alive after the timeout; returns as soon as there are none."""
    deadline = time.monotonic() + timeout
    while alive := [process for process in processes if _is_alive(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return alive


def _is_alive(process: Any) -> bool:
    psutil = _psutil()
    try:
        # One that nobody has reaped yet is dead all the same, and its parent may take its time.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _works_in(process: Any, data_folder: Path) -> bool:
    psutil = _psutil()
    try:
        # The postmaster changes into its data folder, so this holds for any spelling on its command line.
        return Path(process.cwd()) == data_folder
    except psutil.AccessDenied:
        return str(data_folder) in process.cmdline()


def _psutil() -> "ModuleType":
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError as missing:
        raise MissingExtra("embedded", "psutil") from missing
    module: ModuleType = psutil
    return module
