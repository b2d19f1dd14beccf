"""`aftercommit consumers`: look at checkpoints, pause, resume, rename and forget them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import click
import psycopg

from aftercommit.cli.loading import find_shape, load_database
from aftercommit.cli.options import as_json, global_options, pass_settings
from aftercommit.cli.output import message, print_json, print_table
from aftercommit.consumer import names
from aftercommit.postgres.overview import ConsumerState, overview
from aftercommit.postgres.shape import Shape
from aftercommit.settings import Settings

CONSUMER_COLUMNS = ("consumer", "position", "lag", "lag (s)", "paused", "holder")

Change = Callable[[psycopg.AsyncConnection[Any], Shape], Awaitable[None]]


@click.group()
@global_options
def consumers() -> None:
    """Consumers of the log: where they are, and whether they may go on."""


@consumers.command("list")
@as_json
@pass_settings
def list_consumers(settings: Settings, as_json: bool) -> None:
    """Show every consumer with its checkpoint, its lag and who works for it."""
    with load_database(settings, "consumers").connect_sync() as connection:
        found = overview(connection, find_shape(settings, connection)).consumers
    if as_json:
        print_json(found)
    else:
        print_table(CONSUMER_COLUMNS, consumer_rows(found))


def consumer_rows(found: Iterable[ConsumerState]) -> list[tuple[Any, ...]]:
    """The rows of the table that `status` shows too."""
    return [(each.name, each.position, each.lag, each.lag_seconds, each.paused, each.holder) for each in found]


@consumers.command()
@click.argument("name")
@pass_settings
def pause(settings: Settings, name: str) -> None:
    """Let a consumer rest; its worker finishes what it has begun and then waits."""
    _change(settings, lambda connection, shape: names.set_paused(connection, shape, name, True))
    message(f"consumer {name!r} is paused")


@consumers.command()
@click.argument("name")
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """Let a paused consumer go on from where it stopped."""
    _change(settings, lambda connection, shape: names.set_paused(connection, shape, name, False))
    message(f"consumer {name!r} goes on")


@consumers.command()
@click.argument("old")
@click.argument("new")
@pass_settings
def rename(settings: Settings, old: str, new: str) -> None:
    """Give a checkpoint, its inbox and its dead letters the name that the code uses now."""
    _change(settings, lambda connection, shape: names.rename(connection, shape, old, new))
    message(f"consumer {old!r} is now {new!r}")


@consumers.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_settings
def forget(settings: Settings, name: str, yes: bool) -> None:
    """Remove the checkpoint and the inbox of a consumer that no program declares any more."""
    if not yes:
        click.confirm(
            f"Forget consumer {name!r}? Its checkpoint and inbox are removed; under this name everything would be "
            "consumed again",
            abort=True,
            err=True,
        )
    _change(settings, lambda connection, shape: names.forget(connection, shape, name))
    message(f"consumer {name!r} is forgotten")


def _change(settings: Settings, change: Change) -> None:
    database = load_database(settings, "consumers")
    with database.connect_sync() as connection:
        shape = find_shape(settings, connection)
        # Says what to do where there is no outbox, before anything is tried.
        overview(connection, shape)

    async def run() -> None:
        async with await database.connect() as connection:
            await change(connection, shape)

    asyncio.run(run())
