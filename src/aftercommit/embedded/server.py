"""Runs PostgreSQL without an installation: the programs come from a wheel, the data is in a folder of yours.

There is one server per folder. The process that starts it owns it and stops it; other processes attach to it. If the
owner has died, the next process adopts the server.
"""

import atexit
import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, Self
from urllib.parse import quote

from aftercommit.embedded.cluster import Cluster, binaries
from aftercommit.embedded.folder_lock import FolderLock
from aftercommit.embedded.launcher import PostgresLauncher
from aftercommit.embedded.postmaster import (
    POLL_SECONDS,
    Postmaster,
    describe_process,
    find_postmaster,
    kill_postmaster,
    wait_until_gone,
)
from aftercommit.errors import EmbeddedPostgresError

StopMode = Literal["fast", "smart", "immediate"]

DEFAULT_VERSION: Final = 18
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
_OUR_SETTINGS: Final = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory"})
_STOP_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = MappingProxyType(
    {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
)
_STOP_TIMEOUT: Final = 60.0

_logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """The default folder of the embedded server: `AFTERCOMMIT_HOME`, or `./.aftercommit`."""
    return Path(os.environ.get("AFTERCOMMIT_HOME") or ".aftercommit")


class EmbeddedPostgres:
    """One PostgreSQL server in one folder.

    The data is in `<folder>/postgres-<version>`, the server's log beside it. Clients connect through a unix socket in a
    folder that only this user may enter; with `port`, also through TCP on 127.0.0.1 (0 chooses a free port). `settings`
    override `DEFAULT_SETTINGS`. `start_timeout` limits how long `start` waits, in seconds, including crash recovery.
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
        self._launcher = PostgresLauncher(self.cluster, self.settings, port, start_timeout)
        self._lock = FolderLock(self.cluster.folder / "lock", self.cluster.data.name)
        self._server: Postmaster | None = None
        self._attached = False

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Initialises a new folder. If a server already runs there, attaches to it, or adopts it if its owner has died.
        """
        if self._lock.held and self.is_running():
            return
        deadline = time.monotonic() + self._launcher.start_timeout
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
                f"the embedded PostgreSQL cannot use {path}: {error.strerror}. Give this user access to it, or choose "
                "another folder with AFTERCOMMIT_HOME"
            ) from error

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if we own it; if attached, only detach.

        `fast` ends the clients' sessions, `smart` waits until they end, `immediate` stops without a shutdown, so the
        next start runs crash recovery.
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
        """Tell the server to stop if we own it, without waiting; returns whether it was told."""
        if not self._lock.held:
            return False
        server = find_postmaster(self.cluster.data)
        pid = server.pid if server is not None else self._launcher.child_pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _STOP_SIGNALS["fast"])
        return True

    def kill(self) -> None:
        """SIGKILL the postmaster, like a crash, and wait until its processes have ended."""
        server = find_postmaster(self.cluster.data)
        if server is not None:
            kill_postmaster(server.pid, _STOP_TIMEOUT)
        self._launcher.reap()

    def is_running(self) -> bool:
        """Whether a server runs in this data folder, started by us or by another process."""
        return self.pid is not None

    @property
    def attached(self) -> bool:
        """Whether another process owns the server, so that our `stop` does not stop it."""
        return self._attached

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None if it does not run."""
        self._launcher.reap()
        server = find_postmaster(self.cluster.data)
        return None if server is None else server.pid

    @property
    def port(self) -> int | None:
        """The TCP port on 127.0.0.1, or None if the server has only its socket."""
        server = self._started()
        return server.port if server.listens_on_tcp else None

    @property
    def dsn(self) -> str:
        """The connection URI of the database `postgres`, as the superuser `postgres`."""
        return self.dsn_for("postgres")

    def dsn_for(self, database: str) -> str:
        """The connection URI of one database; it stays the same if this object restarts the server."""
        server = self._started()
        host = quote(str(server.socket_folder), safe="/")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={server.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
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
                self._server = self._launcher.launch(deadline, self._server)
        except BaseException:
            self._launcher.abandon()
            self._lock.release()
            raise
        self._attached = False
        atexit.register(self.stop)
        return True

    def _try_to_attach(self) -> bool:
        holder = self._lock.holder()
        if holder is not None and holder[1] != self._lock.purpose:
            raise EmbeddedPostgresError(
                f"process {describe_process(holder[0])} uses {self.cluster.folder} for {holder[1]}: choose another "
                f"folder for {self._lock.purpose}"
            )
        server = find_postmaster(self.cluster.data)
        if server is None or not server.is_ready:
            return False
        self._accept_as_it_is(server)
        self._attached = True
        return True

    def _accept_as_it_is(self, server: Postmaster) -> None:
        self._server = server
        if self.settings or self._launcher.requested_port is not None:
            _logger.warning(
                "a PostgreSQL (process %s) was already running in %s: it keeps its settings and its port",
                server.pid,
                self.cluster.folder,
            )

    def _wait_for_orphan(self, deadline: float) -> Postmaster | None:
        """The server whose owner has died, once it is ready; None if there is none (any more)."""
        while (server := find_postmaster(self.cluster.data)) is not None and not server.is_ready:
            self._launcher.check_deadline(deadline, server.pid)
            time.sleep(POLL_SECONDS)
        return server

    def _signal_and_wait(self, pid: int, mode: StopMode) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _STOP_SIGNALS[mode])
        gone = wait_until_gone(pid, _STOP_TIMEOUT)
        if not gone and mode == "smart":
            raise EmbeddedPostgresError(
                f"PostgreSQL (process {pid}) still has clients after {_STOP_TIMEOUT:g} s: close them, or stop('fast')"
            )
        if not gone:
            _logger.warning("PostgreSQL (process %s) did not stop within %g s: killing it", pid, _STOP_TIMEOUT)
            kill_postmaster(pid, _STOP_TIMEOUT)
        self._launcher.reap()

    def _lock_error(self) -> EmbeddedPostgresError:
        holder = self._lock.holder()
        who = "another process" if holder is None else f"process {describe_process(holder[0])}"
        return EmbeddedPostgresError(
            f"{who} holds {self._lock.path}, but no PostgreSQL was ready in {self.cluster.data} within "
            f"{self._launcher.start_timeout:g} s. Wait until that process has started or stopped its server, or end "
            f"it, and start again. The end of the log {self.cluster.log}:\n{self.cluster.log_tail()}"
        )


def _check_settings(settings: Mapping[str, str]) -> None:
    for name in sorted(_OUR_SETTINGS & settings.keys()):
        raise EmbeddedPostgresError(f"the embedded server sets {name!r} itself: use folder= and port= instead")
    if settings.get("wal_level") == "minimal":
        raise EmbeddedPostgresError("wal_level 'minimal' is not supported: leave it out, or use 'replica' or 'logical'")
