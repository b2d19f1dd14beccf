"""The bot tells of another feed by configuration alone: the logs of an investigation, under their own names."""

from datetime import timedelta
from pathlib import Path

import pytest

from aftercommit.client import Pace
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram import Bot, Link, bot_settings, issue_code, open_store
from aftercommit.contrib.telegram.local_api import BotApiServer
from aftercommit.testing import Points
from tests.clients.scripted_feed import poll_well, scripted_feed
from tests.telegram.bots import UNLIMITED, quick_pacing

CONFIG = """
page = "https://logs.example/#{seq}"

[wire]
cursor = "afterCursor"
body = "paged"
beginning = "1970-01-01T00:00:00.000Z#000"
event_type = "message"
headers = {}
health_limit = 10

[values]
title = "message"

[texts.en.events]
"line 5" = ["⚠️ the fifth: {linked}"]
other = ["• {linked} ({seq})"]

[texts.en.messages]
hello = "This is the bot of the logs."

[pace]
poll = 0.05
idle_longest = 0.1
"""


@pytest.mark.thorough
@pytest.mark.contract("T9")
async def test_the_logs_of_an_investigation_are_told_under_their_own_names(tmp_path: Path):
    path = tmp_path / "logs.toml"
    path.write_text(CONFIG)
    state = str(tmp_path / "bot.sqlite")
    async with BotApiServer(limits=UNLIMITED) as telegram, scripted_feed(events=130, polls=[poll_well] * 3) as feed:
        await telegram.answers()
        settings = bot_settings(
            {"token": telegram.token, "api": telegram.url, "feed": feed.url, "state": state, "credential": "token"},
            path,
            {},
        )
        store = open_store(state)
        store.prepare()
        code = issue_code(store, "INV-1", "investigation 1", timedelta(minutes=1))
        ada, bob = telegram.open_chat("Ada"), telegram.open_chat("Bob")
        # One of them begins with the oldest event, the other where linking finds the newest.
        store.put_link(Link(bob.chat_id, "INV-1", "investigation 1", "en", None, utc_now()))
        points = Points()
        async with Bot(settings, pacing=quick_pacing(), probe=points):
            telegram.write(ada, "/start")
            telegram.write(ada, f"/start {code}")
            first, second = await telegram.messages(ada, 2)
            assert first.text == "This is the bot of the logs."
            assert "investigation 1" in second.text
            await telegram.messages(bob, 130, timeout=60)
            feed.publish(2)
            news = await telegram.messages(ada, 4)
            await telegram.messages(bob, 132)
        assert [message.text for message in news[2:]] == ["• line 131 (131)", "• line 132 (132)"]
        assert [message.text for message in telegram.sent(bob)[:5]] == [
            *(f"• line {number} ({number})" for number in range(1, 5)),
            "⚠️ the fifth: line 5",
        ]
        assert len(telegram.sent(bob)) == 132
        kept = store.link(ada.chat_id)
        assert kept is not None
        assert kept.place == "2025-11-12T10:30:00.000Z#132"
        store.close()
        assert settings.pace == Pace(poll=0.05, idle_longest=0.1)
        assert {request.headers["authorization"] for request in feed.requests} == {"Bearer token"}
