"""`aftercommit serve`: serves an application's HTTP routes in one or several processes.

The command writes its options to the environment; each server process creates the application from there.
"""

import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime
from typing import Any, NamedTuple

import click
import msgspec
import psycopg

from aftercommit.access import service_tokens
from aftercommit.application import Application, Serving
from aftercommit.cli.loading import load_database, load_named, running_server
from aftercommit.cli.logs import logging_to_stderr
from aftercommit.cli.numbers import Count, Seconds
from aftercommit.cli.options import pass_settings, together
from aftercommit.cli.output import day_and_time
from aftercommit.errors import DatabaseUnavailable, DeclarationError
from aftercommit.http.asgi import DRAIN_SECONDS, Asgi, is_loopback
from aftercommit.postgres.database import Database
from aftercommit.server.shared_figures import remove_shared_folder
from aftercommit.settings import APP, DATABASE_URL, LISTEN_URL, LOG_FORMAT, Settings
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.server")

PORT = 8090
LOOPBACK = "127.0.0.1"
# The environment variables that server processes inherit. The command overwrites earlier values.
_SERVING = "AFTERCOMMIT_SERVING"
_COMPANIONS = "AFTERCOMMIT_COMPANIONS"
_VERBOSE = "AFTERCOMMIT_VERBOSE"

_HANDED_OVER = ("development", "drain_seconds", "local_users", "open_metrics", "docs")

# Keeps logging set up until the server process ends.
_to_the_end = ExitStack()


class ListenAddress(NamedTuple):
    """The address to serve on, and the number of server processes."""

    host: str
    port: int
    workers: int


