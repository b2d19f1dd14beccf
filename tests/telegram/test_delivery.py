"""Events get to their chats: in order, each place kept after its message, across everything Telegram may answer."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aftercommit.contrib.telegram import Bot, Pacing
from aftercommit.contrib.telegram.local_api import (
    Blocked,
    BotApiLimits,
    Call,
    ChatNotFound,
    Drop,
    Fault,
    Hang,
    ServerError,
    TooManyRequests,
)
from aftercommit.errors import TelegramRefused
from tests.telegram.bots import Stage, said, stage
from tests.telegram.front import front


def titles(scene: Stage, chat: Any) -> list[str]:
    """What the chat was told, without repeats in a row: a message whose answer was lost is sent again."""
    told = [text.splitlines()[0] for text in scene.texts(chat)]
    return [each for number, each in enumerate(told) if number == 0 or told[number - 1] != each]


def expected(first: int, last: int) -> list[str]:
    return [f"🆕 task {number}" for number in range(first, last + 1)]


@pytest.mark.thorough
@pytest.mark.contract("T9", "T11")
async def test_a_linked_chat_is_told_every_event_in_order(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17, count=45)
        async with scene.bot():
            await scene.telegram.messages(ada, 45)
            scene.backend.publish(17, count=5)
            await scene.telegram.messages(ada, 50)
            await scene.points.wait("bot.saved", 50)
        assert titles(scene, ada) == expected(1, 50)
        assert len(scene.texts(ada)) == 50
        assert scene.place(ada) == "50"


@pytest.mark.contract("T9")
async def test_a_bot_that_is_started_again_goes_on_where_it_was(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        for first in (1, 4, 7):
            scene.backend.publish(17, count=3)
            async with scene.bot():
                await scene.points.wait("bot.saved", first + 2)
        assert titles(scene, ada) == expected(1, 9)
        assert len(scene.texts(ada)) == 9


@pytest.mark.thorough
@pytest.mark.contract("T11")
@pytest.mark.parametrize(
    "fault",
    [
        ServerError(500), ServerError(502, as_page=True), TooManyRequests(retry_after=1), Drop(),
        Drop(recorded=True), Hang(),
    ],
    ids=["500", "502 of a proxy", "429", "dropped", "dropped when it was taken", "hangs"],
)  # fmt: skip
async def test_a_failure_that_passes_delays_events_and_loses_none(fault: Fault, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18)
        scene.telegram.switch(fault, chat=ada, method="sendMessage", times=2)
        scene.backend.publish(17, 18, count=4)
        async with scene.bot(send_seconds=2.0):
            await scene.telegram.messages(bob, 4)
            await scene.telegram.until(lambda: expected(1, 4) == titles(scene, ada) or None, timeout=40)
        assert titles(scene, bob) == expected(1, 4)
        assert not any(call.too_early for call in scene.telegram.calls("sendMessage"))
        store = scene.store()
        assert store.count_failures() == 0
        store.close()


@pytest.mark.thorough
@pytest.mark.contract("T11")
@pytest.mark.parametrize(
    ("fault", "kind"), [(Blocked(), "blocked"), (ChatNotFound(), "gone")], ids=["blocked", "chat not found"]
)
async def test_two_users_one_out_of_reach_and_the_other_gets_everything_in_order(
    fault: Fault, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18)
        scene.telegram.switch(fault, chat=ada, method="sendMessage")
        scene.backend.publish(17, 18, count=25)
        async with scene.bot():
            await scene.telegram.messages(bob, 25)
            await scene.points.wait("bot.saved", 50)
        assert titles(scene, bob) == expected(1, 25)
        assert scene.place(ada) == "25"
        store = scene.store()
        kept = store.failures(limit=100)
        assert sorted(int(each.event_id) for each in kept) == list(range(1, 26))
        assert {(each.chat_id, each.kind) for each in kept} == {(ada.chat_id, kind)}
        link = store.link(ada.chat_id)
        assert link is not None
        assert link.unreachable == kept[0].reason
        store.close()
        assert said(caplog) == ["bot_event_set_aside"] * 25


@pytest.mark.contract("T11")
async def test_whoever_blocked_the_bot_and_comes_back_goes_on_and_is_told_what_was_missed(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.telegram.block(ada)
        scene.backend.publish(17, count=3)
        async with scene.bot():
            await scene.points.wait("bot.saved", 3)
            scene.telegram.unblock(ada)
            scene.backend.publish(17)
            await scene.telegram.until(lambda: any("🆕 task 4" in text for text in scene.texts(ada)) or None)
            status = await scene.says(ada, "/status")
            assert "Undelivered events: 3" in status
            assert "task_created 3: Forbidden: bot was blocked by the user" in status


async def test_whoever_comes_back_is_told_so_as_soon_as_telegram_tells_the_bot(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.telegram.block(ada)
        scene.backend.publish(17, count=3)
        async with scene.bot():
            await scene.points.wait("bot.saved", 3)
            scene.telegram.unblock(ada)
            [told] = await scene.telegram.messages(ada, 1)
        assert told.text == "Welcome back, Ada. I continue from here.\nEvents that could not be delivered meanwhile: 3"


async def test_start_of_somebody_who_was_out_of_reach_says_that_it_goes_on(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, unreachable="Forbidden: bot was blocked by the user")
        async with scene.bot():
            assert await scene.says(ada, "/start") == "Welcome back, Ada. I continue from here."
            assert "This chat is linked to Ada" in await scene.says(ada, "/start")


@pytest.mark.thorough
@pytest.mark.contract("T11")
async def test_a_message_that_telegram_never_takes_is_set_aside_and_the_next_one_sent(tmp_path: Path):
    refusal = {"ok": False, "error_code": 400, "description": "Bad Request: message is too long"}
    async with (
        stage(tmp_path) as scene,
        front(scene.telegram.url, lambda body: refusal if "task 1<" in body.get("text", "") else None) as address,
    ):
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17, count=2)
        async with scene.bot(api=address, update_seconds=1):
            await scene.telegram.messages(ada, 1)
            await scene.points.wait("bot.saved", 2)
        assert titles(scene, ada) == expected(2, 2)
        store = scene.store()
        [kept] = store.failures()
        assert (kept.event_id, kept.kind, kept.reason) == ("1", "refused", refusal["description"])
        link = store.link(ada.chat_id)
        assert link is not None
        assert link.unreachable is None
        store.close()


@pytest.mark.thorough
@pytest.mark.contract("T11")
async def test_the_limits_are_not_exceeded_by_many_chats_with_much_to_tell(tmp_path: Path):
    async with stage(tmp_path, limits=BotApiLimits(overall=10, per_chat=1)) as scene:
        chats = [scene.telegram.open_chat(f"User {number}") for number in range(1, 16)]
        for number, chat in enumerate(chats, 1):
            scene.link(chat, number)
        scene.backend.publish(*range(1, 16), count=2)
        async with scene.bot(pacing=Pacing(overall=10)):
            for chat in chats:
                await scene.telegram.messages(chat, 2, timeout=60)
        assert scene.telegram.most_within(1.0) <= 10
        assert all(scene.telegram.most_within(1.0, chat=chat) == 1 for chat in chats)
        assert {call.status for call in scene.telegram.calls("sendMessage")} == {200}
        assert all(titles(scene, chat) == expected(1, 2) for chat in chats)


@pytest.mark.thorough
@pytest.mark.contract("T11")
async def test_a_limit_of_the_whole_bot_holds_everybody(tmp_path: Path):
    for seconds in (2, 8, 30):
        async with stage(tmp_path, state=str(tmp_path / f"{seconds}.sqlite")) as scene:
            calls = await while_all_are_limited(scene, seconds)
        if calls[1].received - calls[0].received < seconds:
            # Who is meant is not said: a second chat finds out, and from then on nobody is sent anything too early.
            assert [(call.status, call.too_early) for call in calls[:3]] == [(429, False), (429, True), (429, False)]
            assert [(call.status, call.too_early) for call in calls[3:]] == [(200, False)] * 4
            return
    raise AssertionError("no second chat was so quick that it could find out")


async def while_all_are_limited(scene: Stage, seconds: int) -> Sequence[Call]:
    """The messages to four chats, of which the first two that come in time are told to wait so long."""
    chats = [scene.telegram.open_chat(f"User {number}") for number in range(1, 5)]
    for number, chat in enumerate(chats, 1):
        scene.link(chat, number)
    scene.telegram.switch(TooManyRequests(retry_after=seconds), method="sendMessage", times=2)
    scene.backend.publish(*range(1, 5))
    async with scene.bot(pacing=Pacing(overall=1, chat_seconds=0.0)):
        for chat in chats:
            await scene.telegram.messages(chat, 1, timeout=120)
    return scene.telegram.calls("sendMessage")


@pytest.mark.thorough
async def test_a_bot_whose_token_is_taken_away_ends_and_moves_no_place(tmp_path: Path):
    denial = {"ok": False, "error_code": 401, "description": "Unauthorized"}
    async with (
        stage(tmp_path) as scene,
        front(scene.telegram.url, lambda body: denial if "text" in body else None) as address,
    ):
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17)
        with pytest.raises(TelegramRefused):
            await asyncio.wait_for(beside(Bot(scene.settings(api=address, update_seconds=1), probe=scene.points)), 40)
        assert scene.place(ada) == "0"


async def beside(bot: Bot) -> None:
    """Something that would go on for ever beside the bot: it must not outlive it."""
    async with bot:
        await asyncio.Event().wait()


async def test_a_stop_lets_the_message_under_way_get_there_and_keeps_its_place(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17, count=5)
        held = scene.points.hold("bot.sent")
        async with scene.bot() as bot:
            await held.wait()
            bot.stopping.set()
            held.release()
        assert titles(scene, ada) == expected(1, 1)
        assert scene.place(ada) == "1"


async def test_a_page_is_not_held_in_memory_while_telegram_makes_its_chat_wait(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18)
        scene.telegram.switch(TooManyRequests(retry_after=3600), chat=ada, method="sendMessage")
        scene.backend.publish(17, count=3)
        # One turn at a time: somebody who held it while waiting would keep the other from theirs.
        async with scene.bot(turns=1):
            await scene.telegram.called("sendMessage", 1, chat=ada)
            for number in range(1, 6):
                scene.backend.publish(18)
                await scene.telegram.messages(bob, number)
            # Nor is it asked for again and again before its time is up.
            assert len([poll for poll in scene.backend.polls(17) if poll.query.get("limit") != "1"]) == 1
        assert scene.place(ada) == "0"


@pytest.mark.thorough
async def test_a_chat_with_a_long_backlog_does_not_keep_others_waiting(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18)
        scene.backend.publish(17, count=300)
        scene.backend.publish(18)
        async with scene.bot(turns=1):
            await scene.telegram.messages(bob, 1)
            assert len(scene.telegram.sent(ada)) <= 40


@pytest.mark.thorough
@pytest.mark.contract("T11")
async def test_a_group_that_became_a_supergroup_is_followed_to_its_new_number(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, new = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("New")
        scene.link(ada, 17)
        scene.backend.publish(17, count=2)
        moved = {
            "ok": False,
            "error_code": 400,
            "description": "Bad Request: group chat was upgraded to a supergroup chat",
            "parameters": {"migrate_to_chat_id": new.chat_id},
        }
        async with (
            front(scene.telegram.url, lambda body: moved if body.get("chat_id") == ada.chat_id else None) as address,
            scene.bot(api=address, update_seconds=1),
        ):
            await scene.telegram.messages(new, 2)
            await scene.points.wait("bot.saved", 2)
        assert titles(scene, new) == expected(1, 2)
        assert (scene.place(ada), scene.place(new)) == (None, "2")
