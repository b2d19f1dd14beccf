"""The start: one question to the backend, whatever it does; without an answer nothing polls, and the bot says so."""

import asyncio
import logging
from pathlib import Path

import pytest

from aftercommit.contrib.telegram import Bot
from aftercommit.contrib.telegram.local_api import ServerError
from aftercommit.errors import StateTaken, TelegramRefused
from tests.telegram.backend import Act, drop, hang, refuse, say
from tests.telegram.bots import quick_pacing, said, stage
from tests.telegram.gates import Gate

pytestmark = pytest.mark.contract("T8")

FAILURES: dict[str, Act] = {
    "hangs": hang,
    "drops the connection": drop,
    "answers 500": refuse(500),
    "answers 503": refuse(503, retry_after=1),
    "answers 401": refuse(401),
    "answers 429": refuse(429, retry_after=1),
    "answers what is no page": say({"hello": "world"}),
}


@pytest.mark.parametrize("act", FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.thorough
async def test_a_backend_that_fails_is_asked_once_and_told_once(
    act: Act, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        scene.backend.for_users["17"] = act
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        # Long enough for the question to be asked, however busy the machine is.
        async with scene.bot(health_seconds=3.0 if act is hang else 60.0):
            status = await scene.says(ada, "/status")
            assert "🔴 Not connected. " in status
            assert "/connect tries again." in status
            # Whatever retries by itself would have done so while the bot answers.
            for _ in range(3):
                await scene.says(ada, "/help")
        assert len(scene.backend.requests) == 1
        assert said(caplog) == ["bot_not_connected"]


async def test_a_backend_that_is_down_is_tried_once_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        await scene.backend.stop()
        async with scene.bot():
            assert "🔴 Not connected. " in await scene.says(ada, "/status")
            await scene.backend.start()
            # It is there again, and nobody has asked for another attempt.
            assert "🔴 Not connected. " in await scene.says(ada, "/status")
        assert scene.backend.requests == []
        assert said(caplog) == ["bot_not_connected"]


async def test_a_backend_without_events_is_polled(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        async with scene.bot():
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 3)
            assert "🟢 Connected" in await scene.says(ada, "/status")
            scene.backend.publish(17)
            await scene.telegram.messages(ada, 2)
        health, *polls = scene.backend.polls()
        assert (health.query, health.user) == ({"limit": "1"}, "17")
        assert [request.query.get("limit") for request in polls] == ["20"] * len(polls)
        assert said(caplog) == []


async def test_as_long_as_nobody_is_linked_the_configured_user_asks(tmp_path: Path):
    async with stage(tmp_path) as scene:
        async with scene.bot(health_user="4711", credential="act_hush"):
            pass
        [health] = scene.backend.requests
        assert (health.user, health.headers["authorization"]) == ("4711", "Bearer act_hush")


async def test_the_bot_tries_once_more_when_it_is_asked_and_polls_from_then_on(tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.backend.script.extend([refuse(503), refuse(503)])
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17)
        async with scene.bot():
            assert "\nThe feed answered 503" in await scene.says(ada, "/connect")
            assert len(scene.backend.requests) == 2
            assert await scene.says(ada, "/connect") == "🟢 Connected."
            await scene.telegram.messages(ada, 3)
            asked = len([request for request in scene.backend.polls() if request.query.get("limit") == "1"])
            assert await scene.says(ada, "/connect") == "🟢 I am already connected."
            assert asked == 3
        assert scene.texts(ada)[2].startswith("🆕 task 1")


async def test_nobody_can_make_the_bot_knock_and_knock(tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.backend.script.extend([refuse(503)] * 5)
        stranger = scene.telegram.open_chat("Mallory")
        async with scene.bot(connect_seconds=3600.0):
            for _ in range(3):
                assert "I tried a moment ago" in await scene.says(stranger, "/connect")
        assert len(scene.backend.requests) == 1


async def test_the_bot_answers_while_the_first_question_hangs(tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.backend.script.append(hang)
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.telegram.write(ada, "/status")
        async with Bot(scene.settings(health_seconds=60.0), pacing=quick_pacing(), probe=scene.points):
            [answer] = await scene.telegram.messages(ada, 1)
            assert "The first check is still running." in answer.text


@pytest.mark.thorough
async def test_telegram_that_is_away_at_the_start_is_waited_for_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        scene.telegram.switch(ServerError(502), method="getMe", times=2)
        async with scene.bot() as bot:
            assert bot.username == "aftercommit_bot"
        assert said(caplog) == ["bot_telegram_unreachable"]


async def test_a_token_that_telegram_does_not_know_ends_the_bot(tmp_path: Path):
    async with stage(tmp_path) as scene:
        wrong = f"{scene.telegram.token[:-4]}9999"
        with pytest.raises(TelegramRefused, match="set AFTERCOMMIT_BOT_TOKEN") as told:
            await Bot(scene.settings(token=wrong)).run()
        assert wrong not in str(told.value)
        assert scene.backend.requests == []


@pytest.mark.thorough
async def test_a_second_bot_on_the_state_does_not_ask_anybody(tmp_path: Path):
    async with stage(tmp_path) as scene, scene.bot():
        asked = len(scene.backend.requests)
        with pytest.raises(StateTaken):
            await Bot(scene.settings()).run()
        assert len(scene.backend.requests) == asked


async def test_commands_are_offered_in_every_language(tmp_path: Path):
    async with stage(tmp_path) as scene:
        async with scene.bot():
            pass
        assert [each["command"] for each in scene.telegram.commands()] == [
            "start", "status", "connect", "mute", "unmute", "unlink", "help"
        ]  # fmt: skip
        assert scene.telegram.commands("de")[0]["description"] == "diesen Chat mit deinem Code verbinden"


async def test_a_bot_that_is_told_to_stop_while_telegram_hangs_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with stage(tmp_path) as scene:
        scene.telegram.switch(ServerError(502), method="getMe")
        bot = await Bot(scene.settings(), probe=scene.points).start()
        await scene.telegram.called("getMe", 1)
        await asyncio.wait_for(bot.stop(), 40)


async def test_connect_during_the_first_question_shares_its_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with stage(tmp_path) as scene:
        gate = Gate(refuse(503))
        scene.backend.script.append(gate)
        ada = scene.telegram.open_chat("Ada")
        async with Bot(
            scene.settings(health_seconds=60.0, connect_seconds=3600.0), pacing=quick_pacing(), probe=scene.points
        ):
            await gate.reached()
            scene.telegram.write(ada, "/connect")
            await scene.points.wait("bot.update", 1)
            # Whoever wrote before him waits for the answer by now.
            await scene.says(scene.telegram.open_chat("Bob"), "/help")
            gate.open()
            [told] = await scene.telegram.messages(ada, 1)
        assert told.text.startswith("🔴 Still not connected. ")
        assert len(scene.backend.requests) == 1
        assert said(caplog) == ["bot_not_connected"]


async def test_a_bot_that_is_told_to_stop_during_connect_does_not_begin_to_poll(tmp_path: Path):
    async with stage(tmp_path) as scene:
        gate = Gate()
        scene.backend.script.extend([refuse(503), gate])
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        async with scene.bot(health_seconds=60.0) as bot:
            scene.telegram.write(ada, "/connect")
            await gate.reached()
            stopping = asyncio.create_task(bot.stop())
            await bot.stopping.wait()
            gate.open()
            await asyncio.wait_for(stopping, 40)
            assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "poller"] == []
        assert all(request.query.get("limit") == "1" for request in scene.backend.polls())
