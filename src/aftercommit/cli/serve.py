"""`aftercommit serve`: an application's HTTP routes, in as many processes as you like.

Each process makes the application anew from what stands in the environment; this command writes there what it was told.
"""

import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import NamedTuple, TypeVar

import click
import msgspec

from aftercommit.application import Application, Serving
from aftercommit.cli.loading import load_database, load_named
from aftercommit.cli.logs import logging_to_stderr
from aftercommit.cli.numbers import Count, Seconds
from aftercommit.cli.options import pass_settings
from aftercommit.errors import DeclarationError
from aftercommit.feed.http.asgi import DRAIN_SECONDS, Asgi
from aftercommit.feed.server.shared_figures import remove_shared_folder
from aftercommit.settings import APP, DATABASE_URL, LISTEN_URL, LOG_FORMAT, Settings

PORT = 8090
LOOPBACK = "127.0.0.1"
_COMPANIONS = "AFTERCOMMIT_COMPANIONS"
_DEVELOPMENT = "AFTERCOMMIT_DEVELOPMENT"
_DRAIN = "AFTERCOMMIT_DRAIN"
_VERBOSE = "AFTERCOMMIT_VERBOSE"

Decorated = TypeVar("Decorated", bound=Callable[..., object])
# What a server process keeps until it ends.
_to_the_end = ExitStack()


class Address(NamedTuple):
    """Where something is served, and by how many processes."""

    host: str
    port: int
    workers: int


def server_options(command: Decorated) -> Decorated:
    """Where to serve, and in how many processes."""
    for option in (
        click.option(
            "--workers", type=Count(1, 256), default=1, show_default=True, metavar="COUNT", help="Server processes."
        ),
        click.option("--port", type=Count(0, 65535), default=PORT, show_default=True, help="0 takes a free one."),
        click.option("--host", default=LOOPBACK, show_default=True, metavar="ADDRESS", help="The address to serve on."),
    ):
        command = option(command)
    return command


@click.command(short_help="Serve an application's HTTP routes.")
@server_options
@click.option(
    "--drain",
    type=Seconds(0.0, 3600.0),
    default=DRAIN_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long open streams have to end when the server is stopped.",
)
@click.option("--development", is_flag=True, hidden=True, help="For `aftercommit up`: sample users; ends with stdin.")
@click.option(
    "--socket", "descriptor", type=Count(0, 65_535), hidden=True, help="For `aftercommit up`: it listens already."
)
@pass_settings
def serve(
    settings: Settings, host: str, port: int, workers: int, drain: float, development: bool, descriptor: int | None
) -> None:
    """Serve the Application, or any ASGI application, that --app names, until stopped.

    Migrations and relays are not run here. SIGTERM or Ctrl-C lets answers and streams end, within --drain; SIGHUP
    replaces the processes one after the other.
    """
    from aftercommit.feed.server import http_server

    serving = Serving(load_database(settings, "serve"), development, drain, _companions(development))
    hand_over(settings, serving)
    # Made here for nothing else: what is wrong with it is said once, and not by every process that dies of it.
    servable(settings)(serving)
    if development:
        _end_with_stdin()
    with logging_to_stderr(settings, _level(development)):
        bound = http_server.listen(host, port) if descriptor is None else socket.socket(fileno=descriptor)
        http_server.serve(f"{__name__}:asgi", bound=bound, workers=workers, drain=drain, options={"factory": True})


def asgi() -> Asgi:
    """The application of a server process, from the environment."""
    settings = Settings.from_environment().told(verbose=_VERBOSE in os.environ)
    development = _DEVELOPMENT in os.environ
    if multiprocessing.parent_process() is not None:
        # In the process of the command itself logging is set up already.
        _to_the_end.enter_context(logging_to_stderr(settings, _level(development)))
    serving = Serving(
        load_database(settings, "serve"), development, float(os.environ[_DRAIN]), _companions(development)
    )
    return servable(settings)(serving)


def _companions(development: bool) -> Mapping[str, str]:
    """What runs beside the server, where `aftercommit up` has said so."""
    told = os.environ.get(_COMPANIONS, "") if development else ""
    return msgspec.json.decode(told, type=dict[str, str]) if told else {}


def _level(development: bool) -> int:
    """In development somebody looks at the terminal, and wants to see what went wrong."""
    return logging.WARNING if development else logging.INFO


def servable(settings: Settings) -> Callable[[Serving], Asgi]:
    """What makes the HTTP application that --app names."""
    found = load_named(settings, "Application or ASGI application")
    if isinstance(found, Application):
        if found.asgi is None:
            raise DeclarationError(f"--app {settings.app!r} has no HTTP routes: give its Application asgi=…")
        return found.asgi
    if not callable(found):
        raise DeclarationError(
            f"--app {settings.app!r} is {found!r:.80} and neither an Application nor an ASGI application: name one"
        )
    return lambda serving: found


def hand_over(settings: Settings, serving: Serving) -> None:
    """Write to the environment what server processes are to know."""
    told = {
        APP: settings.app,
        DATABASE_URL: serving.database.dsn,
        LISTEN_URL: settings.listen_dsn,
        LOG_FORMAT: settings.log_format,
        _VERBOSE: "1" if settings.verbose else None,
        _DEVELOPMENT: "1" if serving.development else None,
        _DRAIN: repr(serving.drain),
        _COMPANIONS: msgspec.json.encode(serving.companions).decode() if serving.companions else None,
    }
    for name, value in told.items():
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def _end_with_stdin() -> None:
    """Whoever started us holds the other end, also when it is killed."""

    def watch() -> None:
        # Not by way of sys.stdin, whose lock would be held while the interpreter ends.
        while os.read(0, 4096):
            pass
        # Its own, which it removes itself unless it was killed.
        remove_shared_folder()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
