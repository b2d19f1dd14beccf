"""Questions before something is changed: a no changes nothing, and where nobody can be asked that is an error."""

import sys
from typing import NoReturn

import click

from aftercommit.cli.exits import FAILED
from aftercommit.cli.output import message


def confirm(question: str) -> None:
    """Go on if the operator agrees; otherwise the command ends here, with status 1 and nothing changed."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as problem:
        # The question stands on a line that nobody has ended.
        click.echo(err=True)
        if isinstance(problem.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        if not sys.stdin.isatty():
            _nobody_there()
        agreed = False
    if not agreed:
        nothing_changed()


def nothing_changed() -> NoReturn:
    """End the command of an operator who thought better of it."""
    message("nothing was changed")
    click.get_current_context().exit(FAILED)


def _nobody_there() -> NoReturn:
    context = click.get_current_context()
    known = {option for parameter in context.command.params for option in parameter.opts}
    instead = " or ".join(option for option in ("--yes", "--dry-run") if option in known)
    message(f"error: nobody can be asked here: say {instead}")
    context.exit(FAILED)
