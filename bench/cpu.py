"""Processor time of a whole PostgreSQL server: what an event costs, and not only how long it took."""

from pathlib import Path

import psutil  # type: ignore[import-untyped]

_NANOSECONDS = 1e9


def server_cpu(postmaster: int) -> float:
    """Seconds that the postmaster, its living children and those it has buried have used so far.

    Children that ended are in the postmaster's own account (`cutime`, `cstime`), because it waits for each of them.
    """
    parent = psutil.Process(postmaster)
    times = parent.cpu_times()
    buried = times.children_user + times.children_system
    return float(buried) + sum(_used(process) for process in [parent, *parent.children(recursive=True)])


def _used(process: "psutil.Process") -> float:
    try:
        # To the nanosecond where the kernel says so: ticks of 10 ms would blur a short window over ten processes.
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / _NANOSECONDS
    except (OSError, ValueError, IndexError):
        pass
    try:
        times = process.cpu_times()
        return float(times.user + times.system)
    except psutil.NoSuchProcess:
        return 0.0
