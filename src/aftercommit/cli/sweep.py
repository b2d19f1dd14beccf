"""`aftercommit sweep`: one retention round, by hand or by cron. Relays run the same rounds by themselves."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from threading import Event
from typing import Any

import click

from aftercommit.cli.exits import PARTIAL
from aftercommit.cli.loading import find_shape, load_database
from aftercommit.cli.numbers import Seconds
from aftercommit.cli.options import as_json, pass_settings
from aftercommit.cli.output import message, print_json, print_table, printable
from aftercommit.cli.retention import retention_of, retention_options, shown
from aftercommit.operate.overview import require_outbox
from aftercommit.schema.retention import Round, Swept, the_only_one
from aftercommit.settings import Settings

_PATIENCE = 30.0


@click.command(short_help="Remove old data: run one retention round.")
@retention_options
@click.option("--dry-run", is_flag=True, help="Count what would be removed, and change nothing.")
@click.option(
    "--even-if-unread",
    is_flag=True,
    help="Drop partitions of the log even if consumers, dead letters or operations still need them.",
)
@click.option(
    "--seconds",
    type=Seconds(0.1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop after this time; the next run continues.",
)
@as_json
@pass_settings
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    settings: Settings,
    dry_run: bool,
    even_if_unread: bool,
    seconds: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Remove data that is older than its --keep time, in small steps that do not block others.

    Data that is still needed stays, and is reported. Only the owner of the schema can drop partitions of the log. Exits
    with 4 if the time is up, or SIGTERM arrives, before everything was checked.
    """
    retention = retention_of(options)
    with load_database(settings, "sweep").connect_sync() as connection:
        shape = find_shape(settings, connection)
        require_outbox(connection, shape)
        with _stopped_by_signal() as stopping:
            a_round = Round(
                connection,
                shape,
                retention,
                seconds,
                stopping,
                whole=True,
                dry_run=dry_run,
                even_if_unread=even_if_unread,
            )
            if dry_run:
                swept = a_round.run()
            else:
                with the_only_one(
                    connection, shape, interval=0, max_wait_seconds=_PATIENCE, stopping=stopping
                ) as a_round.turn:
                    swept = a_round.run()
    _tell(shape.schema, swept, dry_run, as_json)
    ctx.exit(0 if all(each.finished for each in swept) else PARTIAL)


@contextmanager
def _stopped_by_signal() -> Iterator[Callable[[], bool]]:
    """SIGTERM ends the round between two statements, so that another program can start its round at once."""
    told = Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        yield told.is_set
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(outbox: str, swept: Sequence[Swept], dry_run: bool, as_json: bool) -> None:
    if as_json:
        found = [{**asdict(each), "keep": each.keep.total_seconds() if each.keep else None} for each in swept]
        print_json({"outbox": outbox, "dry_run": dry_run, "swept": found})
    else:
        rows = [(each.task.replace("_", " "), shown(each.keep), each.removed, each.finished) for each in swept]
        print_table(("what", "kept for", "would be removed" if dry_run else "removed", "complete"), rows)
    for each in swept:
        for reason in each.kept_back:
            message(f"not removed: {each.task.replace('_', ' ')}: {printable(reason)}")
