"""Commands that are proposed can be pasted: they name the same database and the same outbox."""

import re
import sys
from pathlib import Path

import click
import pytest

import aftercommit
from aftercommit.cli import cli
from aftercommit.cli.options import Given, global_options
from aftercommit.cli.remedies import pasteable, program
from tests.support.programs import CLEANED


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable says anything, and the program is found by its name."""
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["pytest"])


def proposed(*arguments: str, text: str, prog: str = "aftercommit") -> str:
    """What becomes of a text in a command that was called like this."""
    said: list[str] = []

    @click.group()
    @global_options
    @click.pass_context
    def root(ctx: click.Context) -> None:
        ctx.obj = ctx.ensure_object(Given)

    @root.command("migrate")
    @global_options
    def migrate() -> None:
        said.append(pasteable(text))

    @root.command("status")
    @global_options
    def status() -> None:
        said.append(pasteable(text))

    root.main(list(arguments), prog_name=prog, standalone_mode=False)
    return said[0]


MIGRATE = "x: run `aftercommit migrate up --app module:outbox`"
LIST = "`aftercommit dead list`, then `discard`"


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (["status"], LIST, LIST),
        (["status", "--schema", "shop"], LIST, "`aftercommit dead list --schema shop`, then `discard`"),
        (["--app", "shop:outbox", "status"], LIST, "`aftercommit dead list --app shop:outbox`, then `discard`"),
        (["status"], MIGRATE, MIGRATE),
        (["status", "--schema", "shop"], MIGRATE, MIGRATE),
        (["status", "--app", "shop:outbox"], MIGRATE, "x: run `aftercommit migrate up --app shop:outbox`"),
        (["migrate"], MIGRATE, MIGRATE),
        (["migrate", "--schema", "shop"], MIGRATE, "x: run `aftercommit migrate up --schema shop`"),
        (["status"], "`aftercommit relay`", "`aftercommit relay --app module:outbox`"),
        (["status", "--schema", "shop"], "`aftercommit worker a b`", "`aftercommit worker a b --app module:outbox`"),
        (["status", "--dsn", "host=a dbname=b"], "`aftercommit sweep`", "`aftercommit sweep --dsn 'host=a dbname=b'`"),
        (["status", "--schema", "a b"], "`aftercommit sweep`", "`aftercommit sweep --schema 'a b'`"),
        (["status", "--app", "shop:outbox"], "run `aftercommit up`", "run `aftercommit up --app shop:outbox`"),
        (["status", "--schema", "shop"], "run `aftercommit up`", "run `aftercommit up`"),
    ],
)
def test_a_command_repeats_what_was_said(arguments: list[str], text: str, said: str) -> None:
    assert proposed(*arguments, text=text) == said


@pytest.mark.parametrize(
    "dsn", ["postgresql://me:hush@host/shop", "postgresql://host/shop?password=hush", "host=host password=hush"]
)
def test_a_password_is_not_repeated(dsn: str) -> None:
    said = proposed("status", "--dsn", dsn, text=LIST)
    assert "hush" not in said
    assert "host=host" in said


def test_what_the_environment_says_need_not_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERCOMMIT_APP", "shop:outbox")
    assert proposed("status", text=MIGRATE) == "x: run `aftercommit migrate up`"
    assert proposed("status", text=LIST) == LIST


def test_the_program_is_named_as_it_can_be_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = tmp_path / "bin" / "aftercommit"
    there.parent.mkdir()
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(there)])
    assert program() == str(there)
    assert proposed("status", text=LIST).startswith(f"`{there} dead list`")
    monkeypatch.setenv("PATH", str(there.parent), prepend=":")
    assert program() == "aftercommit"
    assert proposed("status", text=LIST, prog="manage.py aftercommit").startswith("`manage.py aftercommit dead list`")


def test_every_command_that_is_proposed_somewhere_exists() -> None:
    source = "\n".join(path.read_text() for path in Path(aftercommit.__file__).parent.rglob("*.py"))
    for words in re.findall(r"`aftercommit ([a-z ]+)", source):
        command: click.Command | None = cli
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            command = command.commands.get(word)
            assert command is not None, f"`aftercommit {words}`"