def is_for_this_machine(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    return host == "localhost" or is_loopback(host)


server_options = together(
    click.option("--host", default=LOOPBACK, show_default=True, metavar="ADDRESS", help="The address to serve on."),
    click.option(
        "--port", type=Count(0, 65535), default=PORT, show_default=True, metavar="PORT", help="0: any free one."
    ),
    click.option(
        "--workers", type=Count(1, 256), default=1, show_default=True, metavar="COUNT", help="Server processes."
    ),
)


@click.command(short_help="Serve an application's HTTP routes.")
@server_options
@click.option(
    "--drain",
    type=Seconds(0.0, 3600.0),
    default=DRAIN_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long open streams have to end when the server stops.",
)
@click.option("--open-metrics", is_flag=True, help="Answer /metrics without a token.")
@click.option("--no-docs", is_flag=True, help="Do not serve /docs and /openapi.json.")
@click.option(
    "--development",
    is_flag=True,
    help="For your own machine: sample users, open /metrics; on loopback, X-User-Id works without a service token.",
)
@click.option(
    "--socket", "descriptor", type=Count(0, 65_535), hidden=True, help="For `aftercommit up`: the listening socket."
)
@pass_settings
def serve(settings: Settings, host: str, port: int, descriptor: int | None, **options: Any) -> None:
    """Serve the Application, or any ASGI application, that --app names, until stopped.

    Does not run migrations or relays. SIGTERM or Ctrl-C lets open responses and streams end, within --drain; SIGHUP
    replaces the server processes one by one.
    """
    from aftercommit.server import http_server

    bound = socket.socket(fileno=descriptor) if descriptor is not None else None
    if (dsn := settings.dsn or running_server()) is not None:
        # A module may read it when it is imported.
        os.environ[DATABASE_URL] = dsn
    made = servable(settings)
    development: bool = options["development"]
    serving = Serving(
        load_database(settings, "serve"),
        development,
        options["drain"],
        _companions() if bound is not None else {},
        local_users=development and is_for_this_machine(host if bound is None else str(bound.getsockname()[0])),
        open_metrics=development or options["open_metrics"],
        docs=not options["no_docs"],
    )
    # Under `up` a person looks at the dashboard, so only warnings are logged.
    hand_over(settings, serving, quiet=bound is not None)
    # Create the application once here, so that an error is reported once and not by every server process.
    made(serving)
    if bound is not None:
        _end_with_stdin()
    with logging_to_stderr(settings, _level(quiet=bound is not None)):
        if not serving.local_users:
            _require_service_tokens(settings, serving.database)
        bound = bound or http_server.listen(host, port)
        workers, drain = options["workers"], serving.drain_seconds
        http_server.serve(
            f"{__name__}:asgi", bound=bound, workers=workers, drain_seconds=drain, options={"factory": True}
        )


def asgi() -> Asgi:
    """Create the application of a server process, from the environment."""
    settings = Settings.from_environment().told(verbose=_VERBOSE in os.environ)
    told = msgspec.json.decode(os.environ[_SERVING])
    level = _level(quiet=told.pop("quiet"))
    if multiprocessing.parent_process() is not None:
        # In the command's own process, logging is set up already.
        _to_the_end.enter_context(logging_to_stderr(settings, level))
    return servable(settings)(Serving(load_database(settings, "serve"), companions=_companions(), **told))


def _companions() -> Mapping[str, str]:
    """The services that `aftercommit up` runs beside the server."""
    told = os.environ.get(_COMPANIONS, "")
    return msgspec.json.decode(told, type=dict[str, str]) if told else {}


def _require_service_tokens(settings: Settings, database: Database) -> None:
    """Refuse to start if users are identified by a header and no service token allows a program to send it."""
    found = load_named(settings, "Application or ASGI application")
    for outbox in found.users_by_header if isinstance(found, Application) else ():
        try:
            with database.connect_sync() as connection:
                tokens = service_tokens.list_all(connection, outbox.shape)
        except (DatabaseUnavailable, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            # The server reports this itself, and does not trust the header meanwhile.
            continue
        may = service_tokens.ACT_AS_USER
        usable = [each for each in tokens if may in each.permissions and each.state != "revoked"]
        make = f"`aftercommit token create bot --may {may} --schema {outbox.schema}`"
        if not usable:
            raise DeclarationError(
                f"the readers of {outbox.schema!r} are identified by the header X-User-Id, and no service token allows "
                f"a program to send it. Create one with {make} and give it to that program"
            )
        if all(each.state == "expired" for each in usable):
            # The server can start: users with their own token do not need it, and a new one is valid at once.
            expired = [f"{each.name} ({each.id}), expired {_shown(each.expires_at)}" for each in usable]
            remedy = f"requests with X-User-Id are answered with 401: create a new token with {make}"
            log_event(
                logger, logging.WARNING, "service_tokens_expired", outbox=outbox.schema, tokens=expired, remedy=remedy
            )


def _shown(moment: datetime | None) -> str:
    return day_and_time(moment) if moment is not None else "never"


def _level(*, quiet: bool) -> int:
    return logging.WARNING if quiet else logging.INFO


def servable(settings: Settings) -> Callable[[Serving], Asgi]:
    """The factory of the HTTP application that --app names."""
    found = load_named(settings, "Application or ASGI application")
    if isinstance(found, Application):
        if found.asgi is None:
            raise DeclarationError(f"--app {settings.app!r} has no HTTP routes: give its Application asgi=…")
        return found.asgi
    if not callable(found):
        raise DeclarationError(
            f"--app {settings.app!r} is {found!r:.80}, neither an Application nor an ASGI application: name one"
        )
    return lambda serving: found


def hand_over(settings: Settings, serving: Serving, *, quiet: bool = True) -> None:
    """Write the configuration of server processes to the environment."""
    about = {name: getattr(serving, name) for name in _HANDED_OVER} | {"quiet": quiet}
    told = {
        APP: settings.app,
        DATABASE_URL: serving.database.dsn,
        LISTEN_URL: settings.listen_dsn,
        LOG_FORMAT: settings.log_format,
        _VERBOSE: "1" if settings.verbose else None,
        _SERVING: msgspec.json.encode(about).decode(),
        _COMPANIONS: msgspec.json.encode(serving.companions).decode() if serving.companions else None,
    }
    for name, value in told.items():
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def _end_with_stdin() -> None:
    """Stop when stdin closes: the parent process holds the other end, and the system closes it if the parent dies."""

    def watch() -> None:
        # Not through sys.stdin: its lock would be held while the interpreter exits.
        while os.read(0, 4096):
            pass
        # The parent removes its folder itself, unless it was killed.
        remove_shared_folder()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
