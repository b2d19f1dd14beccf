"""The options that set how long data is kept."""

from datetime import timedelta
from typing import Any

import click

from aftercommit.cli.durations import EXAMPLES, parse_duration, shown_duration
from aftercommit.cli.options import together
from aftercommit.schema.retention import LONGEST, Retention

FOR_EVER = "forever"

_DEFAULTS = Retention()
_WHAT = {
    "log": "events in the log, which is dropped one partition at a time",
    "inbox": "inbox entries, which record the events that each consumer has handled",
    "keys": "idempotency keys",
    "dead_letters": "dead letters that are resolved or discarded",
    "operations": "finished operations, with their events",
}


class Duration(click.ParamType[timedelta | str]):
    """`90d`, `36h`, `30m`, `45s`, `2w`, or `forever`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | str:
        """A timedelta, or FOR_EVER."""
        if isinstance(value, timedelta):
            return value
        if value == FOR_EVER:
            return FOR_EVER
        try:
            time = parse_duration(value)
        except OverflowError:
            time = timedelta.max
        if time is None:
            self.fail(f"{value!r:.60} is not a duration: write {EXAMPLES}, or {FOR_EVER}", param, ctx)
        if not timedelta() < time <= LONGEST:
            remedy = f"write more than 0s and at most 36500d (100 years), or {FOR_EVER}"
            self.fail(f"{value!r:.60} is out of range: {remedy}", param, ctx)
        return time


def shown(keep: timedelta | None) -> str:
    """A duration as these options are written."""
    return FOR_EVER if keep is None else shown_duration(keep)


def _option(task: str, what: str) -> Any:
    name = f"keep-{task.replace('_', '-')}"
    return click.option(
        f"--{name}",
        type=Duration(),
        default=shown(getattr(_DEFAULTS, task)),
        show_default=True,
        metavar="TIME",
        envvar=f"AFTERCOMMIT_{name.replace('-', '_').upper()}",
        show_envvar=True,
        help=f"How long to keep {what}.",
    )


retention_options = together(*(_option(task, what) for task, what in _WHAT.items()))
"""Adds --keep-log and the like to a command; `retention_of` makes a Retention of their values."""


def retention_of(options: dict[str, Any]) -> Retention:
    """Take the retention out of a command's options."""
    told = {task: options.pop(f"keep_{task}") for task in _WHAT}
    return Retention(**{task: None if keep == FOR_EVER else keep for task, keep in told.items()})
