"""Polling goes on whatever the backend does: errors are logged, nothing moves, and what was missed comes afterwards."""

import logging
import time
from pathlib import Path

import pytest

from tests.telegram.backend import Act, drop, hang, refuse, say
from tests.telegram.bots import said, stage

FAILURES: dict[str, Act] = {
    "hangs": hang,
    "drops": drop,
    "500": refuse(500),
    "503": refuse(503, retry_after=0),
    "429": refuse(429, retry_after=0),
    "401": refuse(401),
    "403": refuse(403),
    "no page": say({"no": "page"}),
    "no events": say([{"no": "event"}]),
}


@pytest.mark.thorough
@pytest.mark.contract("T10")
@pytest.mark.parametrize("act", FAILURES.values(), ids=FAILURES.keys())
async def test_an_error_is_logged_nothing_moves_and_the_next_poll_asks_for_the_same(
    act: Act, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="0")
        pace = scene.settings().pace
        async with scene.bot(pace=type(pace)(poll=0.05, idle_longest=0.1, limited_longest=0.2, answer=0.3)):
            scene.backend.publish(17, count=2)
            await scene.telegram.messages(ada, 2)
            await scene.points.wait("bot.saved", 2)
            before = len(scene.backend.polls())
            scene.backend.for_users["17"] = act
            scene.backend.publish(17)
            await scene.backend.until(lambda: len(scene.backend.polls()) >= before + 3)
            assert scene.place(ada) == "2"
            del scene.backend.for_users["17"]
            await scene.telegram.messages(ada, 3)
            asked = {request.query["after_id"] for request in scene.backend.polls()[before:]}
        assert asked <= {"2", "3"}
        assert set(said(caplog)) == {"bot_poll_failed"}
        assert [text.splitlines()[0] for text in scene.texts(ada)] == [f"🆕 task {number}" for number in (1, 2, 3)]


@pytest.mark.contract("T10")
async def test_a_backend_that_is_restarted_is_polled_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17)
        async with scene.bot():
            await scene.telegram.messages(ada, 1)
            await scene.backend.stop()
            scene.backend.publish(17)
            status = await scene.says(ada, "/status")
            while "🟡 The service does not answer. I keep trying." not in status:
                status = await scene.says(ada, "/status")
            await scene.backend.start()
            await scene.telegram.until(lambda: scene.texts(ada)[-1].startswith("🆕 task 2") or None)
        assert "bot_poll_failed" in said(caplog)


@pytest.mark.contract("T9")
async def test_everybody_is_polled_for_themselves_from_their_own_place(tmp_path: Path):
    async with stage(tmp_path) as scene:
        chats = {user: scene.telegram.open_chat(f"User {user}") for user in (1, 2, 3)}
        scene.backend.publish(1, 2, 3, count=10)
        for user, chat in chats.items():
            scene.link(chat, user, place=str(user * 3))
        async with scene.bot():
            for user, chat in chats.items():
                await scene.telegram.messages(chat, 10 - user * 3)
        for user, chat in chats.items():
            assert [text.splitlines()[0] for text in scene.texts(chat)] == [
                f"🆕 task {number}" for number in range(user * 3 + 1, 11)
            ]
            assert {int(poll.query.get("after_id", "-1")) for poll in scene.backend.polls(user)} <= {-1, user * 3, 10}


async def test_a_user_whose_polls_always_fail_does_not_hold_up_the_others(tmp_path: Path):
    async with stage(tmp_path) as scene:
        chats = {user: scene.telegram.open_chat(f"User {user}") for user in (1, 2)}
        for user, chat in chats.items():
            scene.link(chat, user)
        async with scene.bot():
            scene.backend.for_users["1"] = refuse(500)
            for number in range(1, 8):
                scene.backend.publish(1, 2)
                await scene.telegram.messages(chats[2], number)
        assert scene.texts(chats[1]) == []


@pytest.mark.thorough
async def test_when_nobody_is_answered_one_asks_for_all(tmp_path: Path):
    async with stage(tmp_path) as scene:
        for user in range(1, 31):
            scene.link(scene.telegram.open_chat(f"User {user}"), user)
        async with scene.bot():
            await scene.backend.until(lambda: len({poll.user for poll in scene.backend.polls()}) == 30)
            scene.backend.for_users.update({str(user): refuse(503) for user in range(1, 31)})
            late = scene.telegram.open_chat("Late")
            while "🟡" not in await scene.says(late, "/status"):
                pass
            # Those that were under way when it was noticed may still come.
            known = -1
            while known < (known := len(scene.backend.polls())):
                await scene.says(late, "/status")
            began = time.monotonic()
            while time.monotonic() < began + 1.5:
                assert "🟡" in await scene.says(late, "/status")
            # After them it is one at a time, seconds apart.
            assert len(scene.backend.polls()) <= known + 2 + (time.monotonic() - began)
            scene.backend.for_users.clear()
            await scene.backend.until(lambda: len(scene.backend.polls()) >= known + 40)


