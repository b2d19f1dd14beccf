"""Completes the commands that messages propose, so that they can be pasted.

Other packages write `aftercommit dead list`. If this command was called with --schema shop, the user sees
`aftercommit dead list --schema shop`.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from aftercommit.application import Application
from aftercommit.cli.options import Given
from aftercommit.postgres.database import safe
from aftercommit.text import OF_APP

_PROPOSED = re.compile(r"`aftercommit ((?:[a-z]+)(?: [^`]*)?)`")
_PROGRAM = "aftercommit"
# These commands need the declarations.
_BY_DECLARATIONS = ("migrate", "relay", "worker")


def program() -> str:
    """How the user can call this program: by name if it is on the PATH, else by path; or through Django's manage.py."""
    context = click.get_current_context(silent=True)
    name = (context.find_root().info_name if context is not None else None) or _PROGRAM
    if name.endswith(f" {_PROGRAM}"):
        return name
    called = Path(sys.argv[0])
    if called.name != _PROGRAM or _is_found(called):
        return _PROGRAM
    return shlex.quote(sys.argv[0])


def pasteable(text: str) -> str:
    """The text with its proposed commands completed."""
    return _PROPOSED.sub(lambda found: f"`{_completed(found[1])}`", text)


def _is_found(called: Path) -> bool:
    found = shutil.which(_PROGRAM)
    return found is not None and Path(found).resolve() == called.resolve()


def _completed(command: str) -> str:
    context = click.get_current_context(silent=True)
    given = context.find_object(Given) if context is not None else None
    command = command.removesuffix(f" {OF_APP}")
    if given is None or "--schema" in command or "--app" in command:
        return f"{program()} {command}"
    options = list(_options(given, command.partition(" ")[0]))
    return " ".join([program(), command, *options])


def _options(given: Given, verb: str) -> Iterator[str]:
    told = given.options
    if "dsn" in told and verb != "up":
        # Messages end up in logs and screenshots, so the password is left out.
        yield f"--dsn {shlex.quote(_without_password(told['dsn']))}"
    if verb == "up" and given.settings.app is not None and not _runs(given.settings.app):
        yield OF_APP
    elif "app" in told:
        yield f"--app {shlex.quote(told['app'])}"
    elif given.settings.app is not None or verb == "up":
        return
    elif verb in _BY_DECLARATIONS and not _migrates_by_schema(given, verb):
        yield OF_APP
    elif "schema" in told:
        yield f"--schema {shlex.quote(told['schema'])}"


def _runs(app: str) -> bool:
    """Whether `up` can run what --app names. `serve` also takes any ASGI application, and has imported it by now."""
    if click.get_current_context().find_root().invoked_subcommand != "serve":
        return True
    module, _, name = app.partition(":")
    return isinstance(getattr(sys.modules.get(module), name, None), Application)


def _migrates_by_schema(given: Given, verb: str) -> bool:
    """Whether the user migrates by --schema, without declarations."""
    context = click.get_current_context()
    running = context.find_root().invoked_subcommand
    return verb == running == "migrate" and given.settings.schema is not None


def _without_password(dsn: str) -> str:
    return safe(dsn) if "password" in dsn or re.search(r"://[^/@]*:[^/@]*@", dsn) else dsn
