"""The figures of the running process for Prometheus. Reads meters when asked; never touches the database.

Nothing is registered by importing this: `register(registry, outbox)` adds the figures to a registry of yours,
`exposition(outbox)` writes them down as text, and `serve(port, outbox)` answers `/metrics` in a thread. Needs
`aftercommit[prometheus]`.
"""

from aftercommit.contrib.prometheus.collector import PrometheusCollector, register
from aftercommit.contrib.prometheus.exposition import MetricsServer, exposition, serve

__all__ = ["MetricsServer", "PrometheusCollector", "exposition", "register", "serve"]
