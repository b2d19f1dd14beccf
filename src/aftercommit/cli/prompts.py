"""Asks for confirmation. "No" changes nothing; without a terminal, asking is an error."""

import sys
from typing import NoReturn

import click

from aftercommit.cli.exits import FAILED
from aftercommit.cli.output import message


def confirm(question: str) -> None:
    """Return if the operator agrees; otherwise exit with status 1, and nothing is changed."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as problem:
        # End the line of the question.
        click.echo(err=True)
        if isinstance(problem.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        if not sys.stdin.isatty():
            _no_terminal()
        agreed = False
    if not agreed:
        nothing_changed()


def nothing_changed() -> NoReturn:
    """Exit because the operator does not want to go on."""
    message("nothing was changed")
    click.get_current_context().exit(FAILED)


def _no_terminal() -> NoReturn:
    context = click.get_current_context()
    known = {option for parameter in context.command.params for option in parameter.opts}
    instead = " or ".join(option for option in ("--yes", "--dry-run") if option in known)
    message(f"error: cannot ask for confirmation, because stdin is not a terminal: give {instead}")
    context.exit(FAILED)
