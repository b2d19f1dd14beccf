"""`aftercommit up`: runs everything in one process: PostgreSQL (yours or an embedded one), tables, relays, consumers
and HTTP. Without --app it runs the order example.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from aftercommit.application import Application, Companions, Serving
from aftercommit.cli.dashboard import Dashboard
from aftercommit.cli.loading import database_at, load_application
from aftercommit.cli.logs import BriefFormatter, TextFormatter, logging_to, logging_to_stderr
from aftercommit.cli.numbers import DAY, Amount, Seconds
from aftercommit.cli.options import pass_settings
from aftercommit.cli.output import message
from aftercommit.cli.overview_reader import OverviewReader
from aftercommit.cli.recent import RecentLines, ends_are_heard
from aftercommit.cli.remedies import program
from aftercommit.cli.retention import retention_of, retention_options
from aftercommit.cli.running import Stopper
from aftercommit.cli.serve import ListenAddress, hand_over, is_for_this_machine, server_options
from aftercommit.cli.server_process import ServerProcess
from aftercommit.consumer.names import require_all_free
from aftercommit.contrib.prometheus import exposition
from aftercommit.demo import orders
from aftercommit.embedded import EmbeddedPostgres, default_folder
from aftercommit.engine import Engine
from aftercommit.errors import EmbeddedPostgresError, MissingExtra
from aftercommit.postgres.database import Database
from aftercommit.relay import RelaySettings
from aftercommit.schema import migrate
from aftercommit.server.shared_figures import SharedFigures, shared_folder
from aftercommit.service import Service, until_one_ends
from aftercommit.settings import DATABASE_URL, Settings
from aftercommit.telemetry import log_event
from aftercommit.text import plural

if TYPE_CHECKING:
    from aftercommit.server.http_server import HttpServer

logger = logging.getLogger("aftercommit.up")

_LOOK_AT_SERVER = 1.0
_APPLICATION_NAME = "aftercommit up"
# Set by a Makefile target that runs this command and passes its ARGS on: messages then show how to give options there.
_STARTED_BY = "AFTERCOMMIT_STARTED_BY"
_LARGEST_PORT = 65_535
_CLOSED = (
    "  note: the server listens on {host}, so `X-User-Id` needs a service token, also for the bot. Use 127.0.0.1, or "
    "create a token with `aftercommit token create bot --may act-as-user` and set AFTERCOMMIT_BOT_CREDENTIAL"
)


@click.command(short_help="Run everything at once, for your first steps.")
@click.option(
    "--rate",
    type=Amount(0, 10_000),
    default=6.0,
    show_default=True,
    metavar="EVENTS",
    help="Sample events per second; 0 for none.",
)
@click.option(
    "--interval",
    type=Seconds(0.1, DAY),
    metavar="SECONDS",
    help="How often to refresh the figures. Default: 1 on a terminal, 2 elsewhere; longer with many outboxes.",
)
@server_options
@retention_options
@pass_settings
def up(
    settings: Settings, rate: float, interval: float | None, host: str, port: int, workers: int, **options: Any
) -> None:
    """Run everything: PostgreSQL, tables, relays, consumers and HTTP. Without --app, runs the order example.

    Without DATABASE_URL, starts an embedded PostgreSQL in AFTERCOMMIT_HOME (./.aftercommit), or uses the one that runs
    there. Ctrl-C stops everything that this command has started; the data stays.
    """
    relay_settings = RelaySettings(retention=retention_of(options))
    application = load_application(settings) if settings.app is not None else orders.application
    if application.asgi is not None:
        _check_address(host, port)
    with Stopper() as stopper, _logging(settings) as recent, _postgres(settings, stopper) as (database, server):
        if stopper.requested:
            return
        _make_tables(database, application)
        parts: list[Service] = []
        if application.outboxes:
            parts.append(Engine(application.outboxes, database, relay_settings=relay_settings))
        if server is not None:
            parts.append(PostgresKeeper(server))
        if application.traffic is not None:
            parts += application.traffic(database, rate)
        with ExitStack() as stack:
            companions = _companions(application, database, port)
            told = companions.addresses if companions is not None else {}
            serving = Serving(
                database, development=True, companions=told, local_users=is_for_this_machine(host), open_metrics=True
            )
            served = _server(settings, application, serving, ListenAddress(host, port, workers))
            if isinstance(served, ServerProcess):
                # The relays run in this process; share their figures with the server processes, for `/metrics`.
                stack.enter_context(shared_folder())
                with suppress(MissingExtra):
                    parts.append(SharedFigures(exposition(*application.outboxes), "up"))
            if served is not None:
                parts.append(served)
            message(_about(database.safe_dsn if server is None else server.dsn, application, served, companions))
            if served is not None and application.users_by_header and not serving.local_users:
                message(_CLOSED.format(host=host))
            if served is not None:
                message("\n" + click.style(f"  open in a browser:      {served.url}", bold=True))
            if application.outboxes:
                reader = stack.enter_context(OverviewReader(database, application.outboxes[0].shape))
                seconds = interval or _refresh_seconds(len(application.outboxes), on_terminal=recent is not None)
                parts.append(Dashboard(reader, application.outboxes, seconds, recent))
            if served is not None and companions is not None:
                parts += companions.services(served.url)
            stopper.run(_run_together(parts, stopper))


def _refresh_seconds(outboxes: int, *, on_terminal: bool) -> float:
    """Reading the figures of many outboxes is work: about 10 a second on a terminal, and 5 elsewhere."""
    return max(1.0, outboxes / 10) if on_terminal else max(2.0, outboxes / 5)


def _check_address(host: str, port: int) -> None:
    """Report that the address is in use before anything is started."""
    from aftercommit.server.http_server import AddressTaken, listen

    try:
        listen(host, port).close()
    except AddressTaken as problem:
        target = os.environ.get(_STARTED_BY)
        if not target:
            raise
        # A companion uses the port next to it.
        other = port + 2 if port + 2 <= _LARGEST_PORT else 0
        raise AddressTaken(f"{problem}, as in {target} ARGS='--port {other}'") from None


def _companions(application: Application, database: Database, port: int) -> Companions | None:
    """The services that run beside the server, if there is a server."""
    if application.asgi is None or application.companions is None:
        return None
    return application.companions(database, port)


def _server(
    settings: Settings, application: Application, serving: Serving, address: ListenAddress
) -> "HttpServer | ServerProcess | None":
    """One server runs in this process; several run in processes of their own."""
    if application.asgi is None:
        if click.get_current_context().get_parameter_source("port") is click.core.ParameterSource.COMMANDLINE:
            message(f"--port {address.port} is ignored: this application has no HTTP routes (Application.asgi)")
        return None
    from aftercommit.server.http_server import MARGIN_SECONDS, HttpServer, listen, stop_seconds, url_of

    if address.workers == 1:
        app = application.asgi(serving)
        drain = getattr(app, "drain", None)
        return HttpServer(app, host=address.host, port=address.port, drain_seconds=serving.drain_seconds, on_stop=drain)
    hand_over(settings, serving)
    bound = listen(address.host, address.port)
    return ServerProcess(bound, url_of(bound), address.workers, stop_seconds(serving.drain_seconds) + MARGIN_SECONDS)


class PostgresKeeper(Service):
    """Restarts the embedded server after it has crashed, or after the process that owned it has stopped it."""

    name = "keeper"

    def __init__(self, server: EmbeddedPostgres) -> None:
        super().__init__()
        self._server = server
        self._dsn = server.dsn

    async def run(self) -> None:
        """Run until stopped."""
        while not self.stopping.is_set():
            if not await asyncio.to_thread(self._server.is_running):
                await self._start_again()
            await self.pause(_LOOK_AT_SERVER)

    async def _start_again(self) -> None:
        folder = str(self._server.cluster.folder)
        log_event(logger, logging.WARNING, "postgresql_is_gone", folder=folder, remedy="restarting it")
        await asyncio.to_thread(self._server.start)
        if self._server.dsn != self._dsn:
            raise EmbeddedPostgresError(
                f"PostgreSQL in {folder} was restarted with another address, {self._server.dsn}: run this command again"
            )
        log_event(logger, logging.WARNING, "postgresql_runs_again", folder=folder, owned=not self._server.attached)


@contextmanager
def _logging(settings: Settings) -> Iterator[RecentLines | None]:
    """On a terminal, the panel shows the last log lines; elsewhere, log lines go to stderr."""
    if not sys.stdout.isatty():
        with logging_to_stderr(settings, logging.WARNING, tracebacks=False):
            yield None
    elif settings.verbose:
        recent = RecentLines(TextFormatter(), 12, least=logging.DEBUG)
        with logging_to(recent, logging.DEBUG):
            yield recent
    else:
        recent = RecentLines(BriefFormatter())
        with logging_to(recent, logging.WARNING), ends_are_heard():
            yield recent


@contextmanager
def _postgres(settings: Settings, stopper: Stopper) -> Iterator[tuple[Database, EmbeddedPostgres | None]]:
    if settings.dsn is not None:
        database = database_at(settings.dsn, settings, "up")
        message(f"using PostgreSQL at {database.safe_dsn} (from --dsn or {DATABASE_URL})")
        yield database, None
        return
    server = EmbeddedPostgres(default_folder())
    stopper.at_once(lambda: _end_at_once(server))
    message(f"starting PostgreSQL {server.cluster.version} in {server.cluster.folder}")
    server.start()
    if server.attached:
        message(f"using the PostgreSQL that already runs there (process {server.pid}); it will keep running")
    try:
        yield Database(server.dsn, application_name=_APPLICATION_NAME), server
    finally:
        owned = not server.attached
        server.stop()
        if owned:
            message(f"PostgreSQL has stopped; the data is in {server.cluster.folder}")


def _end_at_once(server: EmbeddedPostgres) -> None:
    """At the second signal: tell PostgreSQL to stop, and do not wait for it."""
    told = "PostgreSQL is stopping. " if server.tell_to_stop() else ""
    message(f"ending at once. {told}The data is in {server.cluster.folder}")


def _make_tables(database: Database, application: Application) -> None:
    with database.connect_sync() as connection:
        for outbox in application.outboxes:
            steps = migrate.up(connection, outbox.shape)
            message(f"schema {outbox.schema}: " + (f"{plural(len(steps), 'step')} applied" if steps else "up to date"))
        if application.create_tables is not None:
            application.create_tables(connection)
        # Before anything runs, and before the first of several new consumers gets its checkpoint.
        for outbox in application.outboxes:
            require_all_free(connection, outbox)


def _about(
    dsn: str, application: Application, served: "HttpServer | ServerProcess | None", companions: Companions | None
) -> str:
    lines = [f"running {application.about}"]
    if served is not None:
        lines.append(f"  API documentation:      {served.url}/docs")
    if companions is not None:
        commands = {label: f"{program()} {command}" for label, command in companions.commands.items()}
        about = {label: text.replace("{url}", served.url if served else "") for label, text in companions.about.items()}
        lines += [f"  {f'{label}:':<24}{text}" for label, text in {**about, **commands}.items()]
    lines.append(f"  look inside:            psql '{dsn}'")
    for place, outbox in enumerate(application.outboxes):
        label = "" if place else "from another terminal:"
        lines.append(f"  {label:<24}{program()} status --schema {outbox.schema} --watch")
    lines.append("  stop:                   Ctrl-C (the data stays)")
    return "\n".join(lines)


async def _run_together(parts: Sequence[Service], stopper: Stopper) -> None:
    """Start the services in order, wait for a stop or for the first that fails, stop them in reverse order."""
    stop = asyncio.Event()

    def end() -> None:
        message("stopping; press Ctrl-C again to end at once")
        stop.set()

    stopper.calls(end)
    async with AsyncExitStack() as stack:
        for part in parts:
            await stack.enter_async_context(part)
        await until_one_ends(stop.wait(), *(part.wait() for part in parts))
