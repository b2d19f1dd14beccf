"""The options that say what is still all right, the same for every command that tells problems."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from aftercommit.cli.numbers import Count, Seconds
from aftercommit.operate.health import HealthLimits

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_DEFAULTS = HealthLimits()
_OPTIONS = (
    click.option(
        "--max-age",
        "max_age_seconds",
        type=Seconds(),
        default=_DEFAULTS.max_age_seconds,
        show_default=True,
        metavar="SECONDS",
        help="How long an event, or a retry that nobody makes, may wait before that is a problem.",
    ),
    click.option(
        "--max-lag", "max_lag_events", type=Count(), metavar="EVENTS", help="How far a consumer may be behind."
    ),
    click.option(
        "--max-lag-seconds",
        type=Seconds(),
        metavar="SECONDS",
        help="How long an event in the log may wait for a consumer.",
    ),
    click.option(
        "--max-dead",
        "max_dead_letters",
        type=Count(),
        default=_DEFAULTS.max_dead_letters,
        show_default=True,
        metavar="COUNT",
        help="How many dead letters may be parked, and events failed.",
    ),
    click.option(
        "--max-transaction",
        "max_transaction_seconds",
        type=Seconds(),
        default=_DEFAULTS.max_transaction_seconds,
        show_default=True,
        metavar="SECONDS",
        help="How long a transaction may hold things up.",
    ),
)


def limit_options(command: Decorated) -> Decorated:
    """Let a command take --max-age and its like; `limits_of` makes HealthLimits of what was said."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def limits_of(options: dict[str, Any]) -> HealthLimits:
    """What the options say, as one object; they are taken out of the dictionary."""
    return HealthLimits(**{each.name: options.pop(each.name) for each in fields(HealthLimits)})
