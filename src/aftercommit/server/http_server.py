"""Runs an application under uvicorn with limits on what a client may cost: in this process, or in several of them.

A stop is bounded although streams are open: they are told goodbye, new connections go elsewhere, and what has not ended
by then is dropped.
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
# For what is not a stream: answers that are being written, and the sockets that close after them.
MARGIN_SECONDS = 3.0
# Addresses that mean all of a machine's; from the machine itself it is found here.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def stop_seconds(drain_seconds: float) -> float:
    """How long a server process takes to end at most; then it hangs, and whoever waits for it may kill it."""
    return drain_seconds + 2 * MARGIN_SECONDS


class AddressTaken(AftercommitError):
    """Nothing can be served at this address: another program does, or it is not ours."""


class Configuration(uvicorn.Config):
    """uvicorn's settings with our guards; goes to worker processes as it is."""

    def __init__(
        self,
        app: Asgi | str,
        guards: Guards,
        drain_seconds: float,
        options: Mapping[str, Any],
        *,
        owns_process: bool = False,
    ) -> None:
        """`options` are uvicorn's own and have the last word. `owns_process`: nothing but this runs in it."""
        self.guards = guards
        self.owns_process = owns_process
        chosen: dict[str, Any] = {
            "http": PROTOCOL,
            "ws": "none",
            "lifespan": "on",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            # Whoever connects can write these headers; behind a proxy its address is given as an option.
            "proxy_headers": False,
            "timeout_keep_alive": 65,
            "timeout_graceful_shutdown": math.ceil(drain_seconds + MARGIN_SECONDS),
            **options,
        }
        super().__init__(app, **chosen)

    def load(self) -> None:
        """What is done in the process that serves, before it does."""
        super().load()
        if self.workers > 1:
            end_with_parent()
        if self.owns_process:
            # What was imported stays to the end: a collector that walks it costs each request an eighth of its time.
            gc.collect()
            gc.freeze()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    if not host:
        # To the operating system that is every address of this machine: nobody should get there by an empty variable.
        raise DeclarationError("the host to listen on is empty: write 127.0.0.1, or 0.0.0.0 for every address there is")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows a socket on which small answers must not wait for each other; uvloop knows anyway.
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
    """What a socket listens on, as the log tells it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_of(bound: socket.socket) -> str:
    """Where a browser finds what is served on this socket."""
    host, port = bound.getsockname()[:2]
    host = _EVERYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
    """Serve `module:attribute` until a signal ends it, on a socket that is bound already if one is given.

    An application that fails for good ends its process with an error (`ServerFailed`). Several workers share the
    address; one that dies is replaced. SIGTERM and SIGINT drain; SIGHUP replaces the workers
    one after the other. `drain_seconds` is that of the application's `StreamTimes`: what has not ended by then is
    dropped.
    """
    if workers < 1:
        raise DeclarationError(f"workers={workers} would serve nobody: give at least 1")
    chosen = {**(options or {}), "workers": workers}
    configuration = Configuration(app, guards or Guards(), drain_seconds, chosen, owns_process=True)
    with bound or listen(host, port) as bound:
        alone = _Alone(configuration)
        supervisor = (
            Supervisor(configuration, bound, grace_seconds=stop_seconds(drain_seconds)) if workers > 1 else None
        )
        with _signals_end_quietly(supervisor.hear if supervisor is not None else alone.hear):
            log_event(logger, logging.INFO, "server_listening", url=address_of(bound), workers=workers)
            if on_listening is not None:
                on_listening(url_of(bound))
            if supervisor is not None:
                with shared_folder():
                    supervisor.run()
            else:
                alone.run(sockets=[bound])


@contextmanager
def _signals_end_quietly(hear: Callable[[int], None]) -> Iterator[None]:
    """Pass on signals that come before the server listens for them itself: they are to end it too.

    uvicorn raises the signal that ended it once more when it is done; an orderly end is not a death by signal.
    """
    endings = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, frame: hear(number)) for number in endings}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Alone(EndingServer):
    """A uvicorn that is no supervisor's."""

    def hear(self, number: int) -> None:
        """Told to end before it has begun: it starts, and ends in order at once."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin; an application that cannot is an error, and not the end of the whole program."""
        try:
            await super().startup(sockets)
        except SystemExit:
            raise AftercommitError("the application could not start; what it said is in the log") from None


class _Embedded(_Alone):
    """A uvicorn that leaves signals to the program that it is a part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


class HttpServer(Service):
    """An application served by this process, next to whatever else runs in it."""

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
        """Listens from here on; answers when it is started. `on_stop` is `FeedApp.drain`, when there is one."""
        super().__init__(probe)
        self._socket = listen(host, port)
        self._on_stop = on_stop
        self._server = _Embedded(Configuration(app, guards or Guards(), drain_seconds, options or {}))
        self.url = url_of(self._socket)

    async def run(self) -> None:
        """Serve until stopped, then let answers and streams end. An application that fails for good is an error."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                # Also when this is cancelled: what serves has connections and services that would go on without us.
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
        """Until requests are answered."""
        while not self._server.started:
            if self._task is not None and self._task.done():
                await self._task
                return
            await asyncio.sleep(0.01)
