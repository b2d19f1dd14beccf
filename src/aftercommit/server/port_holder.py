"""Which process listens on a port: on Linux, for processes that we may look at."""

from contextlib import suppress
from pathlib import Path
from typing import Final

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS: Final = "0A"
# Columns of such a table.
_LOCAL, _STATE, _INODE = 1, 3, 9


def holder_of(port: int) -> str | None:
    """Name and id of the process; None if it cannot be found out."""
    sockets = {f"socket:[{inode}]" for table in _TABLES for inode in _listening(Path(table), port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        # Other users' processes are closed to us, and some end while we look.
        with suppress(OSError):
            if any(str(each.readlink()) in sockets for each in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return None


def _listening(table: Path, port: int) -> list[str]:
    """The inodes of sockets that listen on this port, at any address."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[_INODE] for row in rows if row[_STATE] == _LISTENS and int(row[_LOCAL].rpartition(":")[2], 16) == port]
