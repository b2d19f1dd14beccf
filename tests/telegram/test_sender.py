"""The way of all messages: one asks once more right before it goes, and nobody waits longer than they said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aftercommit.contrib.telegram import Pacing
from aftercommit.contrib.telegram.answers import ApiResult, Later
from aftercommit.contrib.telegram.api import BotApi
from aftercommit.contrib.telegram.local_api import BotApiServer, TooManyRequests
from aftercommit.contrib.telegram.pacing import GROUP_SECONDS
from aftercommit.contrib.telegram.sender import STALE, STOPPING, Sender
from aftercommit.service import Waker
from tests.telegram.bots import UNLIMITED, quick_pacing


class Line:
    """A sender, its pacing, and Telegram at the other end."""

    def __init__(self, telegram: BotApiServer, api: BotApi, pacing: Pacing) -> None:
        self.telegram = telegram
        self.stopping = Waker()
        self.sender = Sender(api, pacing, self.stopping)


@asynccontextmanager
async def line(pacing: Pacing | None = None) -> AsyncIterator[Line]:
    async with BotApiServer(limits=UNLIMITED) as telegram:
        await telegram.answers()
        api = BotApi(telegram.token, telegram.url, seconds=20.0)
        try:
            yield Line(telegram, api, pacing or quick_pacing())
        finally:
            await api.close()


async def no() -> bool:
    return False


@pytest.mark.contract("T11")
async def test_what_no_longer_holds_when_it_is_to_go_is_not_sent_and_takes_no_room():
    async with line(Pacing(overall=1, chat_seconds=0.0)) as way:
        ada = way.telegram.open_chat("Ada").chat_id
        for _ in range(3):
            assert await way.sender.send(ada, "no", still=no) is STALE
        # The one place of this second is still free.
        assert isinstance(await way.sender.send(ada, "yes", max_wait_seconds=0.0), ApiResult)
        assert [message.text for message in way.telegram.sent(ada)] == ["yes"]


@pytest.mark.contract("T11")
async def test_whether_it_still_holds_is_asked_when_everything_before_it_was_answered():
    asked, go = asyncio.Event(), asyncio.Event()
    async with line() as way:
        ada = way.telegram.open_chat("Ada").chat_id

        async def first() -> bool:
            asked.set()
            await go.wait()
            return True

        async def second() -> bool:
            return [message.text for message in way.telegram.sent(ada)] == ["first"]

        before = asyncio.create_task(way.sender.send(ada, "first", still=first))
        await asked.wait()
        after = asyncio.create_task(way.sender.send(ada, "second", still=second))
        go.set()
        assert [type(reply) for reply in (await before, await after)] == [ApiResult, ApiResult]


async def test_a_question_that_fails_gives_its_place_back():
    async def fails() -> bool:
        raise OSError("no state")

    async with line(Pacing(overall=1, chat_seconds=0.0)) as way:
        ada = way.telegram.open_chat("Ada").chat_id
        with pytest.raises(OSError, match="no state"):
            await way.sender.send(ada, "lost", still=fails)
        assert isinstance(await way.sender.send(ada, "next", max_wait_seconds=0.0), ApiResult)


@pytest.mark.contract("T11")
@pytest.mark.parametrize("patience", [None, 0.0, 4.0])
async def test_a_chat_that_telegram_makes_wait_for_long_is_told_so_at_once(patience: float | None):
    async with line() as way:
        ada, bob = way.telegram.open_chat("Ada").chat_id, way.telegram.open_chat("Bob").chat_id
        way.telegram.switch(TooManyRequests(retry_after=600), chat=ada, method="sendMessage")
        for _ in range(3):
            reply = await way.sender.send(ada, "wait", max_wait_seconds=patience)
            assert isinstance(reply, Later)
            assert reply.limited
            assert 590 < (reply.seconds or 0.0) <= 600
        assert len(way.telegram.calls("sendMessage", chat=ada)) == 1
        assert isinstance(await way.sender.send(bob, "now", max_wait_seconds=patience), ApiResult)


async def test_a_bot_that_telegram_makes_wait_tells_everybody_at_once():
    pacing = quick_pacing()
    async with line(pacing) as way:
        chats = [way.telegram.open_chat(f"User {number}").chat_id for number in range(3)]
        way.telegram.switch(TooManyRequests(retry_after=600), method="sendMessage")
        replies = [await way.sender.send(chat, "wait", max_wait_seconds=1.0) for chat in chats]
        assert all(isinstance(reply, Later) and reply.limited and (reply.seconds or 0) > 590 for reply in replies)
        assert len(way.telegram.calls("sendMessage")) == 2


@pytest.mark.thorough
async def test_whoever_has_no_patience_does_not_wait_for_a_message_that_is_on_its_way():
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow() -> bool:
        asked.set()
        await go.wait()
        return True

    async with line(Pacing(overall=1, chat_seconds=0.0)) as way:
        ada, bob = way.telegram.open_chat("Ada").chat_id, way.telegram.open_chat("Bob").chat_id
        under_way = asyncio.create_task(way.sender.send(ada, "slow", still=slow))
        await asked.wait()
        # The same chat, and another one for which there is no room.
        for chat in (ada, bob):
            reply = await way.sender.send(chat, "quick", max_wait_seconds=0.0)
            assert isinstance(reply, Later)
            assert reply.limited
            assert reply.seconds is not None
        go.set()
        assert isinstance(await under_way, ApiResult)
        assert isinstance(await way.sender.send(bob, "later"), ApiResult)


async def test_nothing_is_begun_once_the_bot_is_stopping():
    async with line() as way:
        ada = way.telegram.open_chat("Ada").chat_id
        way.stopping.set()
        assert await way.sender.send(ada, "late") is STOPPING
        assert way.telegram.calls("sendMessage") == []


@pytest.mark.contract("T11")
def test_what_an_earlier_life_may_have_sent_just_now_is_waited_for():
    pacing = Pacing(since=100.0)
    assert pacing.chat_wait(5, 100.0) == 1.0
    assert pacing.chat_wait(-5, 100.0) == GROUP_SECONDS
    assert pacing.chat_wait(5, 101.0) == 0.0
