"""`aftercommit migrate`: bring the tables up to what the code needs, or say how they differ."""

from typing import Any

import click
import psycopg

from aftercommit.cli.loading import load_database, load_shapes
from aftercommit.cli.numbers import DAY, Count, Seconds
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import line, message, print_json, print_table
from aftercommit.errors import SchemaDrift
from aftercommit.postgres.commits import committed
from aftercommit.postgres.shape import AUDIENCE, Shape
from aftercommit.schema import migrate as migrations
from aftercommit.schema.catalog import asking, read
from aftercommit.settings import Settings
from aftercommit.text import OF_APP


@click.group()
@global_options
def migrate() -> None:
    """Make, change and check the tables of an outbox, or of all outboxes of an Application.

    Without --app: of one with neither scope, audience nor views; `status` and `check` then look at the migrations
    alone.
    """


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
    shapes = load_shapes(settings)
    results: list[dict[str, Any]] = []
    with load_database(settings, "migrate").connect_sync() as connection:
        for shape in shapes:
            if not _are_known(settings):
                _refuse_to_forget_an_audience(connection, shape)
            done = migrations.up(connection, shape, max_wait_seconds=patience)
            results.append({"outbox": shape.schema, "done": done})
            if not as_json:
                for step in done:
                    line(step)
                message(f"schema {shape.schema!r} is up to date")
    if as_json:
        _print_each(results)


@migrate.command("status", short_help="Show what was applied, and what is missing.")
@as_json
@pass_settings
def status(settings: Settings, as_json: bool) -> None:
    """Show what was applied, what is missing, and how the declaration differs. `check` decides by exit status."""
    shapes = load_shapes(settings)
    with load_database(settings, "migrate").connect_sync() as connection:
        found = [(shape, migrations.status(connection, shape, declarations=_are_known(settings))) for shape in shapes]
    _say_what_is_not_compared(settings)
    if as_json:
        _print_each([_as_data(shape, each, _are_known(settings)) for shape, each in found])
        return
    for shape, each in found:
        if len(found) > 1:
            line(f"schema {shape.schema}")
        _print_status(each)


def _refuse_to_forget_an_audience(connection: psycopg.Connection[Any], shape: Shape) -> None:
    """By a declaration without it the views would be made without it, and nobody has said that it is not wanted."""
    with committed(connection):
        columns = read(asking(connection), shape).columns
    if ("outbox", AUDIENCE) in columns:
        raise SchemaDrift(
            f"{shape.schema}.outbox has an audience, which is not declared here, and its views would lose it: give "
            f"{OF_APP} with the outbox that declares it"
        )


def _are_known(settings: Settings) -> bool:
    """Whether we were told what is declared: tables of an outbox that we were not shown are no drift."""
    return settings.app is not None


def _say_what_is_not_compared(settings: Settings) -> None:
    if not _are_known(settings):
        message(f"declarations are not compared: give {OF_APP}")


def _as_data(shape: Shape, found: migrations.Status, declarations: bool) -> dict[str, Any]:
    return {
        "outbox": shape.schema,
        "current": found.is_current,
        "applied": _applied(found),
        "pending": [str(migration) for migration in found.pending],
        "newer": list(found.newer),
        "declarations_compared": declarations,
        "differences": list(found.declaration),
    }


def _applied(found: migrations.Status) -> list[str]:
    return [f"{number:04d}_{name}" for number, name in sorted(found.applied.items())]


def _print_status(found: migrations.Status) -> None:
    rows = [(name, "by newer code" if name in found.newer else "applied") for name in _applied(found)]
    rows += [(str(migration), "pending") for migration in found.pending]
    print_table(("migration", "state"), rows)
    for difference in found.declaration:
        line(f"differs: {difference}")


@migrate.command("check", short_help="Exit with 0 when the tables are as declared.")
@pass_settings
def check(settings: Settings) -> None:
    """Exit with 0 when the tables are what the code and its declarations say, with 3 when not.

    Without --app, declarations are not compared.
    """
    shapes = load_shapes(settings)
    with load_database(settings, "migrate").connect_sync() as connection:
        for shape in shapes:
            migrations.check(connection, shape, declarations=_are_known(settings))
            message(f"schema {shape.schema!r} is up to date")
    _say_what_is_not_compared(settings)


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
    scripts = ["".join(migrations.script(shape, after)) for shape in load_shapes(settings)]
    click.echo("".join(scripts), nl=False)


@migrate.command("grants", short_help="Print GRANTs for a role that does all but migrate.")
@click.argument("role")
@pass_settings
def grants(settings: Settings, role: str) -> None:
    """Print the GRANTs that let ROLE publish, relay and consume, but not migrate. Needs no database."""
    for shape in load_shapes(settings):
        for statement in migrations.grants(shape, role):
            line(f"{statement};")


def _print_each(results: list[dict[str, Any]]) -> None:
    """Of one outbox an object, of several a list."""
    print_json(results[0] if len(results) == 1 else results)
