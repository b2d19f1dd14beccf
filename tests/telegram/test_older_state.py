"""A newer command line beside an older bot: reading changes nothing, and writing never upgrades tables in use."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from aftercommit import Database
from aftercommit.cli import cli
from aftercommit.contrib.telegram import open_store
from aftercommit.contrib.telegram.local_api import BotApiServer
from aftercommit.contrib.telegram.states.sql import Store, versions
from aftercommit.errors import StateTaken
from systems.host.local_bot import LocalBot
from systems.tasks.system import tasks

READING = (("status",), ("links",), ("failures",))
WRITING = (("code", "--user", "17"), ("unlink", "--user", "17", "--yes"), ("failures", "--forget"))
KNOWN = max(versions())


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "bot.sqlite") if request.param == "sqlite" else str(request.getfixturevalue("database"))


@pytest.fixture
def older(where: str) -> Iterator[Store]:
    """The state of a bot that knows one version less."""
    made = older_state(where)
    yield made
    made.close()


def older_state(where: str) -> Store:
    made = open_store(where)
    made.driver.prepare({number: text for number, text in versions().items() if number < KNOWN})
    return made


def run(*arguments: str, state: str) -> Any:
    return CliRunner().invoke(cli, ["bot", *arguments, "--state", state])


def version(where: str) -> int:
    """As the database has it, asked without the code under test."""
    if "://" in where:
        with psycopg.connect(where) as connection:
            row = connection.execute("select max(version) from aftercommit_bot.applied").fetchone()
    else:
        reader = sqlite3.connect(where)
        row = reader.execute("pragma user_version").fetchone()
        reader.close()
    assert row is not None
    return int(row[0])


@pytest.mark.contract("E4")
@pytest.mark.parametrize("runs", [True, False], ids=["a bot runs", "no bot runs"])
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_reading_command_leaves_the_tables_of_an_older_bot_as_they_are(
    where: str, older: Store, command: tuple[str, ...], runs: bool
):
    if runs:
        older.lock()
    told = run(*command, state=where)
    assert version(where) == KNOWN - 1
    assert told.exit_code == 1
    assert f"has version {KNOWN - 1}, and this aftercommit needs version {KNOWN}" in told.output
    assert "Use the aftercommit of the running bot, or start the newer bot, which upgrades the state" in told.output


@pytest.mark.contract("E4")
@pytest.mark.parametrize("command", WRITING, ids=" ".join)
@pytest.mark.thorough
def test_a_writing_command_refuses_the_tables_of_an_older_bot_that_runs(
    where: str, older: Store, command: tuple[str, ...]
):
    older.lock()
    told = run(*command, state=where)
    assert version(where) == KNOWN - 1
    assert told.exit_code == 1
    assert f"has version {KNOWN - 1}, and this aftercommit needs version {KNOWN}" in told.output


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_a_writing_command_upgrades_an_older_state_that_no_bot_holds_and_lets_go_of_it(
    where: str, older: Store, command: tuple[str, ...]
):
    told = run(*command, state=where)
    assert told.exit_code in (0, 4), told.output
    assert version(where) == KNOWN
    assert not older.is_taken()


@pytest.mark.parametrize("command", WRITING[:1] + READING, ids=" ".join)
def test_commands_work_beside_a_running_bot_of_the_same_version(where: str, command: tuple[str, ...]):
    bot = open_store(where)
    bot.lock()
    bot.prepare()
    told = run(*command, state=where)
    assert told.exit_code == 0, told.output
    bot.close()


@pytest.mark.parametrize("command", READING + WRITING[1:], ids=" ".join)
def test_a_database_without_a_state_is_left_without_one(database: str, command: tuple[str, ...]):
    told = run(*command, state=database)
    assert told.exit_code == 1
    assert "no bot state in" in told.output
    with psycopg.connect(database) as connection:
        assert connection.execute("select to_regnamespace('aftercommit_bot')").fetchone() == (None,)


@pytest.mark.parametrize("command", READING + WRITING[1:], ids=" ".join)
def test_a_file_that_holds_something_else_is_left_as_it_is(tmp_path: Path, command: tuple[str, ...]):
    path = tmp_path / "other.sqlite"
    other = sqlite3.connect(path)
    other.execute("create table recipe (name text)")
    other.commit()
    other.close()
    before = path.read_bytes()
    told = run(*command, state=str(path))
    assert "no bot state in" in told.output
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["other.sqlite"]


@pytest.mark.contract("E7")
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_reading_command_does_not_wait_for_a_bot_that_hangs_in_the_middle_of_a_write(
    tmp_path: Path, command: tuple[str, ...]
):
    where = str(tmp_path / "bot.sqlite")
    made = open_store(where)
    made.prepare()
    made.close()
    hanging = sqlite3.connect(where)
    hanging.execute("begin immediate")
    told = run(*command, state=where)
    hanging.close()
    assert told.exit_code == 0, told.output


@pytest.mark.contract("E4")
async def test_up_leaves_the_tables_of_an_older_bot_that_runs_as_they_are(database: str):
    older = older_state(database)
    older.lock()
    with BotApiServer.in_thread() as telegram:
        assert tasks.bot is not None
        beside = LocalBot(tasks.bot, Database(database), "http://127.0.0.1:1", telegram)
        with pytest.raises(StateTaken):
            await asyncio.to_thread(beside._link_sample_chats)
        assert version(database) == KNOWN - 1
        older.close()
        await asyncio.to_thread(beside._link_sample_chats)
    assert version(database) == KNOWN
    assert not older.is_taken()
    older.close()
