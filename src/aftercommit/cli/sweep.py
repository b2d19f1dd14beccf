"""`aftercommit sweep`: one round of retention by hand or by cron. Relays do the same by themselves."""

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


@click.command(short_help="Remove what need not be kept any longer.")
@retention_options
@click.option("--dry-run", is_flag=True, help="Count what would go, and change nothing.")
@click.option(
    "--even-if-unread",
    is_flag=True,
    help="Drop partitions of the log also where consumers, dead letters or operations still need them.",
)
@click.option(
    "--seconds",
    type=Seconds(0.1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to work at most; what is left is for the next time.",
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
    """Remove what need not be kept any longer: one round over everything, in small steps that stand in nobody's way.

    What somebody still needs stays, and is named. Dropping partitions of the log takes the owner of the schema. Exits
    with 4 when the time was over, or SIGTERM came, before all was looked at.
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
    """SIGTERM ends the round between two statements, so that the next program need not wait for it."""
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
        print_table(("what", "kept for", "would go" if dry_run else "removed", "all looked at"), rows)
    for each in swept:
        for reason in each.kept_back:
            message(f"kept back: {each.task.replace('_', ' ')}: {printable(reason)}")
