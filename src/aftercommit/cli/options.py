"""The options that every command understands, before or after its name."""

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
    """What was said so far: the environment first, then each option as it is read."""

    def __init__(self) -> None:
        for name in (DATABASE_URL, LISTEN_URL, APP, SCHEMA):
            if text_problem(os.environ.get(name, "")) is not None:
                # The value is not shown: it may hold a password.
                raise click.UsageError(f"{name} is not text: it has bytes that are not UTF-8. Set it in UTF-8")
        # Of the settings, those that were said as options: a command that we propose has to say them too.
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


_global_option = functools.partial(click.option, expose_value=False, callback=_remember)
_OPTIONS = (
    _global_option("--dsn", metavar="URL", help=f"The database; {DATABASE_URL} in the environment."),
    _global_option("--app", metavar="MODULE:NAME", help=f"Your Outbox, as Python names it; {APP} in the environment."),
    _global_option(
        "--schema", metavar="NAME", help=f"The outbox, where no --app is needed; {SCHEMA} in the environment."
    ),
    _global_option(
        "--log-format", type=click.Choice(["json", "text"]), help="Default: text on a terminal, json elsewhere."
    ),
    _global_option("-v", "--verbose", is_flag=True, default=None, help="Say more, and where an error came from."),
)


def global_options(command: Command) -> Command:
    """Let a command take these options too."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def pass_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take the global options, and give it the settings that come of them as its first argument."""

    @click.make_pass_decorator(Given, ensure=True)
    def call(given: Given, *arguments: Any, **options: Any) -> Any:
        return function(given.settings, *arguments, **options)

    return global_options(functools.update_wrapper(call, function))


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
