"""The bot is told by options, environment and a file; what cannot be meant is refused with the value and the remedy."""

from pathlib import Path
from typing import Any

import pytest

from aftercommit.client import TASKS
from aftercommit.contrib.telegram import BotSettings, bot_settings
from aftercommit.errors import DeclarationError

TOKEN = "123:secret-secret-secret"
FEED = "https://tasks.example/tasks/me/events"
TOLD = {"AFTERCOMMIT_BOT_TOKEN": TOKEN, "AFTERCOMMIT_BOT_FEED": FEED}


def config(folder: Path, text: str) -> Path:
    path = folder / "bot.toml"
    path.write_text(text)
    return path


def test_token_and_feed_are_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AFTERCOMMIT_HOME", "/somewhere")
    settings = bot_settings(environment=TOLD)
    assert settings.api == "https://api.telegram.org"
    assert settings.redeem == "https://tasks.example/tasks/link-codes/redeem"
    assert settings.state == "/somewhere/bot.sqlite"
    assert settings.names.wire == TASKS
    assert settings.feed_headers("17") == {"X-User-Id": "17"}


def test_an_option_counts_before_the_environment_and_that_before_the_file(tmp_path: Path):
    path = config(tmp_path, 'page = "https://file/{task_id}"\nredeem = "none"\nstate = "file.sqlite"')
    environment = {**TOLD, "AFTERCOMMIT_BOT_STATE": "variable.sqlite", "AFTERCOMMIT_BOT_PAGE": "https://variable"}
    settings = bot_settings({"state": "option.sqlite", "page": None}, path, environment)
    assert (settings.state, settings.page, settings.redeem) == ("option.sqlite", "https://variable", None)


def test_secrets_are_not_shown():
    settings = bot_settings({"credential": "act_hush", "state": "postgresql://u:pass@h/d"}, environment=TOLD)
    for secret in ("secret-secret", "act_hush", "pass@"):
        assert secret not in repr(settings)
    with pytest.raises(DeclarationError) as told:
        BotSettings(token="123:with blank hush", feed=FEED)
    assert "hush" not in str(told.value)


def test_another_feed_has_its_own_names(tmp_path: Path):
    path = config(
        tmp_path,
        """
        feed = "https://logs.example/api/v1/investigations/{user}/logs"
        page = "https://logs.example/#{event_id}"
        [wire]
        cursor = "afterCursor"
        body = "paged"
        beginning = "1970-01-01T00:00:00.000Z#000"
        event_type = "level"
        headers = {}
        limit = 100
        health_limit = 10
        [values]
        title = "message"
        [texts.en.events]
        ERROR = ["🔥 {linked}"]
        [pace]
        poll = 7
        """,
    )
    settings = bot_settings(config=path, environment={"AFTERCOMMIT_BOT_TOKEN": TOKEN})
    assert settings.feed_url("INV 1/2") == "https://logs.example/api/v1/investigations/INV%201%2F2/logs"
    assert settings.feed_headers("INV-1") == {}
    assert settings.redeem is None
    assert (settings.names.wire.cursor, settings.names.limit, settings.pace.poll) == ("afterCursor", 100, 7)
    assert settings.texts.event("en", "ERROR", {"message": "fire", "event_id": "a/b"}) == (
        '🔥 <a href="https://logs.example/#a%2Fb">fire</a>'
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('token = "123:x"', "put secrets into AFTERCOMMIT_BOT_TOKEN"),
        ('credential = "act_x"', "put secrets into AFTERCOMMIT_BOT_CREDENTIAL"),
        ('fed = "x"', "unknown name 'fed' in"),
        ("feed = 7", "feed = 7 in the bot's configuration must be a string"),
        ("this is no toml", "cannot read the bot's configuration"),
        ("[wire]\nlimit = 0", "wire.limit = 0 must be a number from 1 to 1000"),
        ('[wire]\nbody = "xml"', "wire in the bot's configuration"),
        ('[wire]\ncursr = "x"', "unknown name wire.cursr"),
        ("[wire]\nheaders = 7", "wire.headers = 7"),
        ("[values]\ntitle = 7", "values.title = 7"),
        ("[pace]\npol = 7", "unknown name pace.pol"),
        ('[texts.en.events]\na = "<b>"', "texts.en.events.a"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, problem: str):
    with pytest.raises(DeclarationError, match=problem):
        bot_settings(config=config(tmp_path, text), environment=TOLD)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"AFTERCOMMIT_BOT_TOKEN": ""}, "token is missing: set AFTERCOMMIT_BOT_TOKEN"),
        ({"AFTERCOMMIT_BOT_FEED": ""}, "feed is missing: set AFTERCOMMIT_BOT_FEED"),
        ({"AFTERCOMMIT_BOT_FEED": "tasks/me/events"}, "is not an http:// or https:// address"),
        ({"AFTERCOMMIT_BOT_FEED": "https://x/{task}"}, "may have only {user} in braces"),
        ({"AFTERCOMMIT_BOT_API": "telegram.org"}, "is not an http:// or https:// address"),
        ({"AFTERCOMMIT_BOT_API": "http://127.0.0.1:99999"}, "is not an http:// or https:// address"),
        ({"AFTERCOMMIT_BOT_REDEEM": "http://[::1"}, "is not an http:// or https:// address"),
        ({"AFTERCOMMIT_BOT_CREDENTIAL": "act_ä"}, "cannot be sent"),
    ],
)
def test_an_environment_that_cannot_be_meant_is_refused(given: dict[str, str], problem: str):
    with pytest.raises(DeclarationError, match=problem):
        bot_settings(environment={**TOLD, **given})


def test_a_file_that_is_not_there_is_told_by_its_name(tmp_path: Path):
    missing: Any = tmp_path / "none.toml"
    with pytest.raises(DeclarationError, match=r"none\.toml"):
        bot_settings(config=missing, environment=TOLD)
