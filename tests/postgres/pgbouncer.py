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

from aftercommit.postgres.embedded.account import choose_account

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
        """Written down, not started."""
        behind = conninfo_to_dict(dsn)
        target = " ".join(f"{name}={behind[name]}" for name in ("host", "port", "user", "password") if behind.get(name))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.dsn = f"postgresql://anybody@127.0.0.1:{port}/{behind['dbname']}"
        self._folder = folder
        self._file = folder / "pgbouncer.ini"
        self._file.write_text(CONFIGURATION.format(target=target, port=port, folder=folder))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, as somebody other than root, and wait until it lets us through."""
        program = Path(which("pgbouncer", path="/usr/sbin:/usr/bin:/sbin:/bin") or "pgbouncer")
        # Root's stand-in is the one that the embedded server has, so the server's socket is open to it.
        account = choose_account(self._folder / "nothing", program)
        account.take_over(self._folder)
        self._process = account.spawn([program, "--quiet", self._file], subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=2).close()
                return self
            except psycopg.OperationalError:
                log = self._folder / "pgbouncer.log"
                assert self._process.poll() is None, log.read_text() if log.exists() else "it has ended"
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
