"""Starts the embedded server as a child process and waits until it is ready. The caller must hold the folder's lock."""

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from aftercommit.embedded.account import Account, choose_account
from aftercommit.embedded.cluster import Cluster, binaries
from aftercommit.embedded.postmaster import POLL_SECONDS, Postmaster, disown_stale_files, find_postmaster
from aftercommit.errors import EmbeddedPostgresError

DEFAULT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"shared_buffers": "128MB", "max_connections": "300", "wal_level": "replica"}
)
# How long after the timeout a server may take to write its pid file, by which other processes find it.
_GRACE: Final = 10.0
# The port in the socket's name of a server without TCP. Each server has its own socket folder.
_SOCKET_PORT: Final = 5432


class PostgresLauncher:
    """Starts PostgreSQL in one cluster and keeps track of the child process."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, str], port: int | None, start_timeout: float) -> None:
        self.cluster = cluster
        self.settings = settings
        self.requested_port = port
        self.start_timeout = start_timeout
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def child_pid(self) -> int | None:
        """The process id of the child, if there is one."""
        return self._child.pid if self._child is not None else None

    def launch(self, deadline: float, last: Postmaster | None) -> Postmaster:
        """Start the server and wait until it is ready; on a free port, reuse that of the `last` server."""
        self._see_off_last_child(deadline)
        account = choose_account(self.cluster.data, binaries(self.cluster.version))
        self.cluster.initialise(account, sync=self.settings.get("fsync") != "off")
        while True:
            log_start = self.cluster.log_size()
            self._child = child = self._spawn(account, self._choose_port(last))
            server = self._wait_until_ready(child, deadline)
            if server is not None:
                return server
            log = self.cluster.log_tail(log_start)
            # Backends of a killed server need a moment to end, and PostgreSQL refuses to start beside them.
            backends_remain = "is still in use" in log
            # Another process took the free port between our choice and the server's bind; the next try picks another.
            port_was_taken = self.requested_port == 0 and "could not create any TCP/IP sockets" in log
            if time.monotonic() > deadline or not (backends_remain or port_was_taken):
                raise EmbeddedPostgresError(
                    f"PostgreSQL {self.cluster.version} did not start (exit status {child.returncode}). The end of its "
                    f"log {self.cluster.log}:\n{log}"
                )
            last = None if port_was_taken else last
            time.sleep(POLL_SECONDS)

    def abandon(self) -> None:
        """After a failed launch: leave a server that others can find running, and kill one that they cannot."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        server = find_postmaster(self.cluster.data)
        if server is not None and server.pid == child.pid:
            # It keeps running; without a return code, Popen would warn about that.
            child.returncode = 0
        else:
            # Not in postmaster.pid yet: the next start would not find it, and would start a second one.
            child.kill()
            child.wait()

    def reap(self) -> None:
        """Forget a child that has ended."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    def check_deadline(self, deadline: float, pid: int) -> None:
        """Raise an error when the time is up. The server keeps running: crash recovery would have to start over."""
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"PostgreSQL (process {pid}) is not ready after {self.start_timeout:g} s. It keeps running, perhaps in "
                "crash recovery: start again to wait for it, or give a longer start_timeout. The end of its log "
                f"{self.cluster.log}:\n{self.cluster.log_tail()}"
            )

    def _spawn(self, account: Account, port: int) -> "subprocess.Popen[bytes]":
        socket_folder = self.cluster.socket_folder(account)
        disown_stale_files(self.cluster.data, socket_folder)
        settings = {
            **DEFAULT_SETTINGS,
            **self.settings,
            "port": str(port),
            "listen_addresses": "" if self.requested_port is None else "127.0.0.1",
            "unix_socket_directories": '"' + str(socket_folder).replace('"', '""') + '"',
        }
        command: list[str | Path] = [binaries(self.cluster.version) / "postgres", "-D", self.cluster.data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.cluster.log.open("ab") as log:
            return account.spawn(command, log)

    def _wait_until_ready(self, child: "subprocess.Popen[bytes]", deadline: float) -> Postmaster | None:
        """The server once it accepts connections; None if it has ended instead."""
        while child.poll() is None:
            server = find_postmaster(self.cluster.data)
            if server is not None and server.is_ready:
                return server
            if server is not None:
                self.check_deadline(deadline, child.pid)
            elif time.monotonic() > deadline + _GRACE:
                child.kill()
            time.sleep(POLL_SECONDS)
        return None

    def _choose_port(self, last: Postmaster | None) -> int:
        if self.requested_port is None:
            return _SOCKET_PORT
        if self.requested_port != 0:
            return self.requested_port
        if last is not None and last.listens_on_tcp:
            return last.port
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def _see_off_last_child(self, deadline: float) -> None:
        # A killed server disappears from its folder a moment before the system reports that it has ended.
        if self._child is None:
            return
        try:
            self._child.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise EmbeddedPostgresError(
                f"PostgreSQL (process {self._child.pid}) has left {self.cluster.data}, but did not end within "
                f"{self.start_timeout:g} s. It is being killed: start again"
            ) from None
        self._child = None
