"""`aftercommit migrate`: bring the tables up to what the code needs, or say how they differ."""

import click

from aftercommit.cli.loading import load_database, load_shape
from aftercommit.cli.numbers import DAY, Count, Seconds
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table
from aftercommit.postgres import migrate as migrations
from aftercommit.settings import Settings


@click.group()
@global_options
def migrate() -> None:
    """Make, change and check the tables of an outbox. Without --app: one with neither scope nor views."""


@migrate.command("up")
@click.option(
    "--patience",
    type=Seconds(0, DAY),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to try when others hold locks.",
)
@as_json
@pass_settings
def up(settings: Settings, patience: float, as_json: bool) -> None:
    """Apply what is missing. Safe to repeat, from several programs at once, and beside running ones.

    An index on a large table is built without blocking writers, and that takes as long as it takes.
    """
    shape = load_shape(settings)
    with load_database(settings, "migrate").connect_sync() as connection:
        done = migrations.up(connection, shape, patience=patience)
    if as_json:
        print_json({"outbox": shape.schema, "done": done})
        return
    for step in done:
        line(step)
    message(f"schema {shape.schema!r} is up to date")


@migrate.command("status", short_help="Show what was applied, and what is missing.")
@as_json
@pass_settings
def status(settings: Settings, as_json: bool) -> None:
    """Show what was applied, what is missing, and how the declaration differs. `check` decides by exit status."""
    shape = load_shape(settings)
    with load_database(settings, "migrate").connect_sync() as connection:
        found = migrations.status(connection, shape)
    applied = [f"{number:04d}_{name}" for number, name in sorted(found.applied.items())]
    pending = [str(migration) for migration in found.pending]
    if as_json:
        print_json(
            {
                "outbox": shape.schema,
                "current": found.is_current,
                "applied": applied,
                "pending": pending,
                "newer": list(found.newer),
                "differences": list(found.declaration),
            }
        )
        return
    rows = [(name, "by newer code" if name in found.newer else "applied") for name in applied]
    rows += [(name, "pending") for name in pending]
    print_table(("migration", "state"), rows)
    for difference in found.declaration:
        line(f"differs: {difference}")


@migrate.command("check", short_help="Exit with 0 when the tables are as declared.")
@pass_settings
def check(settings: Settings) -> None:
    """Exit with 0 when the tables are what the code and its declarations say, with 3 when not."""
    shape = load_shape(settings)
    with load_database(settings, "migrate").connect_sync() as connection:
        migrations.check(connection, shape)
    message(f"schema {shape.schema!r} is up to date")


@migrate.command("sql")
@click.option(
    "--after",
    "--from",
    "after",
    type=Count(),
    default=0,
    metavar="VERSION",
    help="Leave out the migrations up to this one, which the schema has had.",
)
@pass_settings
def sql(settings: Settings, after: int) -> None:
    """Print the whole as SQL, for a person or another tool to run. Needs no database."""
    # As a whole or not at all: half a script would run.
    click.echo("".join(migrations.script(load_shape(settings), after)), nl=False)


@migrate.command("grants", short_help="Print GRANTs for a role that does all but migrate.")
@click.argument("role")
@pass_settings
def grants(settings: Settings, role: str) -> None:
    """Print the GRANTs that let ROLE publish, relay and consume, but not migrate. Needs no database."""
    for statement in migrations.grants(load_shape(settings), role):
        line(f"{statement};")