@pytest.mark.contract("T9")
async def test_a_place_that_is_gone_is_told_recorded_and_gone_on_from(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="3")
        scene.backend.publish(17, count=8)
        gone = refuse(410, reason="retention", restart="6")
        scene.backend.script.extend([say([]), gone])
        async with scene.bot():
            sent = await scene.telegram.messages(ada, 3)
            await scene.points.wait("bot.saved", 2)
        assert "Events are missing here" in sent[0].text
        assert [message.text.splitlines()[0] for message in sent[1:]] == ["🆕 task 7", "🆕 task 8"]
        store = scene.store()
        [kept] = store.failures()
        assert (kept.kind, kept.event_id, kept.place) == ("gap", "after 3", "6")
        assert "retention" in kept.reason
        store.close()
        assert said(caplog) == ["bot_gap"]


@pytest.mark.contract("T9", "E4")
async def test_an_event_that_the_server_cannot_show_is_told_recorded_and_gone_on_from(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="0")
        one, _, three = scene.backend.publish(17, count=3)
        scene.backend.script.extend([say([]), say([one, {"event_id": 2, "withheld": "item failed"}, three])])
        async with scene.bot():
            sent = await scene.telegram.messages(ada, 3)
            await scene.points.wait("bot.saved", 2)
        assert [message.text.splitlines()[0] for message in sent] == [
            "🆕 task 1",
            "⚠️ The server could not show one event. I continue with the next one.",
            "🆕 task 3",
        ]
        store = scene.store()
        [kept] = store.failures()
        assert (kept.kind, kept.event_id, kept.place) == ("gap", "2", "2")
        assert [link.place for link in store.links()] == ["3"]
        store.close()


@pytest.mark.contract("E4")
async def test_an_event_with_a_field_named_withheld_is_delivered(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="0")
        [one] = scene.backend.publish(17, count=1)
        scene.backend.script.extend([say([]), say([{**one, "withheld": "120.00"}])])
        async with scene.bot():
            [sent] = await scene.telegram.messages(ada, 1)
            await scene.points.wait("bot.saved", 1)
        assert sent.text.splitlines()[0] == "🆕 task 1"


@pytest.mark.thorough
async def test_a_feed_that_leads_back_to_a_place_that_is_gone_tells_nobody_again_and_again(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="3")
        async with scene.bot():
            scene.backend.for_users["17"] = refuse(410, reason="epoch", restart="3")
            before = len(scene.backend.polls())
            await scene.backend.until(lambda: len(scene.backend.polls()) >= before + 4)
            assert "🟡" in await scene.says(ada, "/status")
        assert len(scene.texts(ada)) == 1
        assert scene.place(ada) == "3"


@pytest.mark.thorough
@pytest.mark.contract("T10")
@pytest.mark.parametrize("status", [429, 503])
async def test_a_backend_that_asks_for_time_is_given_it(status: int, tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.link(scene.telegram.open_chat("Ada"), 17)
        async with scene.bot():
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 2)
            scene.backend.script.append(refuse(status, retry_after=1))
            await scene.backend.until(lambda: not scene.backend.script)
            refused = len(scene.backend.polls(17))
            await scene.backend.until(lambda: len(scene.backend.polls(17)) > refused)
        polls = scene.backend.polls(17)
        assert polls[refused].at - polls[refused - 1].at >= 1.0


async def test_an_idle_feed_is_asked_with_its_tag_and_more_and_more_seldom(tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.link(scene.telegram.open_chat("Ada"), 17)
        async with scene.bot():
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 5)
        _, first, *others = scene.backend.polls(17)
        assert "if-none-match" not in first.headers
        assert all("if-none-match" in poll.headers for poll in others)


async def test_polls_show_the_credential_and_whom_they_are_for(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with stage(tmp_path) as scene:
        scene.link(scene.telegram.open_chat("Ada"), 17)
        async with scene.bot(credential="act_hush-hush"):
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 2)
        assert {poll.headers["authorization"] for poll in scene.backend.polls()} == {"Bearer act_hush-hush"}
        assert "act_hush-hush" not in caplog.text


async def test_a_link_that_the_command_line_ended_is_polled_no_more(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Bob")
        scene.link(ada, 17)
        scene.link(bob, 18)
        async with scene.bot():
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 2)
            store = scene.store()
            store.unlink(ada.chat_id)
            store.close()
            scene.backend.publish(17, 18)
            await scene.telegram.messages(bob, 1)
            before = len(scene.backend.polls(18))
            await scene.backend.until(lambda: len(scene.backend.polls(18)) >= before + 3)
        assert scene.texts(ada) == []
