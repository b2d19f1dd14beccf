"""Prometheus metrics of the running process. Reads meters in memory, not the database.

`register(registry, outbox)` adds the metrics to your registry, `exposition(outbox)` returns them as text, and
`serve(port, outbox)` serves `/metrics` in a thread. Needs `aftercommit[prometheus]`.
"""

from aftercommit.contrib.prometheus.collector import PrometheusCollector, register
from aftercommit.contrib.prometheus.exposition import MetricsServer, exposition, serve

__all__ = ["MetricsServer", "PrometheusCollector", "exposition", "register", "serve"]
