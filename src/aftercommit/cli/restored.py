"""`aftercommit restored`: starts a new life of the log after a restore that the relay cannot detect."""

from dataclasses import asdict
from typing import Any

import click

from aftercommit.cli.loading import find_shape, load_database
from aftercommit.cli.numbers import Count
from aftercommit.cli.options import as_json, pass_settings
from aftercommit.cli.output import line, message, print_json
from aftercommit.cli.prompts import confirm
from aftercommit.cli.selecting import dry_run_option, run, yes_option
from aftercommit.operate.overview import overview
from aftercommit.postgres import lives
from aftercommit.postgres.shape import Shape
from aftercommit.settings import Settings

_REASON = "an operator reported that the database was restored"


@click.command(short_help="Begin a new life of the log after a restore from a copy.")
@click.option("--reason", default=_REASON, metavar="TEXT", help="Why, for the record.")
@click.option(
    "--above",
    type=Count(),
    default=0,
    metavar="POSITION",
    help="Begin above this position at least. Needed only if the server's clock was wrong.",
)
@dry_run_option
@yes_option
@as_json
@pass_settings
def restored(settings: Settings, reason: str, above: int, **options: Any) -> None:
    """Begin a new life of the log, with positions above all earlier ones, after the database was restored from a copy.

    You need this only after restoring a copy of the data folder or a snapshot, or if the server does not show its
    timeline and system identifier. The relay notices other restores by itself. Run it before you start anything else.
    Without a restore, it makes positions jump.
    """
    database = load_database(settings, "restored")
    with database.connect_sync() as connection:
        shape = find_shape(settings, connection)
        seen = overview(connection, shape)
    present = f"life {seen.life.number}" if seen.life is not None else "the log"
    if not options["as_json"]:
        line(f"outbox {shape.schema!r}: {present} ends at position {seen.head:,}")
    if options["dry_run"]:
        if options["as_json"]:
            print_json({"outbox": shape.schema, "dry_run": True, "head": seen.head, "life": seen.life})
        else:
            message("positions of the new life would begin at the present time in microseconds since 1970")
        return
    if not options["yes"]:
        confirm("Begin a new life of the log?")

    async def begin(shape: Shape) -> lives.Life:
        async with await database.connect() as connection:
            return await lives.begin(connection, shape, reason, above=above)

    life = run(begin(shape))
    if options["as_json"]:
        print_json({"outbox": shape.schema, "dry_run": False, **asdict(life)})
    else:
        message(f"life {life.number} of the log has begun: it continues after position {life.base:,}")
