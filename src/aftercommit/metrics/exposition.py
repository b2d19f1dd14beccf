"""`/metrics`: as text for a server of yours, or over HTTP in a thread of its own, on loopback and without a login."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from aftercommit.errors import AftercommitError, MissingExtra
from aftercommit.metrics.collector import register
from aftercommit.outbox import Outbox
from aftercommit.telemetry import Meter

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry

LOOPBACK = "127.0.0.1"


class MetricsServer:
    """A running `/metrics`."""

    def __init__(self, server: "WSGIServer", address: str) -> None:
        self._server = server
        self.address = address
        self.port = int(server.server_port)

    @property
    def url(self) -> str:
        """Where Prometheus finds it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/metrics"

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def serve(port: int, *sources: Outbox | Meter, address: str = LOOPBACK) -> MetricsServer:
    """Serve the figures of these outboxes and of the process itself; port 0 picks a free one."""
    registry = _registry(sources)
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, addr=address, registry=registry)
    except (OSError, OverflowError) as problem:
        raise AftercommitError(
            f"metrics cannot be served on {address}:{port}: {problem}. Choose another port or address"
        ) from problem
    return MetricsServer(server, address)


def exposition(*sources: Outbox | Meter) -> Callable[[], str]:
    """What writes the figures of these outboxes and of the process itself down, as Prometheus reads them."""
    registry = _registry(sources)
    from prometheus_client import generate_latest

    return lambda: generate_latest(registry).decode()


def _registry(sources: tuple[Outbox | Meter, ...]) -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ModuleNotFoundError as problem:
        raise MissingExtra("prometheus", "prometheus_client") from problem
    registry = CollectorRegistry()
    register(registry, *sources)
    ProcessCollector(registry=registry)
    return registry
