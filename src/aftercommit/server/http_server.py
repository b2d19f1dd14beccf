"""Runs an application under uvicorn with limits on what a client may cost, in one process or in several.

A stop takes a bounded time although streams are open: they get a goodbye, and what has not ended by then is dropped.
"""

import asyncio
import errno
import gc
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from aftercommit.errors import AftercommitError, DeclarationError, MissingExtra
from aftercommit.http.asgi import DRAIN_SECONDS, Asgi
from aftercommit.server.ending_server import EndingServer
from aftercommit.server.port_holder import holder_of
from aftercommit.server.protocol import Guards
from aftercommit.server.shared_figures import shared_folder
from aftercommit.server.supervisor import Supervisor, end_with_parent
from aftercommit.service import Probe, Service
from aftercommit.telemetry import log_event

try:
    import uvicorn
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "uvicorn") from problem

logger = logging.getLogger("aftercommit.server")

PROTOCOL = "aftercommit.server.protocol:GuardedProtocol"
# After the streams have ended: for answers that are being written, and the sockets that close after them.
MARGIN_SECONDS = 3.0
# Addresses that mean every address of a machine, and where the machine itself finds them.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def stop_seconds(drain_seconds: float) -> float:
    """How long a server process takes to end at most. After that it hangs and may be killed."""
    return drain_seconds + 2 * MARGIN_SECONDS


class AddressTaken(AftercommitError):
    """The address cannot be used: another program listens there, or this machine does not have it."""


class Configuration(uvicorn.Config):
    """uvicorn's settings with our guards. Worker processes get a copy."""

    # Whether nothing else runs in the process that serves.
    owns_process = False

    def __init__(self, app: Asgi | str, guards: Guards, drain_seconds: float, options: Mapping[str, Any]) -> None:
        """`options` are uvicorn's and override ours."""
        self.guards = guards
        chosen: dict[str, Any] = {
            "http": PROTOCOL,
            "ws": "none",
            "lifespan": "on",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            # Any client can send these headers. Behind a proxy, pass its address as an option.
            "proxy_headers": False,
            "timeout_keep_alive": 65,
            "timeout_graceful_shutdown": math.ceil(drain_seconds + MARGIN_SECONDS),
            **options,
        }
        super().__init__(app, **chosen)

    def load(self) -> None:
        """Prepare the process that serves."""
        super().load()
        if self.workers > 1:
            end_with_parent()
        if self.owns_process:
            # What was imported stays to the end, and walking it cost each request an eighth of its time.
            gc.collect()
            gc.freeze()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    if not host:
        # The operating system would take it for every address, and an empty variable must not mean that.
        raise DeclarationError("the host to listen on is empty: write 127.0.0.1, or 0.0.0.0 for every address there is")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with this protocol number; uvloop always does.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as problem:
        bound.close()
        holder = holder_of(port) if problem.errno == errno.EADDRINUSE else None
        by = f" by {holder}" if holder is not None else ""
        raise AddressTaken(
            f"cannot listen on {host}:{port}: {problem.strerror}{by}. Choose another --port or --host"
        ) from None
    bound.listen(2048)
    bound.set_inheritable(True)
    return bound


def address_of(bound: socket.socket) -> str:
    """What a socket listens on, for the log."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_of(bound: socket.socket) -> str:
    """Where a browser on this machine finds what is served on this socket."""
    host = bound.getsockname()[0]
    return address_of(bound).replace(host, _EVERYWHERE.get(host, host))


def serve(
    app: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8090,
    bound: socket.socket | None = None,
    workers: int = 1,
    guards: Guards | None = None,
    drain_seconds: float = DRAIN_SECONDS,
    options: Mapping[str, Any] | None = None,
    on_listening: Callable[[str], object] | None = None,
) -> None:
    """Serve `module:attribute` until a signal ends it; on the socket `bound`, if one is given.

    SIGTERM and SIGINT stop it. With several workers, one that dies is replaced, and SIGHUP replaces them one after the
    other. An application that fails for good ends its process (`ServerFailed`). `drain_seconds` is that of the
    application's `StreamTimes`: connections that are still open after that long are dropped.
    """
    if workers < 1:
        raise DeclarationError(f"workers={workers} is too few: give at least 1")
    configuration = Configuration(app, guards or Guards(), drain_seconds, {**(options or {}), "workers": workers})
    configuration.owns_process = True
    with bound or listen(host, port) as bound:
        alone = _Alone(configuration)
        supervisor = (
            Supervisor(configuration, bound, grace_seconds=stop_seconds(drain_seconds)) if workers > 1 else None
        )
        with _signals_end_quietly(alone.hear if supervisor is None else supervisor.hear, alone=supervisor is None):
            log_event(logger, logging.INFO, "server_listening", url=address_of(bound), workers=workers)
            if on_listening is not None:
                on_listening(url_of(bound))
            if supervisor is not None:
                with shared_folder():
                    supervisor.run()
            else:
                alone.run(sockets=[bound])


@contextmanager
def _signals_end_quietly(hear: Callable[[int], None], *, alone: bool) -> Iterator[None]:
    """Pass on signals that come before the server handles them itself.

    uvicorn raises the signal that ended it again when it is done. Here it is swallowed: an orderly end is not a death
    by signal.
    """
    # SIGHUP tells a supervisor to replace its processes. A single process shuts down; its process manager restarts it.
    endings = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if alone else (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, frame: hear(number)) for number in endings}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Alone(EndingServer):
    """A uvicorn without a supervisor."""

    def hear(self, number: int) -> None:
        """A signal before it has begun: it starts, and ends at once in order."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin. If the application cannot start, raise an error instead of ending the whole program."""
        try:
            await super().startup(sockets)
        except SystemExit:
            raise AftercommitError("the application could not start; what it said is in the log") from None


class _Embedded(_Alone):
    """A uvicorn that leaves signals to the program around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


class HttpServer(Service):
    """Serves an application from this process, beside whatever else runs in it."""

    name = "http"

    def __init__(
        self,
        app: Asgi,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        guards: Guards | None = None,
        drain_seconds: float = DRAIN_SECONDS,
        on_stop: Callable[[], object] | None = None,
        options: Mapping[str, Any] | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Listens at once, and answers when it is started. For an application with feeds `on_stop` is its `drain`."""
        super().__init__(probe)
        self._socket = listen(host, port)
        self._on_stop = on_stop
        self._server = _Embedded(Configuration(app, guards or Guards(), drain_seconds, options or {}))
        self.url = url_of(self._socket)

    async def run(self) -> None:
        """Serve until stopped, then let answers and streams end. ServerFailed if the application fails for good."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                # Also when this is cancelled: the server's connections and services would otherwise go on.
                await self._ended(serving)
            finally:
                stopping.cancel()
                self._socket.close()
                with suppress(asyncio.CancelledError):
                    await stopping

    async def _ended(self, serving: "asyncio.Task[None]") -> None:
        if self._on_stop is not None and not serving.done():
            self._on_stop()
        self._server.should_exit = True
        await serving

    async def answers(self) -> None:
        """Wait until requests are answered."""
        while not self._server.started:
            if self._task is not None and self._task.done():
                await self._task
                return
            await asyncio.sleep(0.01)
