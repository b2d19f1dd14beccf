"""The options that all commands accept, before or after the command's name."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from aftercommit.errors import DeclarationError
from aftercommit.event.json_rules import text_problem
from aftercommit.settings import APP, DATABASE_URL, LISTEN_URL, SCHEMA, Settings

Command = TypeVar("Command", bound=Callable[..., Any])


class Given:
    """The settings so far: from the environment, and then from each option as it is read."""

    def __init__(self) -> None:
        for name in (DATABASE_URL, LISTEN_URL, APP, SCHEMA):
            if text_problem(os.environ.get(name, "")) is not None:
                # The message leaves out the value, which may contain a password.
                raise click.UsageError(f"{name} is not valid UTF-8 text: set it in UTF-8")
        # The settings that came from options: commands that we propose must repeat them.
        self.options: dict[str, Any] = {}
        try:
            self.settings = Settings.from_environment()
        except DeclarationError as problem:
            raise click.UsageError(str(problem)) from problem


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    assert parameter.name is not None
    if value is not None:
        given = ctx.ensure_object(Given)
        given.settings = given.settings.told(**{parameter.name: value})
        given.options[parameter.name] = value


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """One decorator that adds several options to a command, in this order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


_global_option = functools.partial(click.option, expose_value=False, callback=_remember)

global_options = together(
    _global_option("--dsn", metavar="URL", help=f"The database. Default: {DATABASE_URL}."),
    _global_option("--app", metavar="MODULE:NAME", help=f"Your Outbox or Application in Python. Default: {APP}."),
    _global_option("--schema", metavar="NAME", help=f"The outbox by its schema, without --app. Default: {SCHEMA}."),
    _global_option(
        "--log-format", type=click.Choice(["json", "text"]), help="Default: text on a terminal, json elsewhere."
    ),
    _global_option("-v", "--verbose", is_flag=True, default=None, help="Log more, and show tracebacks of errors."),
)
"""Adds the options that all commands accept."""


def pass_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the global options to a command, and pass it the resulting settings as its first argument."""

    @click.make_pass_decorator(Given, ensure=True)
    def call(given: Given, *arguments: Any, **options: Any) -> Any:
        return function(given.settings, *arguments, **options)

    return global_options(functools.update_wrapper(call, function))


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
