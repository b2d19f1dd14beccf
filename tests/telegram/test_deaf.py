"""A bot that does not hear what people write says so, and where it is heard it answers in place: groups and topics."""

import asyncio
import logging
from pathlib import Path

import httpx
import pytest

from aftercommit.contrib.telegram import Store
from aftercommit.contrib.telegram.answers import ApiResult
from aftercommit.contrib.telegram.api import BotApi
from tests.feed.journal import until
from tests.telegram.bots import everything, stage
from tests.telegram.test_program import run

pytestmark = pytest.mark.contract("E7")

WEBHOOK = "call deleteWebhook with this token"
OTHER = "stop the other program that calls getUpdates with this token"


async def test_a_webhook_that_takes_the_updates_is_trouble_with_its_remedy_until_it_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with stage(tmp_path) as scene:
        beside: Store = scene.store()
        chat = scene.telegram.open_chat("Ada")
        async with scene.bot():
            assert beside.trouble() is None
            scene.telegram.set_webhook()
            await until(lambda: WEBHOOK in (beside.trouble() or ""))
            status = (await asyncio.to_thread(run, "status", state=scene.state, status=3)).output
            assert "the bot receives no messages from people (Conflict: can't use getUpdates" in status
            assert WEBHOOK in status
            assert WEBHOOK in everything(caplog)
            scene.telegram.set_webhook("")
            assert "/start" in await scene.says(chat, "/help")
            await until(lambda: beside.trouble() is None)
            assert "bot_updates_again" in everything(caplog)
        beside.close()


@pytest.mark.thorough
async def test_another_program_with_the_same_token_is_told_apart(tmp_path: Path):
    async with stage(tmp_path) as scene:
        beside = scene.store()
        async with scene.bot(), httpx.AsyncClient(timeout=60) as other:
            url = f"{scene.telegram.url}/bot{scene.telegram.token}/getUpdates"
            while OTHER not in (beside.trouble() or ""):
                await other.get(url, params={"timeout": 1})
            await until(lambda: beside.trouble() is None)
        beside.close()


async def test_what_an_earlier_life_has_left_there_ends_with_the_first_answer(tmp_path: Path):
    async with stage(tmp_path) as scene:
        beside = scene.store()
        beside.note_trouble("deaf", "updates")
        beside.note_trouble("silent")
        assert beside.trouble() == "silent; deaf"
        chat = scene.telegram.open_chat("Ada")
        async with scene.bot():
            await scene.says(chat, "/help")
            await until(lambda: beside.trouble() is None)
        beside.close()


async def test_an_anonymous_administrator_in_a_topic_is_answered_there_and_events_go_there(tmp_path: Path):
    async with stage(tmp_path) as scene:
        group = scene.telegram.open_group("Team", is_forum=True)
        scene.backend.codes["CODE"] = (17, "Ada")
        name = scene.telegram.messenger.bot["username"]
        async with scene.bot():
            scene.telegram.write(group, f"/start@{name} CODE", topic=42, is_anonymous=True)
            await scene.telegram.messages(group, 1)
            scene.telegram.write(group, f"/status@{name}", topic=43)
            await scene.telegram.messages(group, 2)
            scene.backend.publish(17)
            sent = await scene.telegram.messages(group, 3)
            assert [message.topic for message in sent] == [42, 43, 42]
            # A topic that was deleted is no reason to lose what was meant for it.
            for message in list(scene.telegram.messenger.messages(group.chat_id)):
                message.topic = None
            scene.backend.publish(17)
            assert (await scene.telegram.messages(group, 4))[3].topic is None


@pytest.mark.thorough
async def test_chats_that_begin_together_ask_no_more_often_than_was_settled(tmp_path: Path):
    async with stage(tmp_path) as scene:
        for number in range(40):
            scene.link(scene.telegram.open_chat(f"person {number}"), number + 100)
        loop, began = asyncio.get_running_loop(), 0.0
        async with scene.bot(polls_per_second=20.0):
            began, before = loop.time(), len(scene.backend.requests)
            await until(lambda: len(scene.backend.requests) >= before + 60)
            # Two that were let through before this was looked at may be among them.
            assert loop.time() - began >= (60 - 2) / 20


async def test_what_telegram_cannot_read_as_html_is_sent_as_plain_text(tmp_path: Path):
    async with stage(tmp_path) as scene:
        chat = scene.telegram.open_chat("Ada")
        api = BotApi(scene.telegram.token, scene.telegram.url)
        reply = await api.send_message(chat.chat_id, "<b>5 &lt; 6</b> <nothing>that closes")
        await api.close()
        assert isinstance(reply, ApiResult)
        assert scene.texts(chat) == ["5 < 6 that closes"]
