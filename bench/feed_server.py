"""Servers of the feed cases, seen from outside: started, told to let logs happen, measured, ended."""

import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

from bench import feed_logs
from bench.cpu import server_cpu
from bench.peers.environment import ROOT
from bench.stage import ContestantFailed

PATIENCE: Final = 60.0
NCHAN_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
NCHAN: Final = """
    load_module {module};
    daemon off; master_process on; worker_processes 1; worker_rlimit_nofile 20000; user {user};
    pid {folder}/pid; error_log {folder}/error.log;
    events {{ worker_connections 15000; }}
    http {{
        access_log off; keepalive_requests 100000000;
        client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
        uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
        nchan_max_reserved_memory 256M;
        server {{
            listen 127.0.0.1:{port} backlog=2048;
            location = /publish {{ nchan_publisher; nchan_channel_id logs; nchan_message_buffer_length 1000; }}
            location = /subscribe {{
                nchan_subscriber eventsource; nchan_channel_id logs; nchan_subscriber_first_message newest;
            }}
        }}
    }}
"""


class Server(Protocol):
    """A server that streams are open to."""

    url: str
    path: str
    pid: int

    def emit(self, logs: int) -> None:
        """Let so many logs happen at once."""

    def close(self) -> None:
        """End it."""


class Process:
    """One of ours or of the floors, in a process of its own."""

    def __init__(self, role: str, *arguments: str, path: str = f"{feed_logs.ADDRESS}/stream") -> None:
        allow_files()
        command = [sys.executable, "-m", "bench.feed_process", role, *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.path = path
        self.pid = self._process.pid
        if not self.url:
            self.close()
            raise ContestantFailed(f"the server {role!r} did not start: see above")

    def emit(self, logs: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"emit {logs}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        # Thousands of streams need not be told goodbye.
        self._process.kill()
        self._process.communicate()


class Nchan:
    """nginx with its module nchan, one worker process."""

    path = "/subscribe"

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="aftercommit-nchan-"))
        port = _free_port()
        user = psutil.Process().username()
        text = NCHAN.format(module=NCHAN_MODULE, folder=self._folder, port=port, user=user)
        (self._folder / "nginx.conf").write_text(text)
        command = ["nginx", "-p", str(self._folder), "-c", "nginx.conf", "-e", str(self._folder / "error.log")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.url, self.pid = f"http://127.0.0.1:{port}", self._process.pid
        body = feed_logs.item(1)
        self._request = b"POST /publish HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        try:
            self._publisher = self._connected(port)
        except ContestantFailed:
            self.close()
            raise

    def emit(self, logs: int) -> None:
        """All of them in one piece, on a connection that stays; what it answers is read when it comes to that."""
        self._publisher.sendall(self._request * logs)
        self._publisher.setblocking(False)
        try:
            while self._publisher.recv(65_536):
                pass
        except BlockingIOError:
            pass
        self._publisher.setblocking(True)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connected(self, port: int) -> socket.socket:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            try:
                return socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                time.sleep(0.02)
        raise ContestantFailed("nginx with nchan did not start: see above")


def why_no_nchan() -> str | None:
    """What is missing for nchan to take part."""
    if shutil.which("nginx") is None or not NCHAN_MODULE.exists():
        return "nginx with nchan is not installed: apt-get install nginx libnginx-mod-nchan"
    return None


def allow_files() -> None:
    """As many open connections as this machine lets a program have, in this process and in those it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cpu(server: Server) -> float:
    """Processor time of a server with all its processes, in seconds."""
    return server_cpu(server.pid)


def resident(server: Server) -> int:
    """Bytes that a server has in memory."""
    return int(psutil.Process(server.pid).memory_info().rss)


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    """Ends them all, whatever happens."""
    try:
        yield
    finally:
        for server in servers:
            server.close()


def address_of(server: Server) -> tuple[str, int]:
    """Host and port."""
    parts = urlsplit(server.url)
    return str(parts.hostname), int(parts.port or 80)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
