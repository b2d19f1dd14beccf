"""Finds and ends the postmaster of a data folder.

Process ids are reused, so the one in `postmaster.pid` counts only if that process is a `postgres` whose working folder
is this data folder.
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
    """A running postmaster, as its `postmaster.pid` describes it."""

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
    """The running postmaster of the data folder; None if there is none, or `postmaster.pid` is stale."""
    try:
        lines = [line.strip() for line in (data_folder / "postmaster.pid").read_text().splitlines()]
        pid = int(lines[0])
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return None
    if not is_postmaster_of(pid, data_folder):
        return None
    # A server that has just started has written only the first lines.
    lines += [""] * (8 - len(lines))
    return Postmaster(
        pid=pid,
        port=int(lines[3] or 0),
        socket_folder=Path(lines[4]),
        listens_on_tcp=bool(lines[5]),
        status=lines[7] or "starting",
    )


def is_postmaster_of(pid: int, data_folder: Path) -> bool:
    """Whether the process is a running `postgres` whose working folder is the data folder."""
    psutil = _psutil()
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or process.name() != "postgres":
            return False
        return _works_in(process, data_folder)
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pid: int, timeout: float) -> bool:
    """Wait for a process to end; False if it still runs after the timeout."""
    psutil = _psutil()
    try:
        return not _outliving([psutil.Process(pid)], timeout)
    except psutil.NoSuchProcess:
        return True


def kill_postmaster(pid: int, timeout: float) -> None:
    """SIGKILL a postmaster, like a crash, and wait until its backends have ended."""
    psutil = _psutil()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        # Suspend it first, so that it forks no backend between the listing and the kill.
        process.suspend()
        family = [process, *process.children(recursive=True)]
        process.kill()
        if alive := _outliving(family, timeout):
            raise EmbeddedPostgresError(
                f"postmaster {pid} was killed, but its processes {sorted(one.pid for one in alive)} still run after "
                f"{timeout:g} s: end them before you start the server again"
            )


def describe_process(pid: int) -> str:
    """A process id with its command line, for messages."""
    psutil = _psutil()
    try:
        return f"{pid} ({' '.join(psutil.Process(pid).cmdline())[:120]})"
    except psutil.NoSuchProcess:
        return f"{pid} (which has ended)"
    except psutil.AccessDenied:
        return str(pid)


def disown_stale_files(data_folder: Path, socket_folder: Path) -> None:
    """Keep a reused process id in the files of a dead postmaster from blocking the next start.

    PostgreSQL refuses to start while the process id in `postmaster.pid` exists, whatever process that is now. It treats
    the id of its own parent as stale, so we write ours. The rest of the file must stay: PostgreSQL uses it to find out
    whether backends of the dead server still use its shared memory.
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
    """The processes that still run after the timeout; returns as soon as there are none."""
    deadline = time.monotonic() + timeout
    while alive := [process for process in processes if _is_alive(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return alive


def _is_alive(process: Any) -> bool:
    psutil = _psutil()
    try:
        # A zombie counts as ended: its parent may reap it much later.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _works_in(process: Any, data_folder: Path) -> bool:
    psutil = _psutil()
    try:
        # The postmaster changes into its data folder, so the spelling on its command line does not matter.
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
