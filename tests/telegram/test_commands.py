"""What people say to the bot and what it answers: status, mute, unlink, help, in their language."""

from datetime import timedelta
from pathlib import Path

import pytest

from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.state import FOR_EVER, UndeliveredEvent
from tests.telegram.backend import refuse
from tests.telegram.bots import stage


@pytest.mark.parametrize(
    ("language", "start"),
    [("en", "Hello!"), ("de", "Hallo!"), ("ru", "Здравствуйте!"), ("ru-RU", "Здравствуйте!"), ("ja", "Hello!")],
)
async def test_whoever_is_not_linked_is_told_how_in_their_language(language: str, start: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada", language=language)
        async with scene.bot():
            assert (await scene.says(ada, "/start")).startswith(start)


@pytest.mark.parametrize("command", ["/mute", "/mute 2h", "/unmute", "/unlink"])
async def test_whoever_is_not_linked_is_told_so(command: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot():
            assert "This chat is not linked" in await scene.says(ada, command)


async def test_the_status_says_who_where_and_how(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, other = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Other")
        scene.link(ada, 17, place="0", name="Ada <Lovelace> & Co")
        async with scene.bot():
            assert "last event: –" in await scene.says(ada, "/status")
            scene.backend.publish(17)
            await scene.points.wait("bot.saved")
            assert await scene.says(ada, "/status") == "👤 Linked to Ada <Lovelace> & Co\n🟢 Connected; last event: 1"
            assert "This chat is not linked" in await scene.says(other, "/status")


async def test_help_and_words_that_are_no_commands_are_answered(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot():
            assert "/mute 2h" in await scene.says(ada, "/help")
            assert "/help" in await scene.says(ada, "good morning")
            assert "/help" in await scene.says(ada, "/dance")


async def test_while_it_is_muted_events_pass_and_are_counted_and_told_of_afterwards(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        async with scene.bot():
            assert "Muted until " in await scene.says(ada, "/mute 2h")
            scene.backend.publish(17, count=5)
            await scene.points.wait("bot.saved", 5)
            assert "events so far: 5" in await scene.says(ada, "/status")
            assert await scene.says(ada, "/unmute") == "🔔 Messages are on again."
            await scene.telegram.messages(ada, 4)
            scene.backend.publish(17)
            sent = await scene.telegram.messages(ada, 5)
        assert sent[3].text == "🔕 Events while I was muted: 5"
        assert sent[4].text.startswith("🆕 task 6")
        assert scene.place(ada) == "6"


async def test_a_mute_ends_by_itself_and_tells_what_has_passed(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, muted_until=utc_now() - timedelta(seconds=1), passed=3)
        async with scene.bot():
            [told] = await scene.telegram.messages(ada, 1)
        assert told.text == "🔕 Events while I was muted: 3"
        store = scene.store()
        link = store.link(ada.chat_id)
        assert link is not None
        assert link.passed == 0
        store.close()


async def test_a_mute_counts_from_the_next_event_of_a_page(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17, count=10)
        held = scene.points.hold("bot.saved")
        async with scene.bot():
            await held.wait()
            await scene.says(ada, "/mute")
            held.release()
            await scene.points.wait("bot.saved", 10)
        assert [text.splitlines()[0] for text in scene.texts(ada) if text.startswith("🆕")] == ["🆕 task 1"]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("/mute", "Muted until /unmute"),
        ("/mute 999999999w", "Muted until /unmute"),
        ("/mute 90m", "Muted until 20"),
        ("/mute 1.5 hours", "Muted until 20"),
        ("/mute off", "I am not muted"),
        ("/mute banana <b>", "“banana <b>” is not a duration"),
        ("/mute -2h", "is not a duration"),
        ("/mute 0h", "is not a duration"),
    ],
)
async def test_a_length_of_time_is_understood_or_asked_for(said: str, answer: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        async with scene.bot():
            assert answer in await scene.says(ada, said)


async def test_an_unlinked_chat_hears_no_more(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18, muted_until=FOR_EVER)
        async with scene.bot():
            assert "no longer linked" in await scene.says(ada, "/unlink")
            scene.backend.publish(17, 18)
            await scene.points.wait("bot.saved")
            before = len(scene.backend.polls(18))
            await scene.backend.until(lambda: len(scene.backend.polls(18)) >= before + 2)
        assert len(scene.texts(ada)) == 1


async def test_the_language_follows_the_person(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada", language="ru")
        scene.link(ada, 17)
        async with scene.bot():
            await scene.says(ada, "/status")
            scene.backend.publish(17)
            sent = await scene.telegram.messages(ada, 2)
        assert "создана задача" in sent[1].text


async def test_who_hammers_is_answered_a_little_and_nobody_else_waits(tmp_path: Path):
    async with stage(tmp_path) as scene:
        mallory, ada = scene.telegram.open_chat("Mallory"), scene.telegram.open_chat("Ada")
        for _ in range(50):
            scene.telegram.write(mallory, "/help")
        scene.telegram.write(ada, "/help")
        async with scene.bot():
            await scene.telegram.messages(ada, 1)
            await scene.says(ada, "/help")
        assert len(scene.texts(mallory)) == 3


async def test_what_was_written_while_the_bot_was_away_is_answered_once(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.telegram.write(ada, "/help")
        for _ in range(2):
            async with scene.bot():
                await scene.says(ada, "/status")
        assert len([text for text in scene.texts(ada) if "/mute 2h" in text]) == 1


async def test_who_blocks_the_bot_is_known_to_be_out_of_reach_before_anything_is_sent(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        async with scene.bot():
            scene.telegram.block(ada)
            await scene.says(bob, "/help")
            store = scene.store()
            link = store.link(ada.chat_id)
            assert link is not None
            assert link.unreachable == "the bot was blocked or removed"
            scene.telegram.unblock(ada)
            await scene.telegram.messages(ada, 1)
            link = store.link(ada.chat_id)
            assert link is not None
            assert link.unreachable is None
            store.close()


async def test_who_comes_back_is_told_what_was_missed_since_and_nothing_of_before(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        link = scene.link(ada, 17)
        store = scene.store()
        long_ago = utc_now() - timedelta(days=30)
        store.set_aside(
            link, UndeliveredEvent(ada.chat_id, "17", "0", "0", "task_created", "refused", "long", long_ago), "0"
        )
        async with scene.bot():
            scene.telegram.block(ada)
            await scene.points.wait("bot.update")
            scene.backend.publish(17, count=2)
            await scene.points.wait("bot.saved", 2)
            scene.telegram.unblock(ada)
            [back] = await scene.telegram.messages(ada, 1)
            assert "This chat is linked to Ada" in await scene.says(ada, "/start")
        store.close()
        assert back.text == (
            "Welcome back, Ada. I continue from here.\nEvents that could not be delivered meanwhile: 2"
        )


async def test_what_exactly_is_wrong_is_not_told_to_strangers(tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.backend.script.extend([refuse(503)] * 3)
        ada, stranger = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Stranger")
        scene.link(ada, 17)
        async with scene.bot():
            error = "The service answers with an error."
            assert f"🔴 Not connected. {error}\nThe feed answered 503" in await scene.says(ada, "/status")
            assert f"🔴 Still not connected. {error}\nThe feed answered 503" in await scene.says(ada, "/connect")
            status = await scene.says(stranger, "/status")
            assert status.splitlines()[1:] == [f"🔴 Not connected. {error}", "/connect tries again."]
            assert await scene.says(stranger, "/connect") == f"🔴 Still not connected. {error}"
