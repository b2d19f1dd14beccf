"""Where a run takes place: a PostgreSQL of its own with fsync on, a small disk, and bad ways to reach it."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import psycopg
from psycopg import sql

from aftercommit.embedded import EmbeddedPostgres
from aftercommit.embedded.account import choose_account
from aftercommit.embedded.cluster import binaries
from aftercommit.embedded.postmaster import wait_until_gone
from aftercommit.errors import AftercommitError
from aftercommit.testing.fault_proxy import FaultProxy
from tests.faults import cleanup, workload
from tests.faults.writer import ACCOUNTS
from tests.support.pgbouncer import PgBouncer

SETTINGS = {
    "fsync": "on",
    "max_connections": "180",
    "shared_buffers": "64MB",
    # A crash recovers from the last checkpoint: what lies between is what a run waits for.
    "checkpoint_timeout": "30s",
    "max_wal_size": "256MB",
    "wal_recycle": "on",
}
SMALL_DISK_MEGABYTES = 768
# What the tar format has room for.
LONGEST_LINK = 99
PREFIX = "aftercommit-faults-"


@dataclass
class Stage:
    """The server and its routes, for one database at a time."""

    folder: Path
    server: EmbeddedPostgres
    disk: Path | None
    missing: dict[str, str] = field(default_factory=dict)
    database: str = ""
    proxy: FaultProxy | None = None
    pooler: PgBouncer | None = None

    @property
    def dsn(self) -> str:
        return self.server.dsn_for(self.database)

    def route(self, way: str) -> str:
        """The DSN that leads this way; the direct one where there is no such way here."""
        if way == "proxy" and self.proxy is not None:
            return self.proxy.dsn
        if way == "pooler" and self.pooler is not None:
            return self.pooler.dsn
        return self.dsn

    def crash(self, manner: str) -> None:
        """End the server without a checkpoint: `immediate` as `pg_ctl stop -m immediate` does, or by SIGKILL."""
        pid = self.server.pid
        if manner == "immediate" and pid is not None:
            os.kill(pid, signal.SIGQUIT)
            wait_until_gone(pid, 30)
        else:
            self.server.kill()

    def backup(self) -> None:
        """A base backup of the running server, beside it."""
        target, programs = self.folder / "backup", binaries(self.server.cluster.version)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        host = psycopg.conninfo.conninfo_to_dict(self.server.dsn)["host"]
        command: list[str | Path] = [programs / "pg_basebackup", "-D", target / "data", "-c", "fast", "-X", "stream"]
        command += ["-h", str(host), "-p", "5432", "-U", "postgres"]
        if self.disk is not None:
            command += ["-T", f"{self.disk / 'data'}={target / 'space'}"]
        status, said = choose_account(self.server.cluster.data, programs).run(command)
        assert status == 0, said

    def restore(self) -> None:
        """The backup in the place of the data: recovered to its end, and promoted, as after the loss of a disk."""
        self.crash("immediate")
        source, data = self.folder / "backup", self.server.cluster.data
        account = choose_account(data, binaries(self.server.cluster.version))
        shutil.rmtree(data)
        shutil.copytree(source / "data", data, symlinks=True)
        data.chmod(0o700)
        if self.disk is not None:
            shutil.rmtree(self.disk / "data")
            shutil.copytree(source / "space", self.disk / "data")
            (self.disk / "data").chmod(0o700)
            account.take_over(self.disk / "data")
            for link in (data / "pg_tblspc").iterdir():
                link.unlink()
                link.symlink_to(self.disk / "data")
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")
        (data / "recovery.signal").touch()
        account.take_over(data)
        self.server.start()

    @asynccontextmanager
    async def scene(self, number: int) -> AsyncIterator[None]:
        """A new database with its own proxy and pooler, removed at the end."""
        self.database = f"scene_{number}"
        await asyncio.to_thread(self._make_database)
        async with AsyncExitStack() as stack:
            self.proxy = await stack.enter_async_context(FaultProxy(self.dsn))
            if "pgbouncer" not in self.missing:
                folder = Path(tempfile.mkdtemp(prefix="pooler-", dir=self.folder))
                self.pooler = await asyncio.to_thread(stack.enter_context, PgBouncer(self.dsn, folder))
            yield
        self.proxy = self.pooler = None
        await asyncio.to_thread(self._execute, "drop database {} with (force)")

    def _make_database(self) -> None:
        place = " tablespace small_disk" if self.disk is not None else ""
        self._execute("create database {}" + place)
        workload.prepare(self.dsn, ACCOUNTS)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(self.database)))


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """A server in a folder of its own; server, mount and folder are gone at the end, whatever happened."""
    folder = _own_folder()
    server = EmbeddedPostgres(folder / "server", settings=SETTINGS)
    missing: dict[str, str] = {}
    with cleanup.warded(folder):
        disk = _small_disk(folder, missing)
        if which("pgbouncer", path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
            missing["pgbouncer"] = "pgbouncer is not installed: apt install pgbouncer"
        if faketime() is None:
            missing["clock"] = "libfaketime is not installed: apt install faketime"
        try:
            await asyncio.to_thread(server.start)
            if disk is not None:
                _make_tablespace(server, disk, missing)
                if len(str(disk / "data")) > LONGEST_LINK:
                    missing["restores"] = f"pg_basebackup takes links of {LONGEST_LINK} characters: shorten TMPDIR"
            yield Stage(folder, server, disk if "disk" not in missing else None, missing)
        finally:
            with contextlib.suppress(AftercommitError):
                await asyncio.to_thread(server.stop, "immediate")


def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o755)
    return folder


def faketime() -> Path | None:
    """The library that gives a process another clock."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return found[0] if found else None


def _small_disk(folder: Path, missing: dict[str, str]) -> Path | None:
    place = folder / cleanup.SMALL_DISK
    place.mkdir()
    command: list[str | Path] = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size={SMALL_DISK_MEGABYTES}m,mode=0755",
        "tmpfs",
        place,
    ]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        missing["disk"] = f"a full disk needs a small one to fill: {problem}"
        return None
    if said.returncode != 0:
        missing["disk"] = f"a full disk needs a small one to fill, and mount says {said.stderr.strip()!r}: run as root"
        return None
    (place / "data").mkdir(mode=0o700)
    return place


def _make_tablespace(server: EmbeddedPostgres, disk: Path, missing: dict[str, str]) -> None:
    data = disk / "data"
    owner = server.cluster.data.stat()
    os.chown(data, owner.st_uid, owner.st_gid)
    try:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("create tablespace small_disk location {}").format(sql.Literal(str(data))))
    except psycopg.Error as problem:
        missing["disk"] = f"the server cannot use a small disk: {problem}"
