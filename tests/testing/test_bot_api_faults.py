"""The local Bot API server when things go wrong: Telegram's limits, and every fault that can be switched on."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from aftercommit.contrib.telegram.local_api import (
    Blocked,
    BotApiLimits,
    BotApiServer,
    Chat,
    ChatNotFound,
    Drop,
    Fault,
    Hang,
    ServerError,
    Slow,
    TooManyRequests,
)
from aftercommit.contrib.telegram.local_api.limits import RateLimit
from aftercommit.errors import DeclarationError
from tests.testing.bots import BotClient

NO_LIMITS = BotApiLimits(overall=None, per_chat=None)
ADA, GRACE = 1, 2


# --- limits, counted without a clock


def test_one_message_a_second_to_a_chat():
    rate = RateLimit(BotApiLimits())
    assert rate.take(ADA, 10.0) is None
    assert rate.take(ADA, 10.999) == 1
    assert rate.take(GRACE, 10.5) is None
    assert rate.take(ADA, 11.0) is None


def test_thirty_messages_within_any_second_in_all():
    rate = RateLimit(BotApiLimits())
    assert [rate.take(chat, 10.0 + chat / 100) for chat in range(30)] == [None] * 30
    assert rate.take(100, 10.5) == 1
    assert rate.take(100, 11.0) is None
    assert rate.take(101, 11.005) == 1
    assert rate.take(101, 11.01) is None


def test_what_was_refused_does_not_count():
    rate = RateLimit(BotApiLimits())
    rate.take(ADA, 10.0)
    assert [rate.take(ADA, 10.0 + each / 10) for each in range(1, 10)] == [1] * 9
    assert rate.take(ADA, 11.0) is None


def test_a_burst_lets_a_few_a_minute_through_and_no_more():
    rate = RateLimit(BotApiLimits(burst=3))
    assert [rate.take(ADA, 10.0) for _ in range(5)] == [None, None, None, None, 1]
    assert rate.take(ADA, 11.0) is None
    assert rate.take(ADA, 11.1) == 1
    assert rate.take(ADA, 70.0) is None
    assert rate.take(ADA, 70.0) is None


def test_a_longer_window_tells_how_long_to_wait():
    rate = RateLimit(BotApiLimits(per_chat=2, window_seconds=10.0))
    assert [rate.take(ADA, 0.0), rate.take(ADA, 4.0)] == [None, None]
    assert rate.take(ADA, 4.5) == 6
    assert rate.take(ADA, 10.0) is None


@pytest.mark.parametrize(
    "wrong", [{"overall": 0}, {"per_chat": -1}, {"window_seconds": 0.0}, {"window_seconds": 61.0}, {"burst": -1}]
)
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, int]):
    with pytest.raises(DeclarationError):
        BotApiLimits(**wrong)


# --- limits, over HTTP


@pytest_asyncio.fixture
async def telegram() -> AsyncIterator[BotApiServer]:
    async with BotApiServer(limits=NO_LIMITS) as server:
        yield server


@pytest_asyncio.fixture
async def bot(telegram: BotApiServer) -> AsyncIterator[BotClient]:
    client = BotClient(telegram)
    yield client
    await client.http.aclose()


@pytest.fixture
def ada(telegram: BotApiServer) -> Chat:
    return telegram.open_chat("Ada")


@pytest.fixture
def grace(telegram: BotApiServer) -> Chat:
    return telegram.open_chat("Grace")


async def test_a_message_too_early_is_answered_429_and_so_is_whoever_does_not_wait():
    # A window of a minute: the second message is too early however slow the machine is.
    async with BotApiServer(limits=BotApiLimits(window_seconds=60.0)) as telegram:
        ada, grace = telegram.open_chat("Ada"), telegram.open_chat("Grace")
        bot = BotClient(telegram)
        assert (await bot.send(ada, "one")).status == 200
        refused = await bot.send(ada, "two")
        wait = refused.body["parameters"]["retry_after"]
        assert refused.body == {
            "ok": False,
            "error_code": 429,
            "description": f"Too Many Requests: retry after {wait}",
            "parameters": {"retry_after": wait},
        }
        assert refused.headers["retry-after"] == str(wait)
        assert 50 <= wait <= 60
        assert (await bot.send(ada, "three")).status == 429
        assert (await bot.send(grace, "other chats are free")).status == 200
        assert [call.too_early for call in telegram.calls("sendMessage", chat=ada)] == [False, False, True]
        assert [message.text for message in telegram.sent(ada)] == ["one"]
        assert telegram.most_within(60.0, chat=ada) == 3
        await bot.http.aclose()


# --- switches


async def test_429_comes_so_many_times_and_the_wait_is_enforced(bot: BotClient, telegram: BotApiServer, ada: Chat):
    switch = telegram.switch(TooManyRequests(retry_after=60), chat=ada, times=1)
    assert (await bot.send(ada, "x")).body["parameters"] == {"retry_after": 60}
    assert not switch.is_on
    early = await bot.send(ada, "x")
    assert early.error[1].startswith("Too Many Requests: retry after")
    assert [call.too_early for call in telegram.calls("sendMessage")] == [False, True]
    telegram.heal()
    assert (await bot.send(ada, "x")).status == 200


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Blocked(), (403, "Forbidden: bot was blocked by the user")),
        (ChatNotFound(), (400, "Bad Request: chat not found")),
        (ServerError(), (502, "Bad Gateway")),
        (ServerError(status=500), (500, "Internal Server Error")),
        (ServerError(status=599), (599, "Server Error")),
    ],
)
async def test_a_switched_fault_is_answered_for_its_chat_alone(
    bot: BotClient, telegram: BotApiServer, ada: Chat, grace: Chat, fault: Fault, error: tuple[int, str]
):
    with telegram.switch(fault, chat=ada):
        assert (await bot.send(ada, "x")).error == error
        assert (await bot.send(grace, "x")).status == 200
        assert (await bot.call("getMe")).status == 200
    assert (await bot.send(ada, "x")).status == 200
    assert len(telegram.sent(ada)) == 1


async def test_a_fault_for_all_meets_every_call_and_the_newest_decides(
    bot: BotClient, telegram: BotApiServer, ada: Chat
):
    telegram.switch(ServerError(status=503))
    assert (await bot.call("getMe")).status == 503
    telegram.switch(Blocked(), chat=ada, times=2)
    assert [(await bot.send(ada, "x")).status for _ in range(3)] == [403, 403, 503]
    telegram.switches.off(*telegram.switches.switches)
    telegram.switch(Blocked(), method="sendMessage")
    assert (await bot.send(ada, "x")).status == 403
    assert (await bot.call("sendChatAction", chat_id=ada.chat_id, action="typing")).status == 200


async def test_a_proxy_in_front_of_telegram_answers_with_a_page(bot: BotClient, telegram: BotApiServer):
    telegram.switch(ServerError(as_page=True))
    answer = await bot.http.get(f"/bot{telegram.token}/getMe")
    assert (answer.status_code, answer.headers["content-type"]) == (502, "text/html")
    assert answer.text.startswith("<html>")


async def test_an_error_may_come_although_the_message_was_sent(bot: BotClient, telegram: BotApiServer, ada: Chat):
    telegram.switch(ServerError(recorded=True), chat=ada, times=1)
    assert (await bot.send(ada, "x")).status == 502
    [call] = telegram.calls("sendMessage")
    assert (call.was_taken, call.status, call.fault) == (True, 502, "server_error")
    assert len(telegram.sent(ada)) == 1


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_connection_is_dropped_before_or_after_the_message_is_taken(
    bot: BotClient, telegram: BotApiServer, ada: Chat, recorded: bool
):
    telegram.switch(Drop(recorded=recorded), chat=ada, times=1)
    assert await bot.lost("sendMessage", chat_id=ada.chat_id, text="x")
    [call] = telegram.calls("sendMessage")
    assert (call.status, call.was_taken, call.answered is not None) == (None, recorded, True)
    assert len(telegram.sent(ada)) == recorded
    assert (await bot.send(ada, "y")).status == 200


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_call_hangs_until_the_bot_gives_up(telegram: BotApiServer, ada: Chat, recorded: bool):
    telegram.switch(Hang(recorded=recorded), chat=ada, times=1)
    bot = BotClient(telegram, patience=0.2)
    with pytest.raises(httpx.ReadTimeout):
        await bot.send(ada, "x")
    [call] = await telegram.until(
        lambda: [call for call in telegram.calls("sendMessage") if call.answered is not None] or None
    )
    assert (call.status, call.was_taken) == (None, recorded)
    assert len(telegram.sent(ada)) == recorded
    await bot.http.aclose()


async def test_hanging_calls_are_cut_off_when_the_fault_ends(bot: BotClient, telegram: BotApiServer, ada: Chat):
    switch = telegram.switch(Hang(), times=1)
    hanging = asyncio.create_task(bot.lost("getMe"))
    await telegram.called("getMe")
    assert not switch.is_on
    telegram.heal()
    assert await hanging


async def test_a_hanging_call_does_not_keep_the_server_from_stopping():
    async with BotApiServer() as server:
        server.switch(Hang())
        bot = BotClient(server)
        hanging = asyncio.create_task(bot.lost("getMe"))
        await server.called("getMe")
    assert await hanging
    await bot.http.aclose()


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_slow_answer_comes_in_the_end(bot: BotClient, telegram: BotApiServer, ada: Chat, recorded: bool):
    telegram.switch(Slow(seconds=0.2, recorded=recorded), chat=ada)
    assert (await bot.send(ada, "x")).status == 200
    [call] = telegram.calls("sendMessage")
    assert call.answered is not None
    assert call.answered - call.received >= 0.2
    sent_at = telegram.sent(ada)[0].at
    assert (call.answered - sent_at if recorded else sent_at - call.received) >= 0.2


async def test_a_bot_that_leaves_while_the_answer_is_slow_has_sent_nothing(telegram: BotApiServer, ada: Chat):
    telegram.switch(Slow(seconds=3000), chat=ada)
    bot = BotClient(telegram, patience=0.2)
    with pytest.raises(httpx.ReadTimeout):
        await bot.send(ada, "x")
    await telegram.until(lambda: [call for call in telegram.calls("sendMessage") if call.answered] or None)
    assert telegram.sent(ada) == []
    await bot.http.aclose()


async def test_what_is_wrong_with_a_message_is_said_before_a_fault_hides_it(
    bot: BotClient, telegram: BotApiServer, ada: Chat
):
    telegram.switch(Drop(recorded=True), chat=ada)
    assert (await bot.send(ada, "<b>", parse_mode="HTML")).status == 400


async def test_calls_are_on_record_in_the_order_they_came(bot: BotClient, telegram: BotApiServer, ada: Chat):
    for text in ("one", "two", "three"):
        await bot.send(ada, text)
    calls = telegram.calls("sendMessage", chat=ada)
    assert [call.arguments["text"] for call in calls] == ["one", "two", "three"]
    assert [call.message_id for call in calls] == [message.message_id for message in telegram.sent(ada)]
    assert [call.received for call in calls] == sorted(call.received for call in calls)
    assert telegram.most_within(60.0) == 3
    assert telegram.most_within(1e-9) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TooManyRequests(retry_after=0), "retry_after=0 is not between 1 and 3600"),
        (lambda: ServerError(status=404), "status=404 is not between 500 and 599"),
        (lambda: Slow(seconds=-1), "seconds=-1 is not between 0 and 3600"),
    ],
)
def test_faults_that_mean_nothing_are_refused(make, said: str):
    with pytest.raises(DeclarationError, match=said):
        make()


async def test_a_switch_for_no_call_is_refused(telegram: BotApiServer):
    with pytest.raises(DeclarationError, match="times=0 must be at least 1"):
        telegram.switch(Drop(), times=0)
