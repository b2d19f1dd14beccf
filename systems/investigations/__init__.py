"""Investigation logs: frontends and backends write log lines into an investigation, people watch them arrive.

`outbox` is what relays and migrations are pointed at: with the feed, which says by what the log is indexed.
"""

from systems.investigations.events import outbox
from systems.investigations.feeds import logs

__all__ = ["logs", "outbox"]
