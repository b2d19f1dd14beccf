"""`aftercommit up`: everything in one process. PostgreSQL (yours or an embedded one), tables, relay, consumers, orders.

Without --app it runs the order example, so that there is something to see.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import click

from aftercommit.cli.dashboard import Dashboard, RecentLines, is_terminal
from aftercommit.cli.loading import load_outbox
from aftercommit.cli.logs import BriefFormatter, TextFormatter, logging_to, logging_to_stderr
from aftercommit.cli.look import Look
from aftercommit.cli.numbers import DAY, Amount, Seconds
from aftercommit.cli.options import pass_settings
from aftercommit.cli.output import message
from aftercommit.cli.remedies import program
from aftercommit.cli.retention import retention_of, retention_options
from aftercommit.cli.running import Stopper
from aftercommit.demo import orders
from aftercommit.errors import EmbeddedPostgresError
from aftercommit.outbox import Outbox
from aftercommit.postgres import migrate
from aftercommit.postgres.database import Database
from aftercommit.postgres.embedded import EmbeddedPostgres, default_folder
from aftercommit.relay import RelaySettings
from aftercommit.service import Service, until_one_ends
from aftercommit.settings import DATABASE_URL, Settings
from aftercommit.telemetry import say
from aftercommit.wiring import Engine

logger = logging.getLogger("aftercommit.up")

_LOOK_AT_SERVER = 1.0
_APPLICATION_NAME = "aftercommit up"
_EXAMPLE = (
    "the order example (aftercommit.demo.orders)\n"
    "  now and then the bank is busy: a payment fails, and is tried again by itself"
)


@click.command(short_help="Run everything in one process, for first steps.")
@click.option(
    "--rate",
    type=Amount(0, 10_000),
    default=6.0,
    show_default=True,
    metavar="EVENTS",
    help="Events a second of the order example; 0 for none.",
)
@click.option(
    "--interval",
    type=Seconds(0.1, DAY),
    metavar="SECONDS",
    help="Between two looks at the figures. Default: 0.5 on a terminal, 2 elsewhere.",
)
@retention_options
@pass_settings
def up(settings: Settings, rate: float, interval: float | None, **options: Any) -> None:
    """Run everything: PostgreSQL, tables, relay, consumers, and the order example unless --app names yours.

    Without DATABASE_URL an embedded PostgreSQL is started in AFTERCOMMIT_HOME (./.aftercommit), or the one that runs
    there is used. Ctrl-C stops everything that was started here; the data stays.
    """
    relay_settings = RelaySettings(gauge_seconds=1.0, retention=retention_of(options))
    outbox = load_outbox(settings) if settings.app is not None else orders.outbox
    with Stopper() as stopper, _logging(settings) as recent, _postgres(settings) as (database, server):
        if stopper.requested:
            return
        _make_tables(database, outbox)
        message(_about(database.safe_dsn if server is None else server.dsn, outbox))
        with Look(database, lambda connection: outbox.shape) as look:
            seconds = interval or (2.0 if recent is None else 0.5)
            parts: list[Service] = [Engine(outbox, database, relay_settings=relay_settings)]
            if server is not None:
                parts.append(Keeper(server))
            if outbox is orders.outbox and rate > 0:
                parts.append(orders.Trickle(database, rate=rate))
            parts.append(Dashboard(look, outbox.meter, seconds, recent))
            stopper.run(_run_together(parts, stopper))


class Keeper(Service):
    """Starts the embedded server again when it is gone: it crashed, or another process that owned it has stopped it."""

    name = "keeper"

    def __init__(self, server: EmbeddedPostgres) -> None:
        super().__init__()
        self._server = server
        self._dsn = server.dsn

    async def run(self) -> None:
        """Until stopped."""
        while not self.stopping.is_set():
            if not await asyncio.to_thread(self._server.is_running):
                await self._start_again()
            await self.pause(_LOOK_AT_SERVER)

    async def _start_again(self) -> None:
        folder = str(self._server.cluster.folder)
        say(logger, logging.WARNING, "postgresql_is_gone", folder=folder, remedy="it is started again")
        await asyncio.to_thread(self._server.start)
        if self._server.dsn != self._dsn:
            raise EmbeddedPostgresError(
                f"PostgreSQL in {folder} runs again but under another address, {self._server.dsn}: run this again"
            )
        say(logger, logging.WARNING, "postgresql_runs_again", folder=folder, owned=not self._server.attached)


@contextmanager
def _logging(settings: Settings) -> Iterator[RecentLines | None]:
    """On a terminal the last log lines are part of the panel; elsewhere they go to stderr as they come."""
    if is_terminal():
        recent = RecentLines(TextFormatter(), 12) if settings.verbose else RecentLines(BriefFormatter())
        with logging_to(recent, logging.DEBUG if settings.verbose else logging.WARNING):
            yield recent
    else:
        with logging_to_stderr(settings, logging.WARNING, tracebacks=False):
            yield None


@contextmanager
def _postgres(settings: Settings) -> Iterator[tuple[Database, EmbeddedPostgres | None]]:
    if settings.dsn is not None:
        database = Database(settings.dsn, listen_dsn=settings.listen_dsn, application_name=_APPLICATION_NAME)
        message(f"using the PostgreSQL of --dsn or {DATABASE_URL}: {database.safe_dsn}")
        yield database, None
        return
    server = EmbeddedPostgres(default_folder())
    message(f"starting PostgreSQL {server.cluster.version} in {server.cluster.folder}")
    server.start()
    if server.attached:
        message(f"a PostgreSQL (process {server.pid}) runs there already: attached to it, and it stays when we stop")
    try:
        yield Database(server.dsn, application_name=_APPLICATION_NAME), server
    finally:
        owned = not server.attached
        server.stop()
        if owned:
            message(f"PostgreSQL is stopped; the data is in {server.cluster.folder}")


def _make_tables(database: Database, outbox: Outbox) -> None:
    with database.connect_sync() as connection:
        for step in migrate.up(connection, outbox.shape):
            message(f"schema {outbox.schema}: {step}")
        if outbox is orders.outbox:
            orders.create_tables(connection)


def _about(dsn: str, outbox: Outbox) -> str:
    what = _EXAMPLE if outbox is orders.outbox else "your application"
    return (
        f"running outbox {outbox.schema!r}: {what}\n"
        f"  look inside:            psql '{dsn}'\n"
        f"  from another terminal:  {program()} status --schema {outbox.schema} --watch\n"
        "  stop:                   Ctrl-C (the data stays)"
    )


async def _run_together(parts: Sequence[Service], stopper: Stopper) -> None:
    """Start the parts in order, wait for a stop or for the first that fails, stop them in reverse."""
    stop = asyncio.Event()
    stopper.calls(stop.set)
    async with AsyncExitStack() as stack:
        for part in parts:
            await stack.enter_async_context(part)
        await until_one_ends(stop.wait(), *(part.wait() for part in parts))
