"""A PgBouncer in transaction mode in front of the test's server, in a folder of its own and on a free port."""

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from aftercommit.embedded.account import choose_account

PATIENCE = 60.0
CONFIGURATION = """\
[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 200
logfile = {folder}/pgbouncer.log
pidfile = {folder}/pgbouncer.pid
"""


class PgBouncer:
    """Runs while the test goes on; `dsn` is the same database, through the pooler."""

    def __init__(self, dsn: str, folder: Path) -> None:
        """Not started."""
        self._behind = conninfo_to_dict(dsn)
        self._folder = folder
        self._file = folder / "pgbouncer.ini"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, as somebody other than root, and wait until it lets us through."""
        program = Path(which("pgbouncer", path="/usr/sbin:/usr/bin:/sbin:/bin") or "pgbouncer")
        # Root's stand-in is the one that the embedded server has, so the server's socket is open to it.
        account = choose_account(self._folder / "nothing", program)
        for _ in range(5):
            self._write_down(free_port())
            account.take_over(self._folder)
            self._process = account.spawn([program, "--quiet", self._file], subprocess.DEVNULL)
            if self._lets_us_through(self._process):
                return self
        raise AssertionError(f"pgbouncer has ended: {self._said()}")

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def _write_down(self, port: int) -> None:
        behind = self._behind
        target = " ".join(f"{name}={behind[name]}" for name in ("host", "port", "user", "password") if behind.get(name))
        self.dsn = f"postgresql://anybody@127.0.0.1:{port}/{behind['dbname']}"
        self._file.write_text(CONFIGURATION.format(target=target, port=port, folder=self._folder))

    def _lets_us_through(self, process: "subprocess.Popen[bytes]") -> bool:
        """False when it has ended, as it does when somebody else has taken the port meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None:
            try:
                psycopg.connect(self.dsn, connect_timeout=10).close()
                return True
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    process.kill()
                    process.wait()
                    raise AssertionError(f"pgbouncer lets nobody through: {self._said()}") from None
                time.sleep(0.02)
        return False

    def _said(self) -> str:
        log = self._folder / "pgbouncer.log"
        return log.read_text() if log.exists() else "nothing"


def free_port() -> int:
    """One that was free just now; pgbouncer takes none that is chosen for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
