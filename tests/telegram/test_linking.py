"""A chat is linked by a one-time code: of the bot or of the backend, once, in time, and from the newest event on."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from aftercommit.contrib.telegram import issue_code
from aftercommit.contrib.telegram.linking import Guesses
from aftercommit.contrib.telegram.state import FOR_EVER
from tests.telegram.backend import Act, drop, hang, refuse, say
from tests.telegram.bots import Stage, stage
from tests.telegram.gates import Gate


def own_code(scene: Stage, user: str = "17", name: str = "Ada", minutes: float = 10) -> str:
    store = scene.store()
    code = issue_code(store, user, name, timedelta(minutes=minutes))
    store.close()
    return code


async def test_a_code_of_the_backend_links_a_chat_from_the_newest_event_on(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.codes["K7QM-3TXA"] = (17, "Ada Lovelace")
        scene.backend.publish(17, count=2500)
        async with scene.bot(credential="act_x"):
            assert (await scene.says(ada, "/start K7QM-3TXA")).startswith("Linked to Ada Lovelace.")
            assert scene.place(ada) == "2500"
            scene.backend.publish(17)
            await scene.telegram.messages(ada, 2)
        assert scene.texts(ada)[1].startswith("🆕 task 2501")
        [redeemed] = [request for request in scene.backend.requests if request.path.endswith("/redeem")]
        assert redeemed.headers["authorization"] == "Bearer act_x"


async def test_a_code_of_the_bot_links_a_chat_without_the_backends_help(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada", language="de-AT")
        code = own_code(scene)
        async with scene.bot(redeem=None):
            assert (await scene.says(ada, f"/start {code}")).startswith("Mit Ada verbunden.")
            scene.backend.publish(17)
            sent = await scene.telegram.messages(ada, 2)
        assert "Ada hat diese Aufgabe angelegt." in sent[1].text


async def test_a_code_counts_once(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, mallory = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Mallory")
        code = own_code(scene)
        async with scene.bot():
            await scene.says(ada, f"/start {code}")
            assert "This code is not valid" in await scene.says(mallory, f"/start {code}")
            # The same from the same chat is what Telegram tells again after a crash of ours.
            assert (await scene.says(ada, f"/start {code}")).startswith("Linked to Ada.")
        store = scene.store()
        assert [link.chat_id for link in store.links()] == [ada.chat_id]
        store.close()


@pytest.mark.parametrize("code", ["WRONG", "x" * 65, "ÄÖÜ", "../../x", "'; drop table link; --"])
async def test_a_code_that_is_wrong_links_nobody(code: str, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot():
            assert "This code is not valid" in await scene.says(ada, f"/start {code}")
        store = scene.store()
        assert store.links() == []
        store.close()


async def test_a_code_that_has_expired_links_nobody(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        code = own_code(scene, minutes=-1)
        async with scene.bot():
            assert "This code is not valid" in await scene.says(ada, f"/start {code}")


async def test_who_guesses_codes_has_to_wait_and_others_need_not(tmp_path: Path):
    async with stage(tmp_path) as scene:
        mallory, ada = scene.telegram.open_chat("Mallory"), scene.telegram.open_chat("Ada")
        code = own_code(scene)
        async with scene.bot():
            for number in range(5):
                assert "is not valid" in await scene.says(mallory, f"/start GUESS-{number}")
            assert "Too many wrong codes" in await scene.says(mallory, f"/start {code}")
            assert "Linked to" in await scene.says(ada, f"/start {code}")
        assert len([request for request in scene.backend.requests if request.path.endswith("/redeem")]) == 5


def test_guesses_are_forgotten_after_their_time_and_never_more_than_so_many():
    guesses = Guesses()
    for number in range(5):
        guesses.count(1, float(number))
    assert guesses.wait(1, 5.0) == 595
    assert guesses.wait(1, 600.0) == 0
    guesses.count(1, 601.0)
    assert guesses.wait(1, 601.0) == 0
    for chat in range(20_000):
        guesses.count(chat, 700.0)
    assert len(guesses._wrong) == 10_000


@pytest.mark.parametrize(
    "act",
    [
        drop,
        refuse(503),
        refuse(401),
        refuse(429, retry_after=1),
        hang,
        say("x"),
        say({}),
        say({"user_id": "Zoë"}),
        say({"user_id": ""}),
    ],
)
async def test_a_code_that_cannot_be_checked_is_not_called_wrong(
    act: Act, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot(health_seconds=0.3 if act is hang else 60.0):
            scene.backend.for_users[""] = act
            assert "I cannot check your code right now" in await scene.says(ada, "/start K7QM-3TXA")
        [line] = [record for record in caplog.records if record.getMessage() == "bot_link_failed"]
        assert line.__dict__["error"]
        assert "K7QM-3TXA" not in str(line.__dict__)


async def test_a_chat_is_not_linked_when_its_place_cannot_be_found(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        code = own_code(scene)
        async with scene.bot():
            scene.backend.for_users["17"] = refuse(403)
            assert "Linking failed. The service answers, but does not let me read this." in await scene.says(
                ada, f"/start {code}"
            )
        [line] = [record for record in caplog.records if record.getMessage() == "bot_link_failed"]
        assert "told 403" in line.__dict__["error"]
        store = scene.store()
        assert store.links() == []
        store.close()


@pytest.mark.parametrize("knows", [True, False], ids=["refuses to read back", "takes no notice of it"])
async def test_a_server_that_cannot_tell_its_newest_event_is_walked_to_its_end(knows: bool, tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.publish(17, count=2100)

        async def bare(reply):
            request = reply.request
            if knows and "before_id" in request.query:
                await reply.answer(400, {"error": "bad_request", "message": "Unknown parameter"})
                return
            after = int(request.query.get("after_id", "0"))
            found = [event for event in scene.backend.events["17"] if event["event_id"] > after]
            await reply.answer(200, found[: int(request.query["limit"])])

        scene.backend.for_users["17"] = bare
        code = own_code(scene)
        async with scene.bot():
            assert "Linked to" in await scene.says(ada, f"/start {code}")
            assert scene.place(ada) == "2100"
            scene.backend.publish(17)
            await scene.telegram.messages(ada, 2)


async def test_the_place_is_kept_before_linking_is_confirmed(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.publish(17, count=3)
        code = own_code(scene)
        held = scene.points.hold("bot.linked")
        async with scene.bot():
            scene.telegram.write(ada, f"/start {code}")
            await held.wait()
            assert scene.place(ada) == "3"
            assert scene.texts(ada) == []
            held.release()
            await scene.telegram.messages(ada, 1)


async def test_a_chat_that_is_linked_anew_goes_on_with_the_other_user(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        code = own_code(scene, "18", "Bob")
        async with scene.bot():
            assert "Linked to Bob" in await scene.says(ada, f"/start {code}")
            scene.backend.publish(17, 18, title="both")
            scene.backend.publish(17, title="only the first")
            scene.backend.publish(18, title="only the second")
            await scene.telegram.messages(ada, 3)
            before = len(scene.backend.polls(18))
            await scene.backend.until(lambda: len(scene.backend.polls(18)) >= before + 2)
        assert [text.splitlines()[0] for text in scene.texts(ada)[1:]] == ["🆕 both", "🆕 only the second"]


async def test_linking_while_the_backend_was_not_there_at_the_start_says_so_and_polls_after_connect(tmp_path: Path):
    async with stage(tmp_path) as scene:
        scene.backend.script.append(refuse(503))
        ada = scene.telegram.open_chat("Ada")
        code = own_code(scene)
        async with scene.bot():
            assert "/connect tries again" in await scene.says(ada, f"/start {code}")
            scene.backend.publish(17)
            assert await scene.says(ada, "/connect") == "🟢 Connected."
            await asyncio.wait_for(scene.telegram.messages(ada, 3), 40)


@pytest.mark.contract("T11")
async def test_linking_the_same_user_again_passes_nothing_over(tmp_path: Path):
    async with stage(tmp_path) as scene:
        # Nothing polls: what is there afterwards is what linking has left.
        scene.backend.script.append(refuse(503))
        ada = scene.telegram.open_chat("Ada")
        before = scene.link(ada, 17, place="2", muted_until=FOR_EVER, passed=3, unreachable="blocked")
        scene.backend.publish(17, count=5)
        code = own_code(scene, "17", "Ada Lovelace")
        async with scene.bot():
            assert (await scene.says(ada, f"/start {code}")).startswith("Linked to Ada Lovelace.")
        store = scene.store()
        after = store.link(ada.chat_id)
        store.close()
        assert after is not None
        assert (after.place, after.passed, after.muted_until) == ("2", 3, FOR_EVER)
        assert (after.linked_at, after.name, after.unreachable) == (before.linked_at, "Ada Lovelace", None)


@pytest.mark.contract("T11")
async def test_a_place_that_moves_while_the_same_user_is_linked_again_does_not_move_back(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.codes["CODE"] = (17, "Ada")
        scene.backend.for_users[""] = gate = Gate()
        async with scene.bot():
            scene.telegram.write(ada, "/start CODE")
            await gate.reached()
            scene.backend.publish(17, count=3)
            await scene.points.wait("bot.saved", 3)
            gate.open()
            await scene.telegram.messages(ada, 4)
            polled = len(scene.backend.polls(17))
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= polled + 2)
        assert scene.place(ada) == "3"
        assert [text.split(".")[0].splitlines()[0] for text in scene.texts(ada)] == [
            "🆕 task 1", "🆕 task 2", "🆕 task 3", "Linked to Ada"
        ]  # fmt: skip
