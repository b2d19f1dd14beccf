"""`aftercommit worker`: runs the handlers of consumers that follow the log."""

import logging

import click

from aftercommit.cli.loading import load_database, load_outbox
from aftercommit.cli.logs import logging_to_stderr
from aftercommit.cli.numbers import DAY, Seconds
from aftercommit.cli.options import pass_settings
from aftercommit.cli.process import metrics_options, run_engine
from aftercommit.consumer import WorkerSettings
from aftercommit.engine import Engine
from aftercommit.errors import DeclarationError
from aftercommit.settings import Settings

_DEFAULTS = WorkerSettings()


@click.command(short_help="Run the handlers of consumers that follow the log.")
@click.argument("consumers", nargs=-1, metavar="[CONSUMER]...")
@click.option(
    "--lease",
    type=Seconds(0.5, DAY),
    default=_DEFAULTS.lease_seconds,
    show_default=True,
    metavar="SECONDS",
    help="After a crash, a standby worker takes over within this time.",
)
@metrics_options
@pass_settings
def worker(
    settings: Settings, consumers: tuple[str, ...], lease: float, metrics_port: int | None, metrics_address: str
) -> None:
    """Handle events for the named consumers, or for all that the outbox declares, until stopped.

    A consumer has one active worker; others stand by. If the database cannot be reached, the worker waits for it.
    SIGTERM or Ctrl-C finishes the work in progress; a second signal ends the process at once.
    """
    outbox, database = load_outbox(settings), load_database(settings, "worker")
    if not outbox.consumers:
        raise DeclarationError(
            f"outbox {outbox.schema!r} of --app {settings.app} has no consumers: if your handlers are in other "
            "modules, name a module that imports them all, e.g. --app shop.handlers:outbox"
        )
    worker_settings = WorkerSettings(lease_seconds=lease)
    with logging_to_stderr(settings, logging.INFO):
        run_engine(
            "worker",
            outbox,
            database,
            lambda: Engine(outbox, database, relay=False, workers=consumers or True, worker_settings=worker_settings),
            metrics_port,
            metrics_address,
        )
