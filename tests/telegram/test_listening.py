"""The bot hears what is written to it, whatever goes wrong with Telegram or with its state; and loses nothing."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from aftercommit.contrib.telegram import Bot, Link, Store, open_store
from aftercommit.contrib.telegram.local_api import Drop, Fault, Hang, ServerError, TooManyRequests
from aftercommit.contrib.telegram.progress import WINDOW
from aftercommit.errors import StateUnavailable
from aftercommit.testing import SimulatedCrash
from tests.support.investigations import TLS
from tests.telegram.backend import refuse
from tests.telegram.bots import quick_pacing, said, stage
from tests.telegram.gates import Gate


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault", [ServerError(502), Drop(), Hang(), TooManyRequests(retry_after=1)], ids=["502", "dropped", "hangs", "429"]
)
async def test_commands_are_heard_again_when_telegram_is_back(
    fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.telegram.switch(fault, method="getUpdates", times=2)
        # Only of what hangs it is to be seen soon.
        async with scene.bot(send_seconds=2.0 if isinstance(fault, Hang) else 30.0, update_seconds=1):
            assert "/mute 2h" in await scene.says(ada, "/help")
        # One line when it begins, whatever comes of the next attempts.
        assert said(caplog) == ["bot_updates_failed"]


@pytest.mark.thorough
async def test_a_second_program_with_the_same_token_is_told_and_does_not_end_the_bot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot():
            await scene.telegram.called("getUpdates", 1)
            async with httpx.AsyncClient(verify=TLS, timeout=60) as other:
                asked = f"{scene.telegram.url}/bot{scene.telegram.token}/getUpdates"
                rival = asyncio.create_task(other.post(asked, json={"timeout": 1}))
                await scene.telegram.until(
                    lambda: any(call.status == 409 for call in scene.telegram.calls("getUpdates")) or None
                )
                await rival
            assert "/mute 2h" in await scene.says(ada, "/help")
        [line] = [record for record in caplog.records if record.getMessage() == "bot_updates_failed"]
        assert "stop the other program" in line.__dict__["remedy"]


async def test_an_answer_that_cannot_be_given_is_left_and_the_next_one_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot():
            scene.telegram.switch(TooManyRequests(retry_after=3600), chat=ada, method="sendMessage", times=1)
            scene.telegram.write(ada, "/help")
            await scene.telegram.called("sendMessage", 1)
            bob = scene.telegram.open_chat("Bob")
            assert "/mute 2h" in await scene.says(bob, "/help")
            # Who has to wait for an hour and goes on talking does not make the bot deaf to others.
            scene.telegram.write(ada, "/status")
            assert "/mute 2h" in await scene.says(bob, "/help")
        assert scene.texts(ada) == []
        assert said(caplog) == ["bot_limited", "bot_answer_failed", "bot_answer_failed"]


class Shaky:
    """A store of which some calls fail, as those of a database that comes and goes."""

    def __init__(self, store: Store, name: str, times: int) -> None:
        self._store, self._name, self.left = store, name, times
        self.failed = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._store, name)
        if name != self._name:
            return call

        def fail(*arguments: Any, **named: Any) -> Any:
            if self.left:
                self.left -= 1
                self.failed.set()
                raise StateUnavailable("the database is away")
            return call(*arguments, **named)

        return fail


@pytest.mark.thorough
@pytest.mark.contract("T12")
@pytest.mark.parametrize("name", ["lock", "prepare", "links", "link", "move", "offset", "save_offset"])
async def test_a_state_that_is_away_for_a_while_repeats_and_loses_nothing(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    for module in ("listening", "poller"):
        monkeypatch.setattr(f"aftercommit.contrib.telegram.{module}._STATE_SECONDS", 0.05)
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17, count=3)
        shaky: Any = Shaky(open_store(scene.state), name, 2)
        async with Bot(scene.settings(), store=shaky, pacing=quick_pacing(), probe=scene.points):
            await scene.telegram.messages(ada, 3, timeout=40)
            await scene.points.wait("bot.saved", 3)
            # The second answer says that the first was kept.
            for _ in range(2):
                await scene.says(ada, "/help")
        assert [text.splitlines()[0] for text in scene.texts(ada) if text.startswith("🆕")] == [
            "🆕 task 1", "🆕 task 2", "🆕 task 3"
        ]  # fmt: skip
        assert scene.place(ada) == "3"
        assert shaky.left == 0
        assert set(said(caplog)) == {"bot_state_unavailable"}


async def test_a_bot_that_is_told_to_stop_does_not_wait_for_its_state(tmp_path: Path):
    async with stage(tmp_path) as scene:
        shaky: Any = Shaky(open_store(scene.state), "prepare", 10**9)
        bot = await Bot(scene.settings(), store=shaky).start()
        await asyncio.to_thread(shaky.failed.wait, 20)
        await asyncio.wait_for(bot.stop(), 40)


async def test_one_chat_that_breaks_the_bot_does_not_break_it_for_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18)
        scene.backend.publish(17, 18, count=2)
        broken: Any = Broken(open_store(scene.state), ada.chat_id)
        async with Bot(scene.settings(), store=broken, pacing=quick_pacing(), probe=scene.points):
            await scene.telegram.messages(bob, 2)
        assert "bot_turn_failed" in said(caplog)


class Broken:
    """A store with a bug for one chat."""

    def __init__(self, store: Store, chat_id: int) -> None:
        self._store, self._chat_id = store, chat_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def link(self, chat_id: int) -> Link | None:
        if chat_id == self._chat_id:
            raise ZeroDivisionError
        return self._store.link(chat_id)


async def test_connect_asks_once_however_many_want_it_at_a_time(tmp_path: Path):
    async with stage(tmp_path) as scene:
        gate = Gate(refuse(503))
        scene.backend.script.extend([refuse(503), gate, refuse(503), refuse(503)])
        chats = [scene.telegram.open_chat(f"User {number}") for number in range(5)]
        async with scene.bot(health_seconds=60.0):
            for chat in chats:
                scene.telegram.write(chat, "/connect")
            await gate.reached()
            # Whoever wrote before her waits for the answer by now.
            await scene.says(scene.telegram.open_chat("Bob"), "/help")
            gate.open()
            for chat in chats:
                [told] = await scene.telegram.messages(chat, 1)
                assert told.text.startswith("🔴 Still not connected. ")
            assert len(scene.backend.requests) == 2


@pytest.mark.thorough
async def test_a_slow_command_of_one_chat_holds_up_nobody_and_its_chat_keeps_its_order(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        gate = Gate()
        async with scene.bot(health_seconds=60.0):
            scene.backend.for_users[""] = gate
            scene.telegram.write(ada, "/start WRONG")
            scene.telegram.write(ada, "/help")
            await gate.reached()
            for _ in range(2):
                assert "/mute 2h" in await scene.says(bob, "/help")
            assert scene.texts(ada) == []
            gate.open()
            first, second = await scene.telegram.messages(ada, 2)
        assert "This code is not valid" in first.text
        assert "/mute 2h" in second.text
        assert gate.count == 1


@pytest.mark.thorough
async def test_more_than_telegram_tells_at_a_time_is_heard_behind_a_slow_command(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, mallory, bob = (scene.telegram.open_chat(name) for name in ("Ada", "Mallory", "Bob"))
        gate = Gate()
        async with scene.bot(health_seconds=60.0):
            scene.backend.for_users[""] = gate
            scene.telegram.write(ada, "/start WRONG")
            await gate.reached()
            for _ in range(WINDOW + 20):
                scene.telegram.write(mallory, "x")
            assert "/mute 2h" in await scene.says(bob, "/help")
            gate.open()
            assert "This code is not valid" in (await scene.telegram.messages(ada, 1))[0].text


@pytest.mark.contract("T12")
async def test_a_crash_loses_nothing_of_what_waits_behind_a_slow_command(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.backend.for_users[""] = gate = Gate()
        for said_by, text in ((ada, "/start WRONG"), (ada, "/unlink"), (bob, "/help")):
            scene.telegram.write(said_by, text)
        scene.points.crash_at("bot.answered")
        with pytest.raises(SimulatedCrash):
            await Bot(scene.settings(health_seconds=60.0), pacing=quick_pacing(), probe=scene.points).run()
        assert scene.place(ada) == "0"
        gate.open()
        async with scene.bot():
            first, second = await scene.telegram.messages(ada, 2)
        assert "This code is not valid" in first.text
        assert "no longer linked" in second.text
        assert scene.place(ada) is None


async def test_trouble_of_one_chat_does_not_repeat_what_another_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("aftercommit.contrib.telegram.listening._STATE_SECONDS", 0.01)
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.backend.codes["CODE"] = (18, "Bob")
        scene.backend.for_users[""] = gate = Gate()
        scene.telegram.write(ada, "/mute")
        scene.telegram.write(bob, "/start CODE")
        shaky: Any = Shaky(open_store(scene.state), "mute", 2)
        async with Bot(scene.settings(), store=shaky, pacing=quick_pacing(), probe=scene.points):
            await gate.reached()
            await asyncio.to_thread(shaky.failed.wait, 20)
            gate.open()
            assert "Muted until /unmute" in (await scene.telegram.messages(ada, 1))[0].text
            assert "Linked to Bob" in (await scene.telegram.messages(bob, 1))[0].text
            assert "/mute 2h" in await scene.says(bob, "/help")
        assert len(scene.texts(bob)) == 2


async def test_who_hammers_is_unlinked_all_the_same(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        for _ in range(10):
            scene.telegram.write(ada, "/help")
        scene.telegram.write(ada, "/unlink")
        async with scene.bot():
            await scene.points.wait("bot.update", 4)
            await scene.telegram.messages(ada, 3)
            assert "This chat is not linked" in await scene.says(ada, "/mute")
        assert scene.place(ada) is None
        assert len(scene.texts(ada)) == 4


async def test_who_hammers_and_leaves_is_known_to_have_left(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        for _ in range(10):
            scene.telegram.write(ada, "/help")
        scene.telegram.block(ada)
        async with scene.bot():
            await scene.points.wait("bot.update", 4)
        store = scene.store()
        link = store.link(ada.chat_id)
        assert link is not None
        assert link.unreachable is not None
        store.close()


async def test_a_command_that_the_bot_has_not_answered_when_it_is_stopped_is_answered_by_the_next_one(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        bot = Bot(scene.settings(), pacing=quick_pacing(), probe=scene.points)
        held = scene.points.hold("bot.update")
        scene.telegram.write(ada, "/help")
        await bot.start()
        await held.wait()
        stopping = asyncio.create_task(bot.stop())
        await asyncio.wait_for(bot.stopping.wait(), 40)
        held.release()
        await asyncio.wait_for(stopping, 40)
        async with scene.bot():
            assert "/mute 2h" in (await scene.telegram.messages(ada, 1))[0].text
        assert len(scene.texts(ada)) == 1
