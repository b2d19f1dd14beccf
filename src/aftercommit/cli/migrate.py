"""`aftercommit migrate`: create, upgrade and check the tables of an outbox."""

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
    """Create, upgrade and check the tables of an outbox, or of all outboxes of an Application.

    Without --app, the outbox has no scope, no audience and no views, and `status` and `check` only compare migrations.
    """


@migrate.command("up")
@click.option(
    "--patience",
    type=Seconds(0, DAY),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to keep trying while other sessions hold locks.",
)
@as_json
@pass_settings
def up(settings: Settings, patience: float, as_json: bool) -> None:
    """Apply everything that is missing. Safe to repeat, to run several times at once, and while your programs run.

    Indexes on large tables are built without blocking writers. That can take a long time.
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


@migrate.command("status", short_help="Show applied and pending migrations.")
@as_json
@pass_settings
def status(settings: Settings, as_json: bool) -> None:
    """Show applied and pending migrations, and differences from your declarations. See `check` for an exit status."""
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
    """Without --app the views would be recreated without the audience column."""
    with committed(connection):
        columns = read(asking(connection), shape).columns
    if ("outbox", AUDIENCE) in columns:
        raise SchemaDrift(
            f"{shape.schema}.outbox has an audience, which its views would lose without your declaration: give {OF_APP}"
        )


def _are_known(settings: Settings) -> bool:
    """Whether we know the declarations; without them, scope columns and views cannot be compared."""
    return settings.app is not None


def _say_what_is_not_compared(settings: Settings) -> None:
    if not _are_known(settings):
        message(f"declarations were not compared: give {OF_APP}")


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
    rows = [(name, "applied by newer code" if name in found.newer else "applied") for name in _applied(found)]
    rows += [(str(migration), "pending") for migration in found.pending]
    print_table(("migration", "state"), rows)
    for difference in found.declaration:
        line(f"differs: {difference}")


@migrate.command("check", short_help="Exit with 0 if the tables match the code, else with 3.")
@pass_settings
def check(settings: Settings) -> None:
    """Exit with 0 if the tables match the code and its declarations, and with 3 if they do not.

    Without --app, only migrations are compared.
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
    help="Leave out the migrations up to this one. The schema must have them already.",
)
@pass_settings
def sql(settings: Settings, after: int) -> None:
    """Print all migrations as one SQL script, to run by hand or with another tool. Needs no database."""
    # Print all or nothing: a shell would also run half a script.
    scripts = ["".join(migrations.script(shape, after)) for shape in load_shapes(settings)]
    click.echo("".join(scripts), nl=False)


@migrate.command("grants", short_help="Print the GRANTs that a role needs to run.")
@click.argument("role")
@pass_settings
def grants(settings: Settings, role: str) -> None:
    """Print the GRANTs that let ROLE publish, relay and consume, but not migrate. Needs no database."""
    for shape in load_shapes(settings):
        for statement in migrations.grants(shape, role):
            line(f"{statement};")


def _print_each(results: list[dict[str, Any]]) -> None:
    """Print one outbox as an object, several as a list."""
    print_json(results[0] if len(results) == 1 else results)
