"""`aftercommit doctor`: checks server, tables and flow, and says what is wrong and what to do."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

import click

from aftercommit.cli.exits import NOT_AS_IT_SHOULD_BE
from aftercommit.cli.limits import limit_options, limits_of
from aftercommit.cli.loading import find_shape, load_application, load_database, load_outbox
from aftercommit.cli.options import as_json, pass_settings
from aftercommit.cli.output import line, message, print_json, printable
from aftercommit.cli.remedies import pasteable
from aftercommit.errors import AftercommitError, DeclarationError
from aftercommit.operate.doctor import Finding, diagnose
from aftercommit.outbox import Outbox
from aftercommit.settings import Settings
from aftercommit.text import plural

_INDENT = " " * 9
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command()
@limit_options
@as_json
@pass_settings
@click.pass_context
def doctor(ctx: click.Context, /, settings: Settings, as_json: bool, **options: Any) -> None:
    """Check the server, its settings, the tables and the flow of events. Each finding comes with a remedy.

    Changes nothing. With --app it also compares the tables with your declarations. Includes the checks of `status`,
    with the same limits. Exits with 3 if there is a problem, and with 0 if there are only warnings.
    """
    outbox, found = _application(settings)
    # If the application cannot be imported, its tables are checked all the same.
    told = settings if outbox is not None else replace(settings, app=None)
    declared = None if outbox is None else outbox.consumers.keys()
    limits = limits_of(options)
    try:
        database = load_database(settings, "doctor")
    except AftercommitError as error:
        found.append(Finding("connection", "problem", str(error), "give the address of the database"))
    else:
        found += diagnose(
            database,
            lambda connection: find_shape(told, connection),
            declared=declared,
            limits=limits,
            users_by_header=outbox is not None and outbox in load_application(settings).users_by_header,
        )
    found = [replace(each, found=pasteable(each.found), remedy=pasteable(each.remedy or "") or None) for each in found]
    unhealthy = any(each.level == "problem" for each in found)
    if as_json:
        print_json({"healthy": not unhealthy, "checks": [asdict(each) for each in found]})
    else:
        _print(found)
    ctx.exit(NOT_AS_IT_SHOULD_BE if unhealthy else 0)


def _application(settings: Settings) -> tuple[Outbox | None, list[Finding]]:
    if settings.app is None:
        return None, []
    try:
        outbox = load_outbox(settings)
    except Exception as error:  # noqa: BLE001 - an application can fail to import in any way, and that is the finding
        said = f"--app {settings.app} cannot be imported: {type(error).__name__}: {error}"
        return None, [Finding("application", "problem", said, "fix the import: relays and workers need it")]
    found = (
        f"outbox {outbox.schema!r} with {plural(len(list(outbox.registry)), 'event type')} and "
        f"{plural(len(outbox.consumers), 'consumer')}"
    )
    return outbox, [Finding("application", "ok", found), *_upcasters(outbox)]


def _upcasters(outbox: Outbox) -> list[Finding]:
    try:
        outbox.registry.require_upcasters()
    except DeclarationError as error:
        return [Finding("upcasters", "problem", str(error), "add it: relays, workers and servers need it to start")]
    return []


def _print(found: Sequence[Finding]) -> None:
    for each in found:
        label = click.style(f"{each.level:<8}", fg=_COLOURS[each.level], bold=each.level != "ok")
        told = [f"{each.check}: {each.found}", *([f"remedy: {each.remedy}"] if each.remedy else [])]
        first, *others = [part for text in told for part in _wrapped(printable(" ".join(text.split())))]
        line(f"{label} {first}")
        for part in others:
            line(f"{_INDENT}{part}")
    counts = Counter(each.level for each in found)
    message(f"{len(found)} findings: ok {counts['ok']}, warnings {counts['warning']}, problems {counts['problem']}")


def _wrapped(text: str) -> list[str]:
    """Wrap for a terminal. In a pipe, a finding is one line and its remedy another."""
    if not sys.stdout.isatty():
        return [text]
    width = max(60, get_terminal_size().columns - 1) - len(_INDENT)
    return wrap(text, width, break_on_hyphens=False, break_long_words=False)
