"""The token is a part of every address that the bot asks: it is in no log line, no error and no text."""

import json
import logging
import re
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from aftercommit.client import Pace
from aftercommit.contrib.telegram import BotSettings
from aftercommit.contrib.telegram.answers import Later
from aftercommit.contrib.telegram.api import BotApi
from aftercommit.contrib.telegram.local_api import BotApiServer, Drop, ServerError, TooManyRequests
from aftercommit.contrib.telegram.reader import BackendReader
from aftercommit.contrib.telegram.redaction import Redaction, without_userinfo
from aftercommit.errors import DeclarationError, FollowError
from aftercommit.telemetry import JsonFormatter
from tests.telegram.backend import Reply, backend, say
from tests.telegram.bots import everything, said, stage
from tests.telegram.front import front

SECRET = "1000000001:" + "very-secret-token-of-the-bot-0123456"


@pytest.mark.thorough
async def test_no_log_line_of_ours_or_of_httpx_has_the_token(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with BotApiServer(token=SECRET) as telegram, stage(tmp_path) as scene:
        await telegram.answers()
        scene.telegram = telegram
        ada = telegram.open_chat("Ada")
        scene.link(ada, 17)
        for fault in (ServerError(500), Drop(), TooManyRequests(retry_after=1)):
            telegram.switch(fault, method="sendMessage", times=1)
        telegram.switch(Drop(), method="getUpdates", times=1)
        scene.backend.publish(17, count=2)
        async with scene.bot(send_seconds=2.0, credential="act_hush-hush"):
            await telegram.messages(ada, 2, timeout=60)
            await scene.says(ada, "/status")
    told = everything(caplog)
    assert "bot_delivery_failed" in told
    # httpx does write its lines, and they show everything but the token.
    assert "HTTP Request: POST" in told
    assert "/bot[token]/sendMessage" in told
    assert SECRET not in told
    assert SECRET.partition(":")[2] not in told
    assert "act_hush-hush" not in told


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://no-such-host.invalid", "https://127.0.0.1:1"])
async def test_a_telegram_that_cannot_be_reached_is_told_without_the_token(
    address: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    api = BotApi(SECRET, address, seconds=5.0)
    reply = await api.get_me()
    await api.close()
    assert isinstance(reply, Later)
    assert SECRET not in reply.reason
    assert SECRET not in everything(caplog)


async def test_a_redirection_is_not_followed_with_the_token():
    async with front(
        "http://127.0.0.1:1", lambda body: {"ok": False, "error_code": 302, "description": "moved"}
    ) as url:
        api = BotApi(SECRET, url)
        reply = await api.get_me()
        await api.close()
    assert reply == Later("moved")


async def test_other_lines_of_httpx_stay_as_they_are_and_nothing_is_left_behind(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    before = list(logging.getLogger("httpx").filters)
    async with BotApiServer(token=SECRET) as telegram:
        await telegram.answers()
        api = BotApi(SECRET, telegram.url)
        await api.get_me()
        async with httpx.AsyncClient(timeout=60) as client:
            await client.get(f"{telegram.url}/control/state")
        await api.close()
    assert "/control/state" in caplog.text
    assert list(logging.getLogger("httpx").filters) == before


async def quoting(reply: Reply, body: str, status: int = 502) -> None:
    reply.writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    await reply.writer.drain()


QUOTES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "encoded": lambda path: path.replace(":", "%3A"),
    "in part": lambda path: path.partition(":")[2],
}


@pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES.keys())
@pytest.mark.parametrize("form", ["{}", '{{"ok":false,"error_code":502,"description":"{}"}}'], ids=["proxy", "Bot API"])
async def test_what_a_proxy_quotes_of_an_address_is_told_without_the_token(quote: Callable[[str], str], form: str):
    # Wherever it stands, and wherever the text is cut.
    places = [0, 20, 40, 60, 75, 79, 1960, 1990, 1999]

    async def act(reply: Reply) -> None:
        await quoting(reply, form.format("x" * places[len(reply.backend.requests) - 1] + quote(reply.request.path)))

    async with backend([act] * len(places)) as proxy:
        api = BotApi(SECRET, proxy.url)
        for _ in places:
            told = await api.get_me()
            assert isinstance(told, Later)
            assert "very-" not in told.reason
        await api.close()


async def test_a_name_and_a_password_in_an_address_are_neither_logged_nor_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.codes["CODE"] = (18, "Bob")
        host = scene.backend.url.removeprefix("http://")

        async def quote_it(reply: Reply) -> None:
            said = f"no way to http://lovelace:hush-hush@{host} (lovelace:hush-hush, lovelace%3Ahush-hush, hush-hush)"
            await reply.answer(403, {"error": "forbidden", "message": said})

        scene.backend.script.append(quote_it)
        addresses: dict[str, Any] = {
            "feed": f"http://lovelace:hush-hush@{host}/tasks/me/events",
            "redeem": f"http://lovelace:hush-hush@{host}/tasks/link-codes/redeem",
        }
        async with scene.bot(**addresses):
            assert "[hidden]" in await scene.says(ada, "/status")
            scene.backend.for_users["18"] = quote_it
            await scene.says(ada, "/start CODE")
            assert await scene.says(ada, "/connect") == "🟢 Connected."
            scene.backend.for_users["17"] = quote_it
            before = len(scene.backend.polls(17))
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= before + 2)
            await scene.says(ada, "/status")
    told = everything(caplog) + "".join(scene.texts(ada))
    assert {"bot_started", "bot_not_connected", "bot_link_failed", "bot_polling", "bot_poll_failed"} <= set(
        said(caplog, logging.DEBUG)
    )
    assert "HTTP Request: GET http://" in told
    assert "hush" not in told


