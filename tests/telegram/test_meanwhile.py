"""What people say while a page or a message is waiting counts from that moment on: nobody is told another's events."""

import asyncio
from pathlib import Path

import pytest

from aftercommit.contrib.telegram import Link
from aftercommit.contrib.telegram.local_api import Chat
from tests.telegram.backend import Reply, answer_well
from tests.telegram.bots import Stage, stage

# A page was read, and none of it sent; a message is made, and has to wait for its turn.
WAITING = ["bot.fetched", "bot.send"]


def first_lines(scene: Stage, chat: Chat) -> list[str]:
    return [text.splitlines()[0] for text in scene.texts(chat)]


def kept(scene: Stage, chat: Chat) -> Link:
    store = scene.store()
    found = store.link(chat.chat_id)
    store.close()
    assert found is not None
    return found


async def polled_on(scene: Stage, user: int) -> None:
    """Until turns have come and gone: what was to be sent before them would have been."""
    before = len(scene.backend.polls(user))
    await scene.backend.until(lambda: len(scene.backend.polls(user)) >= before + 3)


@pytest.mark.contract("T5", "T11")
@pytest.mark.parametrize("point", WAITING)
async def test_a_chat_that_is_unlinked_while_its_events_wait_is_told_nothing_more(point: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18)
        held = scene.points.hold(point)
        async with scene.bot():
            scene.backend.publish(17, count=3)
            await held.wait()
            answer = await scene.says(ada, "/unlink")
            held.release()
            await polled_on(scene, 18)
        assert scene.texts(ada) == [answer]


@pytest.mark.contract("T5", "T11")
@pytest.mark.parametrize("point", WAITING)
async def test_a_chat_that_is_linked_to_another_while_events_wait_is_not_told_them(point: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        chat = scene.telegram.open_chat("Ada")
        scene.link(chat, 17)
        scene.backend.codes["CODE-18"] = (18, "Bob")
        held = scene.points.hold(point)
        async with scene.bot():
            scene.backend.publish(17, count=3)
            await held.wait()
            answer = await scene.says(chat, "/start CODE-18")
            assert "Bob" in answer
            held.release()
            scene.backend.publish(18)
            await scene.telegram.messages(chat, 2)
        assert first_lines(scene, chat) == [answer.splitlines()[0], "🆕 task 4"]


@pytest.mark.contract("T5", "T11")
async def test_a_link_to_another_at_the_very_same_place_gets_nothing_of_the_page_before_it(tmp_path: Path):
    async with stage(tmp_path) as scene:
        chat = scene.telegram.open_chat("Ada")
        scene.link(chat, 17)
        scene.backend.codes["CODE-18"] = (18, "Bob")
        held = scene.points.hold("bot.saved")
        # Of one page both know the first event, after which the new link begins; the second is one user's alone.
        scene.backend.publish(17, 18)
        scene.backend.publish(17)
        async with scene.bot():
            await held.wait()
            answer = await scene.says(chat, "/start CODE-18")
            assert kept(scene, chat).place == "1"
            held.release()
            scene.backend.publish(18)
            await scene.telegram.messages(chat, 3)
        assert first_lines(scene, chat) == ["🆕 task 1", answer.splitlines()[0], "🆕 task 3"]


@pytest.mark.contract("T11")
@pytest.mark.parametrize("point", WAITING)
async def test_a_mute_counts_for_events_that_wait_already(point: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        held = scene.points.hold(point)
        async with scene.bot():
            scene.backend.publish(17, count=3)
            await held.wait()
            answer = await scene.says(ada, "/mute")
            held.release()
            await scene.points.wait("bot.saved", 3)
        assert scene.texts(ada) == [answer]
        assert (kept(scene, ada).place, kept(scene, ada).passed) == ("3", 3)


@pytest.mark.contract("T11")
async def test_a_link_to_the_same_user_neither_repeats_nor_skips_what_is_told_meanwhile(tmp_path: Path):
    release = asyncio.Event()

    async def slow(reply: Reply) -> None:
        await release.wait()
        await answer_well(reply)

    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.codes["CODE-17"] = (17, "Ada")
        # Only the question for the code is without a user.
        scene.backend.for_users[""] = slow
        async with scene.bot():
            scene.telegram.write(ada, "/start CODE-17")
            await scene.backend.until(lambda: any(request.user == "" for request in scene.backend.requests))
            scene.backend.publish(17, count=3)
            await scene.points.wait("bot.saved", 3)
            release.set()
            await scene.telegram.messages(ada, 4)
            scene.backend.publish(17)
            await scene.points.wait("bot.saved", 4)
        told = first_lines(scene, ada)
        assert [*told[:3], *told[4:]] == [f"🆕 task {number}" for number in range(1, 5)]
        assert kept(scene, ada).place == "4"


@pytest.mark.contract("T11")
async def test_a_message_in_flight_while_the_same_user_is_linked_again_comes_once(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.codes["CODE-17"] = (17, "Ada")
        held = scene.points.hold("bot.sent")
        async with scene.bot():
            scene.backend.publish(17, count=2)
            await held.wait()
            await scene.says(ada, "/start CODE-17")
            held.release()
            await scene.points.wait("bot.saved", 2)
            await polled_on(scene, 17)
        told = first_lines(scene, ada)
        assert [told[0], *told[2:]] == ["🆕 task 1", "🆕 task 2"]
