"""The local Bot API server to a bot: shapes, errors and updates as Telegram has them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import pytest
import pytest_asyncio

from aftercommit.contrib.telegram.local_api import BotApiLimits, BotApiServer, Chat, ChatError
from aftercommit.errors import DeclarationError
from tests.testing.bots import BotClient, told

NO_LIMITS = BotApiLimits(overall=None, per_chat=None)
A_FILE = b'--x\r\nContent-Disposition: form-data; name="document"; filename="a"\r\n\r\nz\r\n--x--'


@pytest_asyncio.fixture
async def telegram() -> AsyncIterator[BotApiServer]:
    async with BotApiServer(limits=NO_LIMITS) as server:
        yield server


@pytest_asyncio.fixture
async def bot(telegram: BotApiServer) -> AsyncIterator[BotClient]:
    client = BotClient(telegram)
    yield client
    await client.http.aclose()


# For tests that ask one thing and look at nothing that others do.
@pytest.fixture(scope="module")
def shared_telegram() -> Iterator[BotApiServer]:
    with BotApiServer.in_thread(limits=NO_LIMITS) as server:
        yield server


@pytest_asyncio.fixture
async def shared_bot(shared_telegram: BotApiServer) -> AsyncIterator[BotClient]:
    client = BotClient(shared_telegram)
    yield client
    await client.http.aclose()


@pytest.fixture
def ada(telegram: BotApiServer) -> Chat:
    return telegram.open_chat("Ada", last_name="Lovelace", username="ada", language="en")


async def test_a_bot_learns_who_it_is(bot: BotClient, telegram: BotApiServer):
    me = (await bot.call("getMe")).result
    assert (me["id"], me["is_bot"], me["username"]) == (int(telegram.token.split(":")[0]), True, "aftercommit_bot")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (f"/bot999:{'A' * 35}/getMe", (401, "Unauthorized")),
        ("/botnonsense/getMe", (404, "Not Found")),
        ("/bot/getMe", (404, "Not Found")),
        ("/bot{token}", (404, "Not Found")),
        ("/bot{token}/noSuchMethod", (404, "Not Found: method not found")),
        ("/bot{token}/", (404, "Not Found: method not found")),
    ],
)
async def test_a_wrong_token_or_method_is_answered_as_telegram_does(
    shared_bot: BotClient, path: str, error: tuple[int, str]
):
    address = path.replace("{token}", shared_bot.telegram.token)
    assert told(await shared_bot.http.get(address)).error == error
    assert told(await shared_bot.http.post(address, json={})).error == error


async def test_a_message_arrives_and_is_told_back(bot: BotClient, telegram: BotApiServer, ada: Chat):
    sent = (await bot.send(ada, "<b>Hi</b> & <a href='https://example.org/x'>there</a>", parse_mode="HTML")).result
    assert sent["chat"] == {
        "id": ada.chat_id,
        "first_name": "Ada",
        "last_name": "Lovelace",
        "username": "ada",
        "type": "private",
    }
    assert sent["from"]["is_bot"] is True
    assert sent["text"] == "Hi & there"
    assert sent["entities"] == [
        {"offset": 0, "length": 2, "type": "bold"},
        {"offset": 5, "length": 5, "type": "text_link", "url": "https://example.org/x"},
    ]
    [message] = await telegram.messages(ada, 1)
    assert (message.message_id, message.text) == (sent["message_id"], "Hi & there")


async def test_commands_and_addresses_are_found_where_no_tag_says_otherwise(bot: BotClient, ada: Chat):
    text = "😀 /status, <code>/no</code> and/or <b>see https://example.org/a?b.</b> <a href='https://x.org'>/no</a> a/b"
    told = (await bot.send(ada, text, parse_mode="HTML")).result
    found = [(each["type"], utf16_slice(told["text"], each)) for each in told["entities"]]
    assert found == [
        ("bot_command", "/status"),
        ("code", "/no"),
        ("bold", "see https://example.org/a?b."),
        ("url", "https://example.org/a?b"),
        ("text_link", "/no"),
    ]


def utf16_slice(text: str, entity: dict[str, int]) -> str:
    units = text.encode("utf-16-le")
    return units[2 * entity["offset"] : 2 * (entity["offset"] + entity["length"])].decode("utf-16-le")


async def test_arguments_come_in_every_way_that_telegram_takes(bot: BotClient, telegram: BotApiServer, ada: Chat):
    address = f"/bot{telegram.token}/sendMessage"
    fields = {"chat_id": str(ada.chat_id), "text": "größer & <kleiner>"}
    await bot.http.get(address, params=fields)
    await bot.http.post(address, params=fields)
    await bot.http.post(address, json={**fields, "chat_id": ada.chat_id, "protect_content": True})
    await bot.http.post(address, data=fields)
    await bot.http.post(address, files={name: (None, value) for name, value in fields.items()})
    await bot.http.get(address.replace("sendMessage", "SENDmessage"), params=fields)
    assert [message.text for message in telegram.sent(ada)] == [fields["text"]] * 6


async def test_a_chat_is_found_by_its_persons_name_too(bot: BotClient, telegram: BotApiServer, ada: Chat):
    assert (await bot.call("sendMessage", chat_id="@ada", text="x")).result["chat"]["id"] == ada.chat_id
    assert (await bot.call("getChat", chat_id=ada.chat_id)).result["first_name"] == "Ada"


@pytest.mark.parametrize(
    ("arguments", "description"),
    [
        ({"text": "x"}, "chat_id is empty"),
        ({"chat_id": 1, "text": "x"}, "chat not found"),
        ({"chat_id": "@nobody", "text": "x"}, "chat not found"),
        ({"chat_id": "nonsense", "text": "x"}, "chat not found"),
        ({"chat_id": "ada"}, "message text is empty"),
        ({"chat_id": "ada", "text": " \n\t "}, "message text is empty"),
        ({"chat_id": "ada", "text": "<b></b>", "parse_mode": "HTML"}, "message text is empty"),
        ({"chat_id": "ada", "text": "x" * 4097}, "message is too long"),
        ({"chat_id": "ada", "text": "𝔘" * 2049}, "message is too long"),
        ({"chat_id": "ada", "text": "x" * 40_000}, "text is too long"),
        ({"chat_id": "ada", "text": "x", "parse_mode": "Creole"}, "unsupported parse_mode"),
        ({"chat_id": "ada", "text": "*x*", "parse_mode": "MarkdownV2"}, "unsupported parse_mode: this local server"),
        ({"chat_id": "ada", "text": "<b>x", "parse_mode": "HTML"}, "can't parse entities: Can't find end tag"),
        ({"chat_id": "ada", "text": "x", "reply_markup": "{"}, "can't parse reply keyboard markup JSON object"),
        ({"chat_id": "ada", "text": "x", "reply_markup": "[]"}, "object expected as reply markup"),
        ({"chat_id": "ada", "text": "x", "reply_markup": {"inline_keyboard": [{}]}}, "field of the type Array"),
        (
            {"chat_id": "ada", "text": "x", "reply_markup": {"inline_keyboard": [[{"text": "go"}]]}},
            "text buttons are unallowed in the inline keyboard",
        ),
        (
            {"chat_id": "ada", "text": "x", "reply_markup": {"inline_keyboard": [[{"text": "y", "url": "http://me"}]]}},
            "inline keyboard button URL 'http://me' is invalid: Wrong HTTP URL",
        ),
        (
            {
                "chat_id": "ada",
                "text": "x",
                "reply_markup": {"inline_keyboard": [[{"text": "y", "callback_data": ""}]]},
            },
            "BUTTON_DATA_INVALID",
        ),
        ({"chat_id": "ada", "text": "x", "entities": [{"type": "loud"}]}, "can't parse MessageEntity"),
        ({"chat_id": "ada", "text": "x", "reply_parameters": {"message_id": 99}}, "message to be replied not found"),
    ],
)
async def test_what_telegram_refuses_is_refused(
    shared_bot: BotClient, shared_telegram: BotApiServer, arguments: dict[str, object], description: str
):
    ada = shared_telegram.open_chat("Ada")
    if arguments.get("chat_id") == "ada":
        arguments = {**arguments, "chat_id": ada.chat_id}
    status, said = (await shared_bot.call("sendMessage", **arguments)).error
    assert status == 400
    assert said.startswith(f"Bad Request: {description}")
    assert shared_telegram.sent(ada) == []


async def test_the_length_of_a_text_is_counted_after_its_tags_are_read(bot: BotClient, ada: Chat):
    longest = "<b>" + "&amp;" * 4096 + "</b>"
    assert (await bot.send(ada, longest, parse_mode="HTML")).result["text"] == "&" * 4096
    assert (await bot.send(ada, longest + "!", parse_mode="HTML")).status == 400


async def test_control_characters_become_spaces(bot: BotClient, ada: Chat):
    assert (await bot.send(ada, "a\x00b\r\nc\x1fd")).result["text"] == "a b\nc d"


async def test_buttons_and_replies_are_kept(bot: BotClient, telegram: BotApiServer, ada: Chat):
    asked = telegram.write(ada, "and?")
    keyboard = {"inline_keyboard": [[{"text": "Open", "url": "http://127.0.0.1:8090/tasks/board/7"}]]}
    sent = await bot.send(ada, "Yes", reply_markup=keyboard, reply_parameters={"message_id": asked.message_id})
    assert sent.result["reply_markup"] == keyboard
    assert sent.result["reply_to_message"]["text"] == "and?"
    lenient = {"message_id": 12345, "allow_sending_without_reply": True}
    assert "reply_to_message" not in (await bot.send(ada, "Yes", reply_parameters=lenient)).result


async def test_a_message_is_edited_once_it_differs(bot: BotClient, telegram: BotApiServer, ada: Chat):
    sent = (await bot.send(ada, "one")).result
    about = {"chat_id": ada.chat_id, "message_id": sent["message_id"]}
    edited = (await bot.call("editMessageText", **about, text="<i>two</i>", parse_mode="HTML")).result
    assert (edited["text"], edited["edit_date"] >= sent["date"]) == ("two", True)
    again = await bot.call("editMessageText", **about, text="<i>two</i>", parse_mode="HTML")
    assert again.error[1].startswith("Bad Request: message is not modified")
    theirs = telegram.write(ada, "mine")
    for number, said in ((theirs.message_id, "message can't be edited"), (999, "message to edit not found")):
        refused = await bot.call("editMessageText", chat_id=ada.chat_id, message_id=number, text="x")
        assert refused.error == (400, f"Bad Request: {said}")


async def test_commands_are_set_per_scope_and_language(bot: BotClient, telegram: BotApiServer):
    commands = [{"command": "start", "description": "begin"}, {"command": "help", "description": "what I can do"}]
    assert (await bot.call("setMyCommands", commands=commands)).result is True
    assert (await bot.call("setMyCommands", commands=json.dumps(commands[:1]), language_code="de")).result is True
    assert (await bot.call("getMyCommands")).result == commands
    assert (await bot.call("getMyCommands", language_code="de")).result == commands[:1]
    assert (await bot.call("getMyCommands", scope={"type": "all_private_chats"})).result == []
    assert telegram.commands() == commands
    assert (await bot.call("deleteMyCommands")).result is True
    assert (await bot.call("getMyCommands")).result == []


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ("{", "can't parse commands JSON object"),
        ({}, "expected an Array of BotCommand"),
        ([1], "can't parse BotCommand: expected an Object with command and description"),
        ([{"command": "Start", "description": "x"}], "BOT_COMMAND_INVALID"),
        ([{"command": "x" * 33, "description": "x"}], "BOT_COMMAND_INVALID"),
        ([{"command": "x", "description": ""}], "BOT_COMMAND_DESCRIPTION_INVALID"),
        ([{"command": f"c{n}", "description": "x"} for n in range(101)], "BOT_COMMANDS_TOO_MUCH"),
    ],
)
async def test_commands_that_telegram_refuses(shared_bot: BotClient, commands: object, said: str):
    assert (await shared_bot.call("setMyCommands", commands=commands)).error == (400, f"Bad Request: {said}")


async def test_a_chat_action_has_to_be_one(bot: BotClient, ada: Chat):
    assert (await bot.call("sendChatAction", chat_id=ada.chat_id, action="typing")).result is True
    refused = await bot.call("sendChatAction", chat_id=ada.chat_id, action="dancing")
    assert refused.error == (400, "Bad Request: wrong parameter action in request")


async def test_updates_stay_until_they_are_confirmed(bot: BotClient, telegram: BotApiServer, ada: Chat):
    for text in ("/start CODE", "hello", "bye"):
        telegram.write(ada, text)
    first, second, third = (await bot.call("getUpdates")).result
    assert first["message"]["text"] == "/start CODE"
    assert first["message"]["entities"] == [{"offset": 0, "length": 6, "type": "bot_command"}]
    assert first["message"]["from"]["language_code"] == "en"
    assert (await bot.call("getUpdates", limit=1)).result == [first]
    assert (await bot.call("getUpdates", offset=second["update_id"])).result == [second, third]
    assert (await bot.call("getUpdates")).result == [second, third]
    assert (await bot.call("getUpdates", offset=-1)).result == [third]
    assert (await bot.call("getUpdates", offset=third["update_id"] + 1)).result == []
    assert (await bot.call("getUpdates")).result == []


async def test_a_long_poll_is_answered_when_somebody_writes(bot: BotClient, telegram: BotApiServer, ada: Chat):
    polling = asyncio.create_task(bot.call("getUpdates", timeout=50))
    await telegram.called("getUpdates")
    telegram.write(ada, "hello")
    assert [update["message"]["text"] for update in (await polling).result] == ["hello"]


async def test_a_long_poll_without_news_ends_empty(bot: BotClient):
    assert (await bot.call("getUpdates", timeout=1)).result == []


async def test_a_second_poll_ends_the_first_with_a_conflict(bot: BotClient, telegram: BotApiServer, ada: Chat):
    first = asyncio.create_task(bot.call("getUpdates", timeout=50))
    await telegram.called("getUpdates", 1)
    second = asyncio.create_task(bot.call("getUpdates", timeout=50))
    status, said = (await first).error
    assert (status, said.startswith("Conflict: terminated by other getUpdates request")) == (409, True)
    telegram.write(ada, "for the second")
    assert len((await second).result) == 1


async def test_only_the_kinds_of_updates_that_were_asked_for_come(bot: BotClient, telegram: BotApiServer, ada: Chat):
    await bot.call("getUpdates", allowed_updates=["message"])
    telegram.block(ada)
    telegram.unblock(ada)
    telegram.write(ada, "only this")
    # Not given, it stays as it was; an empty list is the usual kinds again.
    assert [list(update)[1] for update in (await bot.call("getUpdates")).result] == ["message"]
    await bot.call("getUpdates", allowed_updates=[])
    telegram.block(ada)
    kinds = [list(update)[1] for update in (await bot.call("getUpdates")).result]
    assert kinds == ["message", "my_chat_member"]


async def test_a_bot_is_told_that_it_was_blocked(bot: BotClient, telegram: BotApiServer, ada: Chat):
    telegram.block(ada)
    [update] = (await bot.call("getUpdates")).result
    assert update["my_chat_member"]["new_chat_member"]["status"] == "kicked"
    assert (await bot.send(ada, "x")).error == (403, "Forbidden: bot was blocked by the user")
    assert (await bot.call("sendChatAction", chat_id=ada.chat_id, action="typing")).status == 403
    telegram.unblock(ada)
    assert (await bot.send(ada, "x")).status == 200


async def test_a_chat_that_is_gone_is_not_found(bot: BotClient, telegram: BotApiServer, ada: Chat):
    telegram.forget_chat(ada)
    assert (await bot.send(ada, "x")).error == (400, "Bad Request: chat not found")


async def test_a_webhook_that_was_never_set_is_deleted(bot: BotClient, telegram: BotApiServer, ada: Chat):
    telegram.write(ada, "dropped")
    answer = await bot.call("deleteWebhook", drop_pending_updates=True)
    assert answer.body == {"ok": True, "result": True, "description": "Webhook is already deleted"}
    assert (await bot.call("getWebhookInfo")).result["pending_update_count"] == 0


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b'{"text": "\xff"}', "application/json", 400),
        (b"[" * 200_000, "application/json", 400),
        (b"text=%ff", "application/x-www-form-urlencoded", 400),
        (b"text=\xff", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a%d=1" % n for n in range(500)), "application/x-www-form-urlencoded", 400),
        (b"--x\r\nnonsense", "multipart/form-data; boundary=x", 400),
        (b"nonsense", "multipart/form-data", 400),
        (A_FILE, "multipart/form-data; boundary=x", 400),
        (b"x" * (1 << 20) + b"x", "application/json", 413),
        (b'{"chat_id": 1, "text": "\\ud800"}', "application/json", 400),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(shared_bot: BotClient, content: bytes, kind: str, status: int):
    address = f"/bot{shared_bot.telegram.token}/sendMessage"
    answer = told(await shared_bot.http.post(address, content=content, headers={"Content-Type": kind}))
    assert answer.error[0] == status
    assert (await shared_bot.call("getMe")).status == 200


async def test_a_method_that_http_does_not_use_here_is_refused(bot: BotClient):
    assert told(await bot.http.put(f"/bot{bot.telegram.token}/getMe")).error == (405, "Method Not Allowed")


async def test_a_query_may_hold_anything(bot: BotClient, ada: Chat):
    for text in ("\x00", "💥", "/../..", "%", "' or 1=1", "a" * 3000):
        answer = await bot.http.get(f"/bot{bot.telegram.token}/sendMessage?chat_id={ada.chat_id}&text={quote(text)}")
        assert answer.status_code in (200, 400)


async def test_a_bot_in_another_thread_is_served(telegram: BotApiServer, ada: Chat):
    with BotApiServer.in_thread(limits=NO_LIMITS) as other:
        grace = other.open_chat("Grace")
        client = BotClient(other)
        await client.send(grace, "from a thread")
        await client.http.aclose()
        assert [message.text for message in other.wait_for_messages(grace)] == ["from a thread"]
        assert len(other.wait_for_calls("sendMessage", chat=grace)) == 1
        assert other.wait_until(lambda: other.sent(grace) or None)


async def test_waiting_for_what_does_not_come_says_what_came(telegram: BotApiServer, bot: BotClient, ada: Chat):
    await bot.send(ada, "one")
    with pytest.raises(AssertionError, match=r"expected 2 messages, got \['one'\]"):
        await telegram.messages(ada, 2, timeout=0.01)
    with pytest.raises(AssertionError, match=r"expected 2 calls of sendMessage, got \[Call\("):
        telegram.wait_for_calls("sendMessage", 2, timeout=0.01)


async def test_a_server_that_stops_lets_its_polls_go():
    async with BotApiServer() as server:
        client = BotClient(server)
        polling = asyncio.create_task(client.call("getUpdates", timeout=50))
        await server.called("getUpdates")
    assert (await polling).result == []
    await client.http.aclose()


def test_people_do_what_people_can(telegram: BotApiServer, ada: Chat):
    with pytest.raises(ChatError, match="chat 5 does not exist"):
        telegram.write(5, "x")
    with pytest.raises(ChatError, match="the message is empty"):
        telegram.write(ada, "  ")
    with pytest.raises(ChatError, match=f"chat {ada.chat_id} exists, or is not between"):
        telegram.open_chat("Ada", chat_id=ada.chat_id)
    with pytest.raises(ChatError, match="must have 1 to 64 characters"):
        telegram.open_chat(" ")
    telegram.block(ada)
    with pytest.raises(ChatError, match="the bot is blocked in chat"):
        telegram.write(ada, "x")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": "secret"}, "the token must be digits"),
        ({"host": "0.0.0.0"}, "listens on this machine only, not on 0.0.0.0"),
    ],
)
def test_a_server_that_cannot_be_is_not_made(options: dict[str, object], said: str):
    with pytest.raises(DeclarationError, match=said) as caught:
        BotApiServer(**options)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
