"""Figures at a small and at a large size, taken in turns: what grows shows as a ratio, whatever the machine does."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from click.testing import CliRunner

from aftercommit.cli import cli
from bench.figures import Direction, Group, Grown, Spread, Verdict
from bench.stage import ContestantFailed, Stage, say, tell

Values = Mapping[str, float]
Play = Callable[[], Values]
# Done; something is wrong (`status`); nothing or not all matches.
ANSWERED: Final = (0, 3, 4)


def measure(
    stage: Stage,
    title: str,
    units: Mapping[str, str],
    sizes: Mapping[str, Play],
    *,
    floor: tuple[str, Play] | None = None,
    rounds: int | None = None,
    warm_up: bool = True,
) -> Group:
    """Every size in turns, round after round. `units` names the figures in their order."""
    names = list(sizes)
    group = Group(title, "", grown=[Grown(name, unit) for name, unit in units.items()], sizes=(names[0], names[1]))
    players = [("small", sizes[names[0]]), ("large", sizes[names[1]])]
    if floor is not None:
        group.floor = floor[0]
        players.append(("floor", floor[1]))
    rounds = rounds or stage.rounds
    for number in range(-1 if warm_up and rounds > 1 else 0, rounds):
        for size, play in players:
            say(f"{title} · {'warm-up' if number < 0 else f'round {number + 1}'} · {size}")
            found = play()
            if number >= 0:
                _note(group, size, found)
    say("")
    for each in group.grown:
        small, large = Spread.of(each.small).median, Spread.of(each.large).median
        tell(f"  {title} · {each.name}: {small:,.4g} to {large:,.4g} {each.unit}, ratio {each.ratio.median:.2f}")
    return group


def _note(group: Group, size: str, found: Values) -> None:
    for each in group.grown:
        if each.name in found:
            getattr(each, size).append(found[each.name])


def ratio(group: Group, name: str, direction: Direction, target: float) -> Verdict:
    """A verdict on what is left of a figure, or added to it, at the large size."""
    small, large = group.sizes
    return Verdict(f"{group.title}, {name}: {large} to {small}", direction, target, group.figure(name).ratio)


def value(group: Group, name: str, direction: Direction, target: float) -> Verdict:
    """A verdict on a figure at the large size."""
    figure = group.figure(name)
    what = f"{group.title}, {name}: {figure.unit} at {group.sizes[1]}"
    return Verdict(what, direction, target, Spread.of(figure.large))


def milliseconds(work: Callable[..., object], *arguments: object) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work(*arguments)
    return 1000 * (time.perf_counter() - began)


def command(dsn: str, schema: str, *words: str) -> str:
    """What a command of `aftercommit` prints, run in this process: all that a user waits for but Python's start."""
    result = CliRunner().invoke(cli, [*words, "--dsn", dsn, "--schema", schema])
    if result.exit_code not in ANSWERED:
        why = result.output[-300:] or repr(result.exception)
        raise ContestantFailed(f"`aftercommit {' '.join(words)}` ended with {result.exit_code}: {why}")
    return result.stdout
