"""`manage.py aftercommit …`: the command line of aftercommit, with Django's databases and outboxes.

manage.py aftercommit status
manage.py aftercommit relay --database billing
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from aftercommit.cli import cli
from aftercommit.cli.options import Given
from aftercommit.contrib.django.dsn import dsn_of
from aftercommit.contrib.django.operations import outboxes_on
from aftercommit.errors import AftercommitError


class Command(BaseCommand):  # type: ignore[misc]
    """Runs `aftercommit`, without the need for --dsn and --app."""

    help = "The command line of aftercommit, with Django's database settings."
    requires_system_checks = ()

    def add_arguments(self, parser: Any) -> None:
        """The arguments of call_command()."""
        parser.add_argument("arguments", nargs="*")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS)

    def run_from_argv(self, argv: list[str]) -> None:
        """manage.py calls it. Parses Django's own options, and passes all others on."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS)
        for option in ("--settings", "--pythonpath"):
            parser.add_argument(option)
        known, arguments = parser.parse_known_args(argv[2:])
        try:
            given = _given(known.database)
        except (AftercommitError, CommandError) as problem:
            self.stderr.write(f"error: {problem}")
            sys.exit(1)
        cli.main(arguments, prog_name=f"{argv[0]} {argv[1]}", obj=given)

    def handle(self, *, arguments: Sequence[str], database: str, **options: Any) -> None:
        """call_command("aftercommit", "migrate", "up") calls it; an exit status other than 0 is a CommandError."""
        status = cli.main(list(arguments), prog_name="aftercommit", obj=_given(database), standalone_mode=False)
        if isinstance(status, int) and status != 0:
            raise CommandError(f"aftercommit {' '.join(arguments)} ended with status {status}", returncode=status)


def _given(database: str) -> Given:
    """Options from Django's settings; those of the command line override them."""
    if database not in connections:
        raise CommandError(f"DATABASES has no {database!r}: use one of {', '.join(connections)}")
    given = Given()
    outboxes = [outbox for outbox in outboxes_on(database) if isinstance(outbox, str)]
    app = _reference(outboxes[0]) if len(outboxes) == 1 else None
    given.settings = given.settings.told(dsn=dsn_of(connections[database]), app=given.settings.app or app)
    return given


def _reference(path: str) -> str:
    """A dotted path in the form of --app."""
    return path if ":" in path else ":".join(path.rsplit(".", 1))