CREDENTIAL = "act_hush-hush-hush-hush"


async def test_a_credential_in_the_words_of_a_place_that_is_gone_is_neither_told_nor_kept_nor_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)

    async def gone(reply: Reply) -> None:
        shown = reply.request.headers["authorization"]
        body = {"error": "gone", "message": f"{shown} is late", "details": {"reason": f"x {shown}", "restart": "0"}}
        await reply.answer(410, body)

    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.publish(17)
        scene.link(ada, 17, place="7")
        async with scene.bot(credential=CREDENTIAL):
            scene.backend.script.append(gone)
            await scene.points.wait("bot.saved", 1)
            assert "Bearer [hidden] is late" in await scene.says(ada, "/status")
        store = scene.store()
        [failure] = store.failures()
        store.close()
    assert (failure.kind, failure.place, failure.reason) == ("gap", "0", "x Bearer [hidden]: Bearer [hidden] is late")
    told = everything(caplog) + "".join(scene.texts(ada))
    assert "bot_gap" in told
    assert "hush" not in told + str(failure)


# Where the credential stands in an answer of so many bytes: around the places at which texts are cut.
PLACES = (0, 40, 56, 70, 79, 400, 460, 480, 499, 1960, 1999)


@pytest.mark.parametrize("status", [200, 302, 403, 410])
@pytest.mark.parametrize("credential", [CREDENTIAL, 'act_"hush\\hush/hush'], ids=["plain", "with marks"])
@pytest.mark.thorough
async def test_no_half_of_a_credential_is_left_where_an_answer_is_cut(status: int, credential: str, tmp_path: Path):
    in_json = json.dumps(credential)[1:-1]
    forms = {credential, in_json, in_json.replace("/", "\\/")}
    async with stage(tmp_path) as scene, AsyncExitStack() as stack:
        settings = scene.settings(credential=credential, pace=Pace(failures=0, answer=5.0))
        reader = BackendReader(settings, Redaction(settings.token, credential=credential))
        stack.push_async_callback(reader.close)
        for said in ("x" * place + form for form in forms for place in PLACES):

            async def quote_it(reply: Reply, said: str = said) -> None:
                head = f"HTTP/1.1 {status} x\r\nlocation: {said}\r\ncontent-length: {len(said)}\r\n\r\n"
                reply.writer.write((head + said).encode())
                await reply.writer.drain()

            scene.backend.for_users.update({"17": quote_it, "": quote_it})
            told = [await reader.health("17"), await reader.poll("17", "5", None), await reader.redeem("CODE")]
            with pytest.raises(FollowError) as caught:
                await reader.newest("17")
            assert not re.search("act_|hush", f"{told} {reader.trouble_of(caught.value)}")


async def test_a_user_for_whom_nobody_can_ask_is_told_without_a_credential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.for_users[""] = say({"user_id": "Zoë" + "x" * 45 + CREDENTIAL})
        async with scene.bot(credential=CREDENTIAL):
            await scene.says(ada, "/start CODE")
        told = everything(caplog)
    assert "has an unusable user_id" in told
    assert "[hidden]" in told
    assert "act_" not in told


@pytest.mark.parametrize(
    "address", ["ftp://ada:hush@x/events", "http://ada:hush@[::1/events", "ada:hush@x", "http://ada:hu/hush@x:y/{task}"]
)
def test_an_address_that_is_refused_is_shown_without_its_password(address: str):
    with pytest.raises(DeclarationError) as told:
        BotSettings(token=SECRET, feed=address)
    assert "hush" not in str(told.value)


def test_a_traceback_is_logged_without_the_token():
    try:
        raise ZeroDivisionError(f"https://api.telegram.org/bot{SECRET}/getMe")
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "bot_turn_failed", None, sys.exc_info())
    assert Redaction(SECRET).filter(record)
    for formatter in (logging.Formatter(), JsonFormatter()):
        written = formatter.format(record)
        assert "ZeroDivisionError: https://api.telegram.org/bot[token]/getMe" in written
        assert SECRET not in written


def test_what_is_no_secret_stays():
    redaction = Redaction(SECRET, "https://a:b@x/", "https://plain.example/events", None)
    assert redaction.clean("a: b, https://plain.example/events, https://x/") == (
        "a: b, https://plain.example/events, https://x/"
    )
    assert redaction.clean("https://a:b@x/") == "https://[hidden]x/"
    assert without_userinfo("https://a:b@x:8/y?z=1@2") == "https://x:8/y?z=1@2"
