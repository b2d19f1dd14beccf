"""Servers that are backed up, restored and promoted, with PostgreSQL's own programs. Clients keep their address."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from aftercommit.embedded.account import Account, choose_account
from aftercommit.embedded.cluster import binaries
from aftercommit.embedded.postmaster import find_postmaster, kill_postmaster
from aftercommit.embedded.server import EmbeddedPostgres

PATIENCE = 90.0


class Restorable:
    """A server that archives what it writes, and what can be put in its place."""

    def __init__(self, folder: Path, version: int = 18) -> None:
        """Not started. The folder's path must be short: it holds the socket."""
        self.folder = folder
        self._archive = folder / "archive"
        self._archive.mkdir(parents=True)
        settings = {
            "fsync": "off",
            "shared_buffers": "16MB",
            "archive_mode": "on",
            "archive_command": f"cp %p {self._archive}/%f",
            "max_wal_senders": "4",
        }
        self.server = EmbeddedPostgres(folder / "a", version=version, settings=settings)
        self._backups = 0

    @property
    def data(self) -> Path:
        """The data folder of the server in use."""
        return self.server.cluster.data

    def dsn(self, database: str = "postgres") -> str:
        """Where clients connect, before and after a restore."""
        return self.server.dsn_for(database)

    def rows(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def backup(self) -> Path:
        """A base backup of the running server."""
        return self._base_backup(f"backup-{self._count()}", "-X", "fetch")

    def restore_point(self) -> str:
        """A name for this moment, to which a backup can be recovered later."""
        name = f"point{self._count()}"
        self.rows(f"select pg_create_restore_point('{name}')")
        self._wait_for_archive()
        return name

    def recover(self, backup: Path, point: str) -> None:
        """Put the backup in the place of the data, recover it to the point, and start it."""
        self._replace_by(backup)
        recovery = {
            "restore_command": f"cp {self._archive}/%f %p",
            "recovery_target_name": point,
            "recovery_target_action": "promote",
        }
        settings = self.data / "postgresql.auto.conf"
        before = settings.read_text()
        settings.write_text(before + "".join(f"{name} = '{value}'\n" for name, value in recovery.items()))
        (self.data / "recovery.signal").touch()
        self.server.start()
        # It accepts connections before it has come to the end.
        until(lambda: not self.rows("select pg_is_in_recovery()")[0][0])
        # A standby that is made of it would look for the same point.
        settings.write_text(before)

    def copy(self) -> Path:
        """Stop, copy the data folder, and go on: a copy that looks no different from what it was made of."""
        target = self.folder / f"copy-{self._count()}"
        self.server.stop()
        shutil.copytree(self.data, target, symlinks=True, ignore=_SOCKETS)
        self.server.start()
        return target

    def put_back(self, copy: Path) -> None:
        """Put a copy in the place of the data, and start it."""
        self._replace_by(copy)
        self.server.start()

    @contextmanager
    def standby(self) -> Iterator["Standby"]:
        """A server that follows this one."""
        data = self._base_backup("b", "-X", "stream", "-R")
        standby = Standby(data, self._account, binaries(self.server.cluster.version))
        try:
            standby.start()
            yield standby
        finally:
            standby.kill()

    def __enter__(self) -> "Restorable":
        """Start."""
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; the data goes with the folder."""
        self.server.stop("immediate")

    def _replace_by(self, source: Path) -> None:
        self.server.stop("immediate")
        shutil.rmtree(self.data)
        shutil.copytree(source, self.data, symlinks=True, ignore=_SOCKETS)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.data.chmod(0o700)
        self._account.take_over(self.data)

    def _base_backup(self, name: str, *options: str) -> Path:
        target = self.folder / name
        host, port = psycopg.conninfo.conninfo_to_dict(self.dsn())["host"], "5432"
        program: str | Path = binaries(self.server.cluster.version) / "pg_basebackup"
        address = ["-h", str(host), "-p", port, "-U", "postgres"]
        status, said = self._account.run([program, "-D", target, "-c", "fast", *options, *address])
        assert status == 0, said
        return target

    @property
    def _account(self) -> Account:
        return choose_account(self.data, binaries(self.server.cluster.version))

    def _wait_for_archive(self) -> None:
        switched = self.rows("select pg_walfile_name(pg_switch_wal())")[0][0]
        until(lambda: (self.rows("select last_archived_wal from pg_stat_archiver")[0][0] or "") >= switched)

    def _count(self) -> int:
        self._backups += 1
        return self._backups


class Standby:
    """A server that follows another until it is promoted."""

    def __init__(self, data: Path, account: Account, programs: Path) -> None:
        self._data, self._account, self._programs = data, account, programs
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, str]:
        """Host and port of its socket."""
        return str(self._data), "5433"

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        host, port = self.address
        with psycopg.connect(host=host, port=port, user="postgres", dbname="postgres", autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def start(self) -> None:
        """Until it answers."""
        options = {"port": "5433", "listen_addresses": "", "unix_socket_directories": str(self._data), "fsync": "off"}
        # A standby that takes fewer connections than its primary does not start.
        options |= {"max_connections": "300"}
        command: list[str | Path] = [self._programs / "postgres", "-D", self._data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self._data.parent / "standby.log").open("ab") as log:
            self._process = self._account.spawn(command, log)
        until(lambda: (found := find_postmaster(self._data)) is not None and found.status in ("standby", "ready"))

    def caught_up(self, lsn: str) -> None:
        """Until it has what the other server has written up to there."""
        until(lambda: self.rows(f"select pg_last_wal_replay_lsn() >= '{lsn}'")[0][0])

    def stop_receiving(self) -> None:
        """Hear of nothing more that the other server writes, as if the line were cut.

        A reload is not enough: while a receiver connects again, the server shows none.
        """
        self.kill()
        with (self._data / "postgresql.auto.conf").open("a") as settings:
            settings.write("primary_conninfo = ''\n")
        self.start()

    def promote(self) -> None:
        """Until it takes writes."""
        assert self.rows("select pg_promote(true, 60)")[0][0]

    def kill(self) -> None:
        """Gone."""
        found = find_postmaster(self._data)
        if found is not None:
            kill_postmaster(found.pid, PATIENCE)
        if self._process is not None:
            self._process.wait(PATIENCE)


@contextmanager
def restorable(version: int = 18) -> Iterator[Restorable]:
    """A running server in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="life-", dir="/tmp"))
    try:
        with Restorable(folder, version) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def until(condition: Any, timeout: float = PATIENCE) -> None:
    """Until the condition holds, for what no signal tells."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


_SOCKETS = shutil.ignore_patterns(".s.PGSQL.*", "postmaster.pid")
