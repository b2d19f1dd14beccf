"""Investigation logs: frontends and backends write log lines into an investigation, and people watch them live.

Point relays and migrations at `outbox`. The feed is exported as well, because it declares the log's indexes.
"""

from systems.investigations.events import outbox
from systems.investigations.feeds import logs

__all__ = ["logs", "outbox"]
