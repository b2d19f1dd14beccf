"""What goes wrong for one chat: places that stay gone, counts that cannot be told, a state that another bot took."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from aftercommit.client.wire import Wire
from aftercommit.contrib.telegram import Bot, open_store
from aftercommit.contrib.telegram.local_api import Blocked
from aftercommit.contrib.telegram.settings import FeedNames
from aftercommit.contrib.telegram.state import FOR_EVER
from aftercommit.contrib.telegram.states.postgres import PostgresDriver
from aftercommit.contrib.telegram.states.sql import Store
from aftercommit.errors import StateTaken
from tests.telegram.backend import Act, Reply, refuse, say
from tests.telegram.bots import quick_pacing, said, stage
from tests.telegram.test_state import END_BOTS

GAP = "⚠️ Events are missing here"


def to_and_fro(*places: str) -> Act:
    """Every place is gone, and each time another one is the one to go on from."""

    async def act(reply: Reply) -> None:
        asked = reply.request.query.get("after_id", "")
        await refuse(410, reason="retention", restart=next(each for each in places if each != asked))(reply)

    return act


@pytest.mark.contract("T9")
async def test_places_that_stay_gone_are_told_once_until_there_was_a_page_again(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="1")
        scene.backend.publish(17, count=9)
        scene.backend.for_users["17"] = to_and_fro("6", "8")
        # The question of the start is answered; from then on nothing is.
        scene.backend.script.append(say([]))
        async with scene.bot():
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 8)
            assert [text.startswith(GAP) for text in scene.texts(ada)] == [True]
            del scene.backend.for_users["17"]
            await scene.telegram.until(lambda: scene.texts(ada)[-1].startswith("🆕 task 9") or None)
            scene.backend.for_users["17"] = to_and_fro("9", "0")
            await scene.telegram.until(lambda: scene.texts(ada)[-1].startswith(GAP) or None)
        store = scene.store()
        assert {each.kind for each in store.failures()} == {"gap"}
        store.close()


@pytest.mark.contract("T9")
async def test_a_gap_is_told_to_a_muted_chat_once(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="1", muted_until=FOR_EVER)
        scene.backend.publish(17, count=3)
        scene.backend.script.extend([say([]), refuse(410, reason="retention", restart="2")])
        async with scene.bot():
            await scene.points.wait("bot.saved", 1)
        # What is muted are events; that some are missing would otherwise be passed over in silence.
        assert [text.startswith(GAP) for text in scene.texts(ada)] == [True]
        assert scene.place(ada) == "3"


@pytest.mark.contract("T9")
async def test_a_gap_in_a_feed_without_a_first_place_is_gone_on_from_without_one(tmp_path: Path):
    names = FeedNames(wire=Wire(cursor="after_id", body="array", beginning=None, before="before_id"))
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="3")
        scene.backend.script.extend([say([]), refuse(410, reason="epoch")])
        async with scene.bot(names=names):
            await scene.telegram.messages(ada, 1)
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 3)
        first, gone, *others = scene.backend.polls(17)
        assert "after_id" not in first.query
        assert gone.query["after_id"] == "3"
        assert all("after_id" not in poll.query for poll in others)
        assert scene.place(ada) is None


@pytest.mark.contract("T11")
async def test_a_count_of_muted_events_that_cannot_be_told_is_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="3", passed=3)
        with scene.telegram.switch(Blocked(), chat=ada, method="sendMessage"):
            async with scene.bot():
                await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 3)
        store = scene.store()
        [kept] = store.failures(ada.chat_id)
        assert (kept.kind, kept.event_type, kept.place) == ("blocked", "muted", "3")
        assert "3" in kept.event_id
        found = store.link(ada.chat_id)
        assert found is not None
        assert (found.passed, found.place) == (0, "3")
        assert found.unreachable == kept.reason
        store.close()
        assert said(caplog) == ["bot_event_set_aside"]


async def test_a_bot_whose_state_another_took_ends_without_sending(database: str, tmp_path: Path):
    async with stage(tmp_path, state=database) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        held = scene.points.hold("bot.fetched")
        scene.backend.publish(17)
        store = Store(PostgresDriver(database, lock_wait_seconds=0.0))
        other = open_store(database)

        async def lose_it(bot: Bot) -> None:
            async with bot:
                await held.wait()
                await asyncio.to_thread(end_connections, database)
                await asyncio.to_thread(other.lock)
                held.release()
                await asyncio.Event().wait()

        bot = Bot(scene.settings(), store=store, pacing=quick_pacing(), probe=scene.points)
        with pytest.raises(StateTaken):
            await asyncio.wait_for(lose_it(bot), 40)
        assert scene.texts(ada) == []
        other.close()


def end_connections(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(END_BOTS)


@pytest.mark.contract("T11")
async def test_a_feed_whose_events_do_not_tell_their_places_is_refused_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    names = FeedNames(wire=Wire(cursor="after_id", beginning="0"))
    page = {
        "events": [{"event_id": "a"}, {"event_id": "b"}],
        "pagination": {"nextCursor": "2", "hasMore": False},
    }
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="0")
        scene.backend.for_users["17"] = say(page)
        async with scene.bot(names=names):
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= 3)
        assert scene.texts(ada) == []
        assert scene.place(ada) == "0"
        assert set(said(caplog)) == {"bot_poll_failed"}
        assert any("have no cursors" in str(record.__dict__) for record in caplog.records)


async def test_the_trouble_of_one_user_is_shown_to_that_one_alone(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob, stranger = (scene.telegram.open_chat(name) for name in ("Ada", "Bob", "Stranger"))
        scene.link(ada, 17)
        scene.link(bob, 18)
        async with scene.bot():
            await scene.backend.until(lambda: len(scene.backend.polls(18)) >= 1)
            scene.backend.for_users["17"] = refuse(403)
            before = len(scene.backend.polls(17))
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= before + 2)
            assert "told 403" in await scene.says(ada, "/status")
            for chat in (bob, stranger):
                status = await scene.says(chat, "/status")
                assert "🟢" in status
                assert "403" not in status


@pytest.mark.thorough
async def test_while_nobody_is_answered_everybody_is_told_so_and_strangers_no_details(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada, bob, stranger = (scene.telegram.open_chat(name) for name in ("Ada", "Bob", "Stranger"))
        scene.link(ada, 17)
        scene.link(bob, 18)
        async with scene.bot(), asyncio.timeout(240):
            scene.backend.for_users.update({"17": refuse(503), "18": refuse(503)})
            # Three in a row mean everybody.
            while "🟡" not in (status := await scene.says(stranger, "/status")):
                pass
            assert "503" not in status
            for chat in (ada, bob):
                status = await scene.says(chat, "/status")
                assert "🟡" in status
                assert "told 503" in status
            beside = scene.store()
            assert "told 503" in (beside.trouble() or "")
            scene.backend.for_users.clear()
            while beside.trouble() is not None:
                await scene.says(ada, "/status")
            beside.close()
