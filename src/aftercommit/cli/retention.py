"""The options that say how long things are kept, the same for every command that removes what is old."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from aftercommit.cli.durations import EXAMPLES, parse_duration, shown_duration
from aftercommit.schema.retention import LONGEST, Retention

FOR_EVER = "forever"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_DEFAULTS = Retention()
_WHAT = {
    "log": "the log, which goes partition by partition",
    "inbox": "the inbox, which knows who has handled what",
    "keys": "idempotency keys",
    "dead_letters": "dead letters that are resolved or discarded",
    "operations": "operations that have ended, with their events",
}


class Duration(click.ParamType[timedelta | str]):
    """`90d`, `36h`, `30m`, `45s`, `2w`, or `forever`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | str:
        """As a time, or the word for none."""
        if isinstance(value, timedelta):
            return value
        if value == FOR_EVER:
            return FOR_EVER
        try:
            time = parse_duration(value)
        except OverflowError:
            time = timedelta.max
        if time is None:
            self.fail(f"{value!r:.60} is not a time: write {EXAMPLES}, or {FOR_EVER}", param, ctx)
        if not timedelta() < time <= LONGEST:
            remedy = f"write a time of more than nothing and at most 100 years, or {FOR_EVER}"
            self.fail(f"{value!r:.60} cannot be kept to: {remedy}", param, ctx)
        return time


def shown(keep: timedelta | None) -> str:
    """A time as these options are written."""
    return FOR_EVER if keep is None else shown_duration(keep)


def retention_options(command: Decorated) -> Decorated:
    """Let a command take --keep-log and its like; `retention_of` makes a Retention of what was said."""
    for task, what in reversed(_WHAT.items()):
        name = f"keep-{task.replace('_', '-')}"
        option = click.option(
            f"--{name}",
            type=Duration(),
            default=shown(getattr(_DEFAULTS, task)),
            show_default=True,
            metavar="TIME",
            envvar=f"AFTERCOMMIT_{name.replace('-', '_').upper()}",
            show_envvar=True,
            help=f"How long to keep {what}.",
        )
        command = option(command)
    return command


def retention_of(options: dict[str, Any]) -> Retention:
    """What the options say, as one object; they are taken out of the dictionary."""
    told = {task: options.pop(f"keep_{task}") for task in _WHAT}
    return Retention(**{task: None if keep == FOR_EVER else keep for task, keep in told.items()})
