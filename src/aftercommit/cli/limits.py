"""The options that set the limits of `status` and `doctor`."""

from dataclasses import fields
from typing import Any

import click

from aftercommit.cli.numbers import Count, Seconds
from aftercommit.cli.options import together
from aftercommit.operate.health import HealthLimits

_DEFAULTS = HealthLimits()

limit_options = together(
    click.option(
        "--max-age",
        "max_age_seconds",
        type=Seconds(),
        default=_DEFAULTS.max_age_seconds,
        show_default=True,
        metavar="SECONDS",
        help="How long an event, or an overdue retry, may wait.",
    ),
    click.option(
        "--max-lag", "max_lag_events", type=Count(), metavar="EVENTS", help="How many events a consumer may lag."
    ),
    click.option(
        "--max-lag-seconds", type=Seconds(), metavar="SECONDS", help="How long an event may wait for a consumer."
    ),
    click.option(
        "--max-dead",
        "max_dead_letters",
        type=Count(),
        default=_DEFAULTS.max_dead_letters,
        show_default=True,
        metavar="COUNT",
        help="How many dead letters may be parked, and how many events may have failed.",
    ),
    click.option(
        "--max-transaction",
        "max_transaction_seconds",
        type=Seconds(),
        default=_DEFAULTS.max_transaction_seconds,
        show_default=True,
        metavar="SECONDS",
        help="How long a transaction may block others.",
    ),
)
"""Adds --max-age and the other limits to a command; `limits_of` makes HealthLimits of their values."""


def limits_of(options: dict[str, Any]) -> HealthLimits:
    """Take the limits out of a command's options."""
    return HealthLimits(**{each.name: options.pop(each.name) for each in fields(HealthLimits)})
