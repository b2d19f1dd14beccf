"""Runs the engine of `relay` and `worker`, with its metrics, and logs when it starts and stops."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack

import click

from aftercommit._version import __version__
from aftercommit.cli.numbers import Count
from aftercommit.cli.options import together
from aftercommit.cli.running import run_until_stopped
from aftercommit.contrib.prometheus import serve
from aftercommit.contrib.prometheus.exposition import LOOPBACK
from aftercommit.engine import Engine
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.process")

metrics_options = together(
    click.option(
        "--metrics-port", type=Count(0, 65535), metavar="PORT", help="Serve /metrics, /livez and /readyz on this port."
    ),
    click.option(
        "--metrics-address", default=LOOPBACK, show_default=True, metavar="ADDRESS", help="The address of that port."
    ),
)


def run_engine(
    name: str,
    outbox: Outbox,
    database: Database,
    make: Callable[[], Engine],
    metrics_port: int | None,
    metrics_address: str,
) -> None:
    """Run an engine until it is stopped; with a port, serve its metrics."""
    with ExitStack() as stack:
        server = serve(metrics_port, outbox, address=metrics_address) if metrics_port is not None else None
        if server is not None:
            stack.callback(server.stop)
        url = server.url if server is not None else None
        about = {"outbox": outbox.schema, "database": database.safe_dsn, "version": __version__, "metrics": url}
        telling: list[asyncio.Task[None]] = []

        def begin() -> Engine:
            engine = make()
            if server is not None:
                server.watch(engine)
            telling.append(asyncio.create_task(tell(engine)))
            return engine

        async def tell(engine: Engine) -> None:
            await engine.up()
            log_event(logger, logging.INFO, f"{name}_started", **about)

        def stop() -> None:
            remedy = "finishes the work in progress; a second signal ends the process at once"
            log_event(logger, logging.INFO, f"{name}_stopping", outbox=outbox.schema, remedy=remedy)

        run_until_stopped(begin, stop)
        log_event(logger, logging.INFO, f"{name}_stopped", outbox=outbox.schema)
