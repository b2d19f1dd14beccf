"""`/metrics`, `/livez` and `/readyz` over HTTP, in a thread of its own, on loopback and without a login.

Or the figures as text, for a server of yours.
"""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from aftercommit.contrib.prometheus.collector import register
from aftercommit.errors import AftercommitError, MissingExtra
from aftercommit.outbox import Outbox
from aftercommit.telemetry import Meter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LOOPBACK = "127.0.0.1"


class ProbedEngine(Protocol):
    """What probes ask about: an Engine."""

    @property
    def is_alive(self) -> bool:
        """Whether a restart would not help."""
        ...

    @property
    def not_ready(self) -> list[str]:
        """Why it does not do its work now, in words; nothing when it does."""
        ...


class MetricsServer:
    """A running `/metrics`, with what probes ask for beside it."""

    def __init__(self, server: WSGIServer, address: str, probes: "_Probes") -> None:
        self._server = server
        self._probes = probes
        self.address = address
        self.port = int(server.server_port)

    @property
    def url(self) -> str:
        """Where Prometheus finds it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/metrics"

    def watch(self, engine: ProbedEngine) -> None:
        """From now on `/livez` and `/readyz` speak of this engine; before, nothing is ready."""
        self._probes.engine = engine

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def serve(port: int, *sources: Outbox | Meter, address: str = LOOPBACK) -> MetricsServer:
    """Serve the figures of these outboxes and of the process itself; port 0 picks a free one."""
    probes = _Probes(_registry(sources))
    kind = _IPv6Server if ":" in address else _Server
    try:
        server = make_server(address, port, probes, server_class=kind, handler_class=_Handler)
    except (OSError, OverflowError) as problem:
        raise AftercommitError(
            f"metrics cannot be served on {address}:{port}: {problem}. Choose another port or address"
        ) from problem
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return MetricsServer(server, address, probes)


def exposition(*sources: Outbox | Meter) -> Callable[[], str]:
    """What writes the figures of these outboxes and of the process itself down, as Prometheus reads them."""
    registry = _registry(sources)
    from prometheus_client import generate_latest

    return lambda: generate_latest(registry).decode()


class _Probes:
    """The application: figures at one path, probes at two, and nothing elsewhere."""

    def __init__(self, registry: "CollectorRegistry") -> None:
        from prometheus_client import make_wsgi_app

        self._figures = make_wsgi_app(registry)
        self.engine: ProbedEngine | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            figures: Iterable[bytes] = self._figures(environ, start_response)
            return figures
        status, told = self._answer(path)
        body = (told + "\n").encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        start_response(status, [*headers, ("Cache-Control", "no-store")])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    def _answer(self, path: str) -> tuple[str, str]:
        if path == "/livez":
            if self.engine is None or self.engine.is_alive:
                return "200 OK", "alive"
            return "503 Service Unavailable", "the event loop is blocked, probably by a handler"
        if path == "/readyz":
            reasons = ["not started yet"] if self.engine is None else self.engine.not_ready
            return ("503 Service Unavailable", "\n".join(reasons)) if reasons else ("200 OK", "ready")
        return "404 Not Found", "there are /metrics, /livez and /readyz"


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the question to a name server that the base class asks."""
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _registry(sources: tuple[Outbox | Meter, ...]) -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ModuleNotFoundError as problem:
        raise MissingExtra("prometheus", "prometheus_client") from problem
    registry = CollectorRegistry()
    register(registry, *sources)
    ProcessCollector(registry=registry)
    return registry
