"""A real PostgreSQL without installing one: the programs of a wheel, the data in a folder of yours.

Starts, adopts, attaches to and stops one server per folder. Who starts it owns it and stops it; a second
process attaches. Never deletes data, and never ends a process other than the postmaster of its data folder.
"""

import atexit
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Literal, Self
from urllib.parse import quote

from aftercommit.embedded.account import Account, choose_account
from aftercommit.embedded.cluster import Cluster, binaries
from aftercommit.embedded.folder_lock import FolderLock
from aftercommit.embedded.postmaster import (
    POLL_SECONDS,
    Postmaster,
    describe_process,
    disown_stale_files,
    find_postmaster,
    kill_postmaster,
    wait_until_gone,
)
from aftercommit.errors import EmbeddedPostgresError

StopMode = Literal["fast", "smart", "immediate"]

DEFAULT_VERSION: Final = 18
DEFAULT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"shared_buffers": "128MB", "max_connections": "300", "wal_level": "replica"}
)

_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
_OUR_SETTINGS: Final = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory"})
_STOP_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = MappingProxyType(
    {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
)
_STOP_TIMEOUT: Final = 60.0
# How long a server may need, over the timeout, to write the pid file by which others can find it.
_GRACE: Final = 10.0
# Names the socket file of a server without TCP. Each server has its own socket folder, so nothing clashes.
_SOCKET_PORT: Final = 5432

_logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Where the embedded server lives when nothing else is said: `AFTERCOMMIT_HOME`, or `./.aftercommit`."""
    return Path(os.environ.get("AFTERCOMMIT_HOME") or ".aftercommit")


class EmbeddedPostgres:
    """One PostgreSQL server in one folder.

    The data is in `<folder>/postgres-<version>`, the server's log beside it. Clients connect through a unix
    socket in a folder that only this user may enter; there is no TCP unless `port` asks for it (0 picks a
    free one). `settings` override `DEFAULT_SETTINGS`. `start_timeout` bounds the wait in `start`, crash
    recovery included.
    """

    def __init__(
        self,
        folder: Path,
        *,
        version: int = DEFAULT_VERSION,
        settings: Mapping[str, str] = _NO_SETTINGS,
        port: int | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        _check_settings(settings)
        self.cluster = Cluster(Path(folder).expanduser().resolve(), version)
        self.settings = dict(settings)
        self._requested_port = port
        self._start_timeout = start_timeout
        self._lock = FolderLock(self.cluster.folder / "lock", self.cluster.data.name)
        self._server: Postmaster | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._attached = False

    def start(self) -> None:
        """Make the server run and wait until it accepts connections.

        A new folder is initialised. A server that runs there already is attached to when another process owns
        it, and adopted when its owner has died.
        """
        if self._lock.held and self.is_running():
            return
        deadline = time.monotonic() + self._start_timeout
        binaries(self.cluster.version)
        try:
            self.cluster.prepare_folder()
            while not self._try_to_own_or_attach(deadline):
                if time.monotonic() > deadline:
                    raise self._lock_error()
                time.sleep(POLL_SECONDS)
        except OSError as error:
            path = error.filename or self.cluster.folder
            raise EmbeddedPostgresError(
                f"the embedded PostgreSQL cannot use {path}: {error.strerror}. Make it usable for this "
                "user, or choose another folder with AFTERCOMMIT_HOME"
            ) from error

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if we own it; when attached, only let go of it.

        `fast` ends the clients' sessions, `smart` waits for them to leave, `immediate` crashes on purpose
        (the next start recovers).
        """
        self._attached = False
        if not self._lock.held:
            return
        server = find_postmaster(self.cluster.data)
        if server is not None:
            self._signal_and_wait(server.pid, mode)
        if self._server is not None and self._server.socket_folder != self.cluster.data:
            shutil.rmtree(self._server.socket_folder, ignore_errors=True)
        self._lock.release()
        atexit.unregister(self.stop)

    def tell_to_stop(self) -> bool:
        """Tell the server to stop if we own it, and wait for nothing; whether it was told."""
        if not self._lock.held:
            return False
        server = find_postmaster(self.cluster.data)
        pid = server.pid if server is not None else (self._child.pid if self._child is not None else None)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _STOP_SIGNALS["fast"])
        return True

    def kill(self) -> None:
        """SIGKILL the postmaster, as a crash would, and wait until its processes are gone."""
        server = find_postmaster(self.cluster.data)
        if server is not None:
            kill_postmaster(server.pid, _STOP_TIMEOUT)
        self._reap()

    def is_running(self) -> bool:
        """Whether a postmaster lives in this data folder, whoever started it."""
        return self.pid is not None

    @property
    def attached(self) -> bool:
        """Whether the server belongs to another process, so that our `stop` leaves it alone."""
        return self._attached

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None when it does not run."""
        self._reap()
        server = find_postmaster(self.cluster.data)
        return None if server is None else server.pid

    @property
    def port(self) -> int | None:
        """The TCP port on 127.0.0.1, or None when the server listens on its socket alone."""
        server = self._started()
        return server.port if server.listens_on_tcp else None

    @property
    def dsn(self) -> str:
        """The connection URI of the database `postgres`, as the superuser `postgres`."""
        return self.dsn_for("postgres")

    def dsn_for(self, database: str) -> str:
        """The connection URI of one database; it stays the same when this object restarts the server."""
        server = self._started()
        host = quote(str(server.socket_folder), safe="/")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={server.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _started(self) -> Postmaster:
        if self._server is None:
            raise EmbeddedPostgresError(
                f"the embedded PostgreSQL in {self.cluster.folder} is not started: call start() first"
            )
        return self._server

    def _try_to_own_or_attach(self, deadline: float) -> bool:
        if not self._lock.acquire():
            return self._try_to_attach()
        try:
            orphan = self._wait_for_orphan(deadline)
            if orphan is not None:
                self._accept_as_it_is(orphan)
            else:
                self._server = self._launch(deadline)
        except BaseException:
            self._abandon_launch()
            self._lock.release()
            raise
        self._attached = False
        atexit.register(self.stop)
        return True

    def _try_to_attach(self) -> bool:
        holder = self._lock.holder()
        if holder is not None and holder[1] != self._lock.purpose:
            raise EmbeddedPostgresError(
                f"{self.cluster.folder} is in use by process {describe_process(holder[0])} for {holder[1]}: "
                f"give {self._lock.purpose} a folder of its own"
            )
        server = find_postmaster(self.cluster.data)
        if server is None or not server.is_ready:
            return False
        self._accept_as_it_is(server)
        self._attached = True
        return True

    def _accept_as_it_is(self, server: Postmaster) -> None:
        self._server = server
        if self.settings or self._requested_port is not None:
            _logger.warning(
                "a PostgreSQL (process %s) was running in %s already: it keeps the settings and port it has",
                server.pid,
                self.cluster.folder,
            )

    def _wait_for_orphan(self, deadline: float) -> Postmaster | None:
        """The server left by an owner that died, once it is ready; None when there is none (any more)."""
        while (server := find_postmaster(self.cluster.data)) is not None and not server.is_ready:
            self._check_deadline(deadline, server.pid)
            time.sleep(POLL_SECONDS)
        return server

    def _launch(self, deadline: float) -> Postmaster:
        self._see_off_last_child(deadline)
        account = choose_account(self.cluster.data, binaries(self.cluster.version))
        self.cluster.initialise(account, sync=self.settings.get("fsync") != "off")
        while True:
            log_start = self.cluster.log_size()
            child = self._spawn(account)
            server = self._wait_until_ready(child, deadline)
            if server is not None:
                return server
            log = self.cluster.log_tail(log_start)
            if time.monotonic() > deadline or not self._passes_by_itself(log):
                raise EmbeddedPostgresError(
                    f"PostgreSQL {self.cluster.version} did not start (exit status {child.returncode}). The "
                    f"end of its log {self.cluster.log}:\n{log}"
                )
            time.sleep(POLL_SECONDS)

    def _spawn(self, account: Account) -> "subprocess.Popen[bytes]":
        socket_folder = self.cluster.socket_folder(account)
        disown_stale_files(self.cluster.data, socket_folder)
        settings = {
            **DEFAULT_SETTINGS,
            **self.settings,
            "port": str(self._choose_port()),
            "listen_addresses": "" if self._requested_port is None else "127.0.0.1",
            "unix_socket_directories": '"' + str(socket_folder).replace('"', '""') + '"',
        }
        command: list[str | Path] = [binaries(self.cluster.version) / "postgres", "-D", self.cluster.data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.cluster.log.open("ab") as log:
            self._child = account.spawn(command, log)
        return self._child

    def _wait_until_ready(self, child: "subprocess.Popen[bytes]", deadline: float) -> Postmaster | None:
        """The server once it accepts connections; None when it ended instead."""
        while child.poll() is None:
            server = find_postmaster(self.cluster.data)
            if server is not None and server.is_ready:
                return server
            if server is not None:
                self._check_deadline(deadline, child.pid)
            elif time.monotonic() > deadline + _GRACE:
                child.kill()
            time.sleep(POLL_SECONDS)
        return None

    def _abandon_launch(self) -> None:
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        if self.pid == child.pid:
            # Left to run by itself; without a return code Popen would warn about that.
            child.returncode = 0
        else:
            # Not in postmaster.pid yet: the next start would not find it, and start a second one beside it.
            child.kill()
            child.wait()

    def _check_deadline(self, deadline: float, pid: int) -> None:
        # The server is left alone: a long recovery would begin from the start again if we ended it here.
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"PostgreSQL (process {pid}) is not ready after {self._start_timeout:g} s and goes on by "
                "itself, perhaps recovering from a crash: start again to wait for it, or give a longer "
                f"start_timeout. The end of its log {self.cluster.log}:\n{self.cluster.log_tail()}"
            )

    def _passes_by_itself(self, log: str) -> bool:
        # Backends of a killed server need a moment to notice; PostgreSQL itself refuses to start beside them.
        backends_remain = "is still in use" in log
        # Somebody took the free port between our choice and the server's bind; the next try picks another.
        port_was_taken = self._requested_port == 0 and "could not create any TCP/IP sockets" in log
        if port_was_taken:
            self._server = None
        return backends_remain or port_was_taken

    def _choose_port(self) -> int:
        if self._requested_port is None:
            return _SOCKET_PORT
        if self._requested_port != 0:
            return self._requested_port
        if self._server is not None and self._server.listens_on_tcp:
            return self._server.port
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def _signal_and_wait(self, pid: int, mode: StopMode) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _STOP_SIGNALS[mode])
        gone = wait_until_gone(pid, _STOP_TIMEOUT)
        if not gone and mode == "smart":
            raise EmbeddedPostgresError(
                f"PostgreSQL (process {pid}) still has clients after {_STOP_TIMEOUT:g} s: close them, or use "
                "stop('fast')"
            )
        if not gone:
            _logger.warning("PostgreSQL (process %s) did not stop in %g s and is killed", pid, _STOP_TIMEOUT)
            kill_postmaster(pid, _STOP_TIMEOUT)
        self._reap()

    def _reap(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    def _see_off_last_child(self, deadline: float) -> None:
        # A killed server is not found in its folder a moment before the system reports it as ended.
        if self._child is None:
            return
        try:
            self._child.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise EmbeddedPostgresError(
                f"PostgreSQL (process {self._child.pid}) has let go of {self.cluster.data} but did not end within "
                f"{self._start_timeout:g} s, and is killed: start again"
            ) from None
        self._child = None

    def _lock_error(self) -> EmbeddedPostgresError:
        holder = self._lock.holder()
        who = "another process" if holder is None else f"process {describe_process(holder[0])}"
        return EmbeddedPostgresError(
            f"{self._lock.path} is held by {who}, but no PostgreSQL was ready in {self.cluster.data} within "
            f"{self._start_timeout:g} s. Wait until that process has started or stopped its server, or end "
            f"it, and start again. The end of the log {self.cluster.log}:\n{self.cluster.log_tail()}"
        )


def _check_settings(settings: Mapping[str, str]) -> None:
    for name in sorted(_OUR_SETTINGS & settings.keys()):
        raise EmbeddedPostgresError(f"the setting {name!r} is the embedded server's own: use folder= and port=")
    if settings.get("wal_level") == "minimal":
        raise EmbeddedPostgresError("wal_level 'minimal' is not supported: leave it out, or use 'replica' or 'logical'")
