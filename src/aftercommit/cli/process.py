"""What `relay` and `worker` have in common: an engine, its metrics, and the lines that say when it begins and ends."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click

from aftercommit._version import __version__
from aftercommit.cli.numbers import Count
from aftercommit.cli.running import run_until_stopped
from aftercommit.contrib.prometheus import serve
from aftercommit.contrib.prometheus.exposition import LOOPBACK, MetricsServer
from aftercommit.engine import Engine
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.process")

Decorated = TypeVar("Decorated", bound=Callable[..., object])


def metrics_options(command: Decorated) -> Decorated:
    """Where the figures of the process can be scraped."""
    port = click.option(
        "--metrics-port", type=Count(0, 65535), metavar="PORT", help="Serve /metrics, /livez and /readyz here."
    )
    address = click.option(
        "--metrics-address",
        default=LOOPBACK,
        show_default=True,
        metavar="ADDRESS",
        help="The address to serve them on.",
    )
    return port(address(command))


def run_engine(
    name: str,
    outbox: Outbox,
    database: Database,
    make: Callable[[], Engine],
    metrics_port: int | None,
    metrics_address: str,
) -> None:
    """Run until stopped, with metrics if they were asked for."""
    with _metrics(outbox, metrics_port, metrics_address) as server:
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
            remedy = "what is under way is finished; a second signal ends the process at once"
            log_event(logger, logging.INFO, f"{name}_stopping", outbox=outbox.schema, remedy=remedy)

        run_until_stopped(begin, stop)
        log_event(logger, logging.INFO, f"{name}_stopped", outbox=outbox.schema)


@contextmanager
def _metrics(outbox: Outbox, port: int | None, address: str) -> Iterator[MetricsServer | None]:
    if port is None:
        yield None
        return
    server = serve(port, outbox, address=address)
    try:
        yield server
    finally:
        server.stop()
