"""`aftercommit bot` as a program: it runs, says what it does, ends when it is told to, and shows what it remembers."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aftercommit.cli import cli
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram import Link, Store, UndeliveredEvent, open_store
from aftercommit.contrib.telegram.local_api import BotApiServer
from tests.support.hanging import stopped
from tests.support.programs import REPOSITORY, Program, running

FEED = "http://127.0.0.1:1/tasks/me/events"


@pytest.fixture(scope="module")
def telegram() -> Iterator[BotApiServer]:
    with BotApiServer.in_thread() as server:
        yield server


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "bot.sqlite")


@pytest.fixture
def store(state: str) -> Iterator[Store]:
    made = open_store(state)
    made.prepare()
    yield made
    made.close()


def environment(telegram: BotApiServer, state: str, **given: str) -> dict[str, str]:
    told = {
        "AFTERCOMMIT_BOT_TOKEN": telegram.token,
        "AFTERCOMMIT_BOT_API": telegram.url,
        "AFTERCOMMIT_BOT_FEED": FEED,
        "AFTERCOMMIT_BOT_STATE": state,
    }
    return {**told, **given}


def lines(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.stderr]


def run(*arguments: str, state: str, status: int = 0) -> Any:
    outcome = CliRunner().invoke(cli, ["bot", *arguments, "--state", state])
    assert outcome.exit_code == status, outcome.output
    return outcome


@pytest.mark.thorough
@pytest.mark.contract("T8")
def test_it_says_once_that_the_backend_is_down_and_ends_cleanly_on_sigterm(telegram: BotApiServer, state: str):
    with running("bot", "-v", folder=REPOSITORY, **environment(telegram, state)) as program:
        program.line("bot_not_connected", program.stderr)
        ada = telegram.open_chat("Ada")
        telegram.write(ada, "/status")
        telegram.wait_for_messages(ada, 1, timeout=60)
        program.send(signal.SIGTERM)
        assert program.ends() == 0
        told = lines(program)
    assert [line["event"] for line in told if line["level"] in ("warning", "error")] == ["bot_not_connected"]
    assert [line["event"] for line in told if line["event"].startswith("bot_")][-2:] == ["bot_stopping", "bot_stopped"]
    assert telegram.token not in "\n".join(program.stderr)


@pytest.mark.thorough
def test_a_second_one_on_the_same_state_ends_with_one_clear_line(telegram: BotApiServer, state: str, store: Store):
    store.lock()
    with running("bot", folder=REPOSITORY, **environment(telegram, state)) as program:
        assert program.ends() == 1
        assert "error: another bot (process" in program.stderr[-1]
        assert "stop it, or give this bot its own state" in program.stderr[-1]


def test_a_wrong_token_ends_it_with_one_clear_line(telegram: BotApiServer, state: str):
    wrong = f"{telegram.token[:-4]}9999"
    with running("bot", folder=REPOSITORY, **environment(telegram, state, AFTERCOMMIT_BOT_TOKEN=wrong)) as program:
        assert program.ends() == 1
        assert "error: Telegram refuses the bot's token (Unauthorized)" in program.stderr[-1]
        assert wrong not in "\n".join(program.stderr)


@pytest.mark.contract("T11")
def test_the_command_line_shows_what_was_set_aside(state: str, store: Store):
    link = Link(5, "17", "Ada", "en", "3", utc_now())
    store.put_link(link)
    store.put_link(Link(-6, "18", "Bob", "de", None, utc_now()))
    assert json.loads(run("status", "--json", state=state).output) == {
        "running": False, "trouble": None, "links": 2, "muted": 0, "unreachable": 0, "set_aside": 0
    }  # fmt: skip
    store.set_aside(
        link, UndeliveredEvent(5, "17", "4", "4", "task_created", "blocked", "Forbidden: blocked", utc_now()), "4"
    )
    shown = run("status", state=state, status=3).output
    assert "unreachable  1" in shown
    assert "trouble      unknown: the bot is not running" in shown
    shown = run("failures", state=state).output
    assert "task_created" in shown
    assert "Forbidden: blocked" in shown
    told = json.loads(run("failures", "--user", "17", "--json", state=state).output)
    assert (told["total"], told["failures"][0]["event_id"]) == (1, "4")
    assert json.loads(run("failures", "--chat", "-6", "--json", state=state).output)["total"] == 0
    run("failures", "--forget", "--user", "17", state=state, status=2)
    assert "task_created" in run("failures", "--forget", state=state).output
    assert store.count_failures() == 0


def test_the_command_line_shows_that_the_feed_does_not_answer_a_running_bot(state: str, store: Store):
    store.note_trouble("the feed answered 401")
    assert json.loads(run("status", "--json", state=state).output)["trouble"] is None
    store.lock()
    assert "the feed answered 401" in run("status", state=state, status=3).output
    store.note_trouble(None)
    run("status", state=state)


@pytest.mark.thorough
@pytest.mark.contract("E7")
def test_a_bot_whose_process_is_stopped_is_not_shown_as_well(telegram: BotApiServer, state: str):
    with running("bot", folder=REPOSITORY, **environment(telegram, state)) as program:
        program.line("bot_not_connected", program.stderr)
        ada = telegram.open_chat("Ada")
        telegram.write(ada, "/status")
        telegram.wait_for_messages(ada, 1, timeout=60)
        told = json.loads(run("status", "--json", state=state, status=3).output)["trouble"]
        assert "the feed does not answer" in told
        with stopped(program.process.pid):
            began = time.monotonic()
            while "has done nothing for" not in run("status", state=state, status=3).output:
                assert time.monotonic() - began < 15


def test_links_are_shown_and_ended(state: str, store: Store):
    store.put_link(Link(5, "17", "Ada", "en", "3", utc_now(), code_hash="hush"))
    store.put_link(Link(6, "17", "Ada", "en", "3", utc_now()))
    shown = json.loads(run("links", "--json", state=state).output)
    assert [(each["chat_id"], each["user_id"], each["place"]) for each in shown] == [(5, "17", "3"), (6, "17", "3")]
    assert "hush" not in json.dumps(shown)
    assert "cannot ask for confirmation" in run("unlink", "--user", "17", state=state, status=1).output
    run("unlink", "--chat", "6", "--yes", state=state)
    run("unlink", "--user", "17", "--yes", state=state)
    assert store.links() == []
    run("unlink", "--user", "17", "--yes", state=state, status=4)
    run("unlink", state=state, status=2)


def test_a_code_is_printed_once_and_ends(state: str):
    made = run("code", "--user", "17", "--name", "Ada", "--json", state=state)
    assert "creating a new state in" in made.stderr
    told = json.loads(made.stdout)
    assert told["start"] == f"/start {told['code']}"
    assert len(run("code", "--user", "17", state=state).stdout.strip()) == 10
    for wrong in (("--for", "0s"), ("--for", "8d"), ("--for", "for ever")):
        run("code", "--user", "17", *wrong, state=state, status=2)
    assert (
        "--for 8d: give more than 0s and at most 7d"
        in run("code", "--user", "17", "--for", "8d", state=state, status=2).output
    )
    for user in (" ", "Zoë", "1\n7", " 17", "1" * 201):
        assert "give the user's id in the feed" in run("code", "--user", user, state=state, status=2).output


def test_where_there_is_nothing_to_show_it_says_so(state: str, store: Store):
    assert "no chat is linked: create a code with `" in run("links", state=state).stderr
    assert run("failures", state=state).stderr == "no failures\n"
    assert run("failures", "--user", "17", state=state).stderr == "no failures of this user or chat\n"
    assert json.loads(run("links", "--json", state=state).stdout) == []


def test_an_option_that_means_nothing_to_the_bot_is_not_passed_over_in_silence(state: str, store: Store):
    shown = run("links", "--dsn", "postgresql://elsewhere/x", "--schema", "orders", state=state).stderr
    assert "--dsn is ignored: use --state to choose the bot's state" in shown
    assert "--schema is ignored" in shown


@pytest.mark.parametrize(
    "wrong", ["postgresql://ada:hush-hush@127.0.0.1:1/x", "host=/nowhere user=ada password=hush-hush dbname=x"]
)
def test_a_state_that_cannot_be_reached_names_the_option_that_says_where_it_is(wrong: str):
    told = run("status", state=wrong, status=1).output
    assert "the bot's state in schema aftercommit_bot of" in told
    assert "check AFTERCOMMIT_BOT_STATE (or --state)" in told
    assert "DATABASE_URL" not in told
    assert "hush" not in told


def test_without_a_state_there_is_nothing_to_show(tmp_path: Path):
    outcome = run("links", state=str(tmp_path / "none.sqlite"), status=1)
    assert "there is no state of a bot in" in outcome.output
    assert not (tmp_path / "none.sqlite").exists()


def test_without_a_file_the_state_is_found_where_up_runs_a_bot(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AFTERCOMMIT_BOT_STATE", raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", database)
    none = CliRunner().invoke(cli, ["bot", "links"])
    assert f"there is no state of a bot in {tmp_path / 'bot.sqlite'}" in none.output
    there = open_store(database)
    there.prepare()
    there.put_link(Link(700, "17", "Ada", "en", None, utc_now()))
    there.close()
    found = CliRunner().invoke(cli, ["bot", "links"])
    assert found.exit_code == 0, found.output
    assert "17" in found.stdout
    assert "using the bot's state in" in found.stderr
    # The file comes first: `aftercommit bot` by itself remembers there.
    file = open_store(str(tmp_path / "bot.sqlite"))
    file.prepare()
    file.close()
    assert "no chat is linked" in CliRunner().invoke(cli, ["bot", "links"]).output


def test_what_it_has_to_be_told_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch):
    for name in ("AFTERCOMMIT_BOT_TOKEN", "AFTERCOMMIT_BOT_FEED"):
        monkeypatch.delenv(name, raising=False)
    assert "set AFTERCOMMIT_BOT_TOKEN" in CliRunner().invoke(cli, ["bot"]).output
    assert "set AFTERCOMMIT_BOT_FEED" in CliRunner().invoke(cli, ["bot", "--token", "1:x"]).output
