"""How long redaction takes: of an ordinary log, and of hostile texts, each rule with what is worst for it.

`python -m tools.redaction_speed` prints processor time per 100 KB (of UTF-8), the least of several runs, and the same
of a megabyte, which tells whether it grows with the text alone; of values with very many parts likewise, as JSON. It
ends with 1 when something takes longer than it may; a busy machine can make it do so.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import click
import msgspec

from aftercommit.redaction import redactor as redaction
from aftercommit.redaction.folding import folded
from aftercommit.redaction.patterns import LookBudget, TooDense
from aftercommit.redaction.rules import RULES, RedactionRule
from systems.investigations.sample.sample_script import Story
from tests.unit.hostile_texts import UNITS, VALUES, repeated

MOST_MILLISECONDS = 50.0
MOST_MICROSECONDS = 60.0
KILOBYTES = 100
REQUESTS: Final = 200


class Measured(NamedTuple):
    """Milliseconds per 100 KB of one unit, and that of ten times the text."""

    milliseconds: float
    of_longer: float
    unit: str


def least(run: Callable[[], object], rounds: int) -> float:
    """The processor time of the quickest run, in milliseconds: others share the machine."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return 1000 * min(found)


def measured(unit: str, run: Callable[[str], object], rounds: int) -> Measured:
    """Texts of 100 KB and of a megabyte."""
    size = len(unit.encode("utf-8", "surrogatepass"))
    length = KILOBYTES * 1000 * len(unit) // size
    short, long = repeated(unit, length), repeated(unit, 10 * length)
    return Measured(least(lambda: run(short), rounds), least(lambda: run(long), 1) / 10, unit)


def with_rule(rule: RedactionRule) -> Callable[[str], object]:
    """Look for what one rule finds."""

    def run(text: str) -> None:
        searched = folded(text, LookBudget(len(text)))[0]
        try:
            for _ in rule.find(searched, searched.lower(), LookBudget(len(searched))):
                pass
        except TooDense:
            # The text would be withheld.
            pass

    return run


def rows(rounds: int, shown: int) -> Iterator[tuple[str, Measured]]:
    """The worst of each rule, then the worst of all rules together."""
    for rule in RULES:
        run = with_rule(rule)
        yield rule.find.__name__, max(measured(unit, run, rounds) for unit in UNITS)
    redactor = redaction.Redactor()
    everything = sorted((measured(unit, redactor.text, rounds) for unit in UNITS), reverse=True)
    yield from (("all rules", each) for each in everything[:shown])


def wide_values(rounds: int) -> Iterator[tuple[str, Measured]]:
    """Values of many parts. A redactor of its own for each: names that it knows already would cost less."""
    for name, made in VALUES.items():
        size = len(msgspec.json.encode(made(1000))) / 1000
        short, long = (made(int(times * KILOBYTES * 1000 / size)) for times in (1, 10))
        taken = min(least(partial(redaction.Redactor().value, short), 1) for _ in range(rounds))
        yield "value", Measured(taken, least(partial(redaction.Redactor().value, long), 1) / 10, name)


def ordinary_logs() -> list[dict[str, Any]]:
    """Items as the feed of the sample investigations makes them."""
    story = Story(seed=1)
    return [
        {
            "event_id": str(line.event_id),
            "ts": "2025-11-12T10:30:05.123Z",
            "seq": 4711,
            "source": line.source,
            "service": line.service,
            "level": line.level,
            "message": line.message,
            "investigation_id": "INV-123",
            "correlation_id": line.correlation_id,
            "context": {**line.context, "client_ts": line.ts},
            "schema_version": 1,
        }
        for _ in range(REQUESTS)
        for line in story.request()
    ]


def of_ordinary_logs(rounds: int) -> float:
    """Microseconds for one of them, by and large."""
    redactor, logs = redaction.Redactor(), ordinary_logs()
    return 1000 * least(lambda: [redactor.value(log) for log in logs], rounds) / len(logs)


@click.command()
@click.option("--rounds", default=3, help="Runs of each text; the quickest counts.")
@click.option("--shown", default=15, help="How many of the worst texts are shown.")
def main(rounds: int, shown: int) -> None:
    """Print the table."""
    ordinary = of_ordinary_logs(rounds)
    click.echo(f"an ordinary log: {ordinary:.0f} µs; {MOST_MICROSECONDS:.0f} are allowed")
    click.echo(f"{'rule':16} {'ms/100 KB':>10} {'of 1 MB':>10}  worst text, repeated")
    values, texts = list(wide_values(rounds)), list(rows(rounds, shown))
    for name, found in (*values, *texts):
        click.echo(f"{name:16} {found.milliseconds:10.1f} {found.of_longer:10.1f}  {found.unit!a}")
    of_values, of_texts = (max(max(found[:2]) for _, found in each) for each in (values, texts))
    click.echo(f"slowest text: {of_texts:.1f} ms per 100 KB; {MOST_MILLISECONDS:.0f} are allowed")
    click.echo(f"slowest value: {of_values:.1f} ms per 100 KB; {MOST_MILLISECONDS:.0f} are allowed")
    sys.exit(max(of_texts, of_values) > MOST_MILLISECONDS or ordinary > MOST_MICROSECONDS)


if __name__ == "__main__":
    main()
