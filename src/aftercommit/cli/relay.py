"""`aftercommit relay`: delivers events from the outbox to a transport and appends them to the log."""

import logging
from typing import Any

import click

from aftercommit.cli.loading import load_database, load_outbox
from aftercommit.cli.logs import logging_to_stderr
from aftercommit.cli.numbers import DAY, Count, Seconds
from aftercommit.cli.options import pass_settings
from aftercommit.cli.process import metrics_options, run_engine
from aftercommit.cli.retention import retention_of, retention_options
from aftercommit.engine import BUS_CARRIERS, Engine, TransportName
from aftercommit.relay import RelaySettings
from aftercommit.settings import Settings

_DEFAULTS = RelaySettings()


@click.command(short_help="Deliver events and append them to the log.")
@click.option(
    "--transport",
    type=click.Choice(["log", "bus"]),
    default="log",
    show_default=True,
    help="log: consumers read the log; start `worker` for them. bus: handlers run in this process.",
)
@click.option(
    "--batch-size",
    type=Count(1, 100_000),
    default=_DEFAULTS.batch_size,
    show_default=True,
    metavar="EVENTS",
    help="How many events to deliver at a time.",
)
@click.option(
    "--carriers",
    type=Count(1, 64),
    metavar="COUNT",
    help=f"How many batches (1 to 64) to deliver concurrently. Default: 1, or {BUS_CARRIERS} with the bus.",
)
@click.option(
    "--lease",
    type=Seconds(0.5, DAY),
    default=_DEFAULTS.lease_seconds,
    show_default=True,
    metavar="SECONDS",
    help="After a crash, another relay takes over within this time.",
)
@retention_options
@metrics_options
@pass_settings
def relay(
    settings: Settings,
    transport: TransportName,
    batch_size: int,
    carriers: int | None,
    lease: float,
    metrics_port: int | None,
    metrics_address: str,
    **options: Any,
) -> None:
    """Deliver published events and append them to the log, until stopped. Several relays share the work.

    If the database cannot be reached, the relay waits for it. SIGTERM or Ctrl-C finishes the work in progress; a second
    signal ends the process at once.
    """
    retention = retention_of(options)
    outbox, database = load_outbox(settings), load_database(settings, "relay")
    chosen = carriers or (BUS_CARRIERS if transport == "bus" else _DEFAULTS.carriers)
    relay_settings = RelaySettings(batch_size=batch_size, carriers=chosen, lease_seconds=lease, retention=retention)
    with logging_to_stderr(settings, logging.INFO):
        run_engine(
            "relay",
            outbox,
            database,
            lambda: Engine(outbox, database, workers=False, transport=transport, relay_settings=relay_settings),
            metrics_port,
            metrics_address,
        )
