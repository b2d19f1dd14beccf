"""Serves `/metrics`, `/livez` and `/readyz` in a thread, by default on loopback, without authentication.

`exposition` returns the metrics as text, for your own server.
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
    """What the probes report on: an Engine."""

    @property
    def is_alive(self) -> bool:
        """Whether the process works without a restart."""
        ...

    @property
    def not_ready(self) -> list[str]:
        """The reasons why it does not work now; empty if it does."""
        ...


class MetricsServer:
    """A running server with `/metrics`, `/livez` and `/readyz`."""

    def __init__(self, server: WSGIServer, address: str, probes: "_Probes") -> None:
        self._server = server
        self._probes = probes
        self.address = address
        self.port = int(server.server_port)

    @property
    def url(self) -> str:
        """The URL of `/metrics`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/metrics"

    def watch(self, engine: ProbedEngine) -> None:
        """Let `/livez` and `/readyz` report on this engine. Before, `/readyz` answers 503."""
        self._probes.engine = engine

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


def serve(port: int, *sources: Outbox | Meter, address: str = LOOPBACK) -> MetricsServer:
    """Serve the metrics of these outboxes and of the process; port 0 picks a free port."""
    probes = _Probes(_registry(sources))
    kind = _IPv6Server if ":" in address else _Server
    try:
        server = make_server(address, port, probes, server_class=kind, handler_class=_Handler)
    except (OSError, OverflowError) as problem:
        raise AftercommitError(
            f"cannot serve metrics on {address}:{port}: {problem}. Choose another port or address"
        ) from problem
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return MetricsServer(server, address, probes)


def exposition(*sources: Outbox | Meter) -> Callable[[], str]:
    """A function that returns the metrics of these outboxes and of the process in Prometheus' text format."""
    registry = _registry(sources)
    from prometheus_client import generate_latest

    return lambda: generate_latest(registry).decode()


class _Probes:
    """The WSGI application with `/metrics`, `/livez` and `/readyz`."""

    def __init__(self, registry: "CollectorRegistry") -> None:
        from prometheus_client import make_wsgi_app

        self._figures = make_wsgi_app(registry)
        self.engine: ProbedEngine | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            figures: Iterable[bytes] = self._figures(environ, start_response)
            return figures
        status, text = self._answer(path)
        body = (text + "\n").encode()
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
        return "404 Not Found", "not found: use /metrics, /livez or /readyz"


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without the DNS lookup of the base class."""
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
