"""What no option takes, of any command: found by looking at the commands, so that a new option is covered by itself."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from aftercommit.cli import cli
from aftercommit.cli.numbers import LARGEST, Amount, Count, Seconds
from tests.support.programs import CLEANED

PLAIN = ("1", "60", "1d", "2026-03-01")
NO_NUMBERS = ("nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e400", "-1", "-0.5", "9" * 400, "", " ", "ten", "0x10")
# Larger than anything that can be counted or waited for.
HUGE = ("99999999999999999999", "1e300")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path))


def commands(command: click.Command = cli, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its name, groups too."""
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, *path, name)


def options() -> Iterator[tuple[tuple[str, ...], click.Option]]:
    for path, command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                yield path, parameter


def reads(parameter: click.Parameter, text: str) -> Any:
    """What an option makes of a text; None when it refuses it."""
    try:
        return parameter.type.convert(text, parameter, click.Context(cli))
    except click.BadParameter:
        return None


def is_measured(parameter: click.Parameter) -> bool:
    """Whether the option is a number, a length of time or a moment."""
    return any(isinstance(reads(parameter, text), int | float | timedelta | datetime) for text in PLAIN)


MEASURED = [(path, parameter) for path, parameter in options() if is_measured(parameter)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def refused(*arguments: str) -> str:
    """What a command says that does not take this: one error, without a trace of Python."""
    result = run(*arguments)
    assert result.exit_code == 2, (arguments, result.output, result.exception)
    assert result.stdout == ""
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
    assert "Traceback" not in result.stderr
    assert "timedelta" not in result.stderr
    assert "range" not in line.replace("out of range", ""), "this is how click says it"
    return line


def test_the_options_that_measure_something_are_found() -> None:
    found = {(" ".join(path), parameter.opts[-1]) for path, parameter in MEASURED}
    for path, name in [
        ("up", "--rate"),
        ("relay", "--batch-size"),
        ("relay", "--keep-inbox"),
        ("worker", "--lease"),
        ("migrate up", "--patience"),
        ("status", "--max-lag"),
        ("sweep", "--seconds"),
        ("dead list", "--offset"),
        ("dead list", "--since"),
        ("replay start", "--rate"),
        ("replay show", "--limit"),
    ]:
        assert (path, name) in found


@pytest.mark.parametrize(
    ("path", "option"), [pytest.param(*each, id=f"{' '.join(each[0])} {each[1].opts[-1]}") for each in MEASURED]
)
def test_what_is_no_number_negative_or_huge_is_wrong_usage(path: tuple[str, ...], option: click.Option) -> None:
    name = next(each for each in option.opts if each.startswith("--"))
    for text in (*NO_NUMBERS, *HUGE):
        line = refused(*path, f"{name}={text}")
        assert name in line
        assert repr(text)[:50] in line
        assert ": write " in line or "should look like" in line


@pytest.mark.parametrize("option", [pytest.param(each, id=each.opts[-1]) for _, each in MEASURED])
def test_defaults_are_within_what_is_allowed(option: click.Option) -> None:
    if isinstance(option.default, str | int | float):
        assert reads(option, str(option.default)) is not None


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        (Count(1), "1", 1),
        (Count(), str(LARGEST), LARGEST),
        (Count(), "+5", 5),
        (Amount(0.5, 2), "2", 2.0),
        (Seconds(), "1e2", 100.0),
    ],
)
def test_what_is_within_the_bounds_is_read(kind: Any, text: str, number: float) -> None:
    assert kind.convert(text, None, None) == number


@pytest.mark.parametrize("text", ["1_000", "1.5", "٣", str(LARGEST + 1)])
def test_a_count_is_written_in_digits(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write a whole number from 0 to"):
        Count().convert(text, None, None)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01"])
def test_a_moment_that_no_clock_shows_is_wrong_usage(moment: str) -> None:
    assert f"{moment!r} is out of range: write a time from year 2 to year 9998" in refused(
        "dead", "list", "--since", moment
    )


def test_a_scope_is_named_once_and_has_a_value() -> None:
    assert "'a' is given twice" in refused("dead", "list", "--scope", "a=1", "--scope", "a=2")
    for text in ("a", "=1", "a="):
        assert f"{text!r} should look like NAME=VALUE" in refused("dead", "list", "--scope", text)


@pytest.mark.parametrize("text", ["bad\udcffbytes", "bad\x00nul", "\ud800"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("dead", "list", "--error"),
        ("dead", "list", "--type"),
        ("dead", "list", "--aggregate"),
        ("dead", "retry", "--reason"),
        ("replay", "start", "--from-position", "1", "--to"),
        ("consumers", "pause"),
        ("migrate", "grants"),
        ("--dsn",),
        ("status", "--schema"),
    ],
)
def test_what_is_not_text_is_wrong_usage_wherever_it_stands(arguments: tuple[str, ...], text: str) -> None:
    assert f"{text!r} is not valid UTF-8 text" in refused(*arguments, text)
    assert "Write it in UTF-8" in refused(*arguments, text)


@pytest.mark.parametrize("name", ["DATABASE_URL", "AFTERCOMMIT_LISTEN_URL", "AFTERCOMMIT_APP", "AFTERCOMMIT_SCHEMA"])
def test_an_environment_that_is_not_text_is_wrong_usage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "postgresql://ann:secret@\udcff")
    said = refused("status")
    assert f"{name} is not valid UTF-8 text" in said
    assert "secret" not in said


def test_an_address_that_is_not_text_keeps_its_password() -> None:
    said = refused("status", "--dsn", "postgresql://ann:secret@\udcff/shop")
    assert "the address of the database is not valid UTF-8 text" in said
    assert "secret" not in said


def test_a_scope_value_that_is_not_text_is_wrong_usage() -> None:
    assert "is not valid UTF-8 text" in refused("dead", "list", "--scope", "tenant_id=a\x00b")


@pytest.mark.parametrize("option", ["--consumer", "--type", "--error", "--aggregate", "--correlation"])
def test_an_empty_value_is_wrong_usage(option: str) -> None:
    assert f"{option} is empty: give a value, or leave it out" in refused("dead", "list", option, "")


def test_a_replay_of_everything_has_to_be_meant() -> None:
    assert "--from-position 1 chooses the whole log" in refused("replay", "start", "--to", "index")


@pytest.mark.parametrize("path", [pytest.param(path, id=" ".join(path) or "aftercommit") for path, _ in commands()])
def test_every_command_and_option_says_what_it_is_for(path: tuple[str, ...]) -> None:
    shown = run(*path, "--help").stdout
    assert "TEXT " not in shown.replace("--reason TEXT ", "").replace("--error TEXT ", ""), "a metavar says more"
    for parameter in dict(commands())[path].params:
        if isinstance(parameter, click.Option):
            assert (parameter.help or "").endswith("."), parameter.opts
