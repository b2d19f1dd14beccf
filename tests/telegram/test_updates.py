"""What is written to the bot is understood: commands, addressed or not, in private chats and in groups."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.contrib.telegram.updates import ChatCommand, Membership, Renumbered, heard

BOT = "Aftercommit_bot"


def message(text: str, chat_type: str = "private", **fields: Any) -> dict[str, Any]:
    chat = {"id": -5 if chat_type != "private" else 5, "type": chat_type}
    return {"update_id": 1, "message": {"chat": chat, "from": {"id": 5, "language_code": "de"}, "text": text, **fields}}


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/start", "start", ""),
        ("/start  ABC-DEF ", "start", "ABC-DEF"),
        ("/MUTE 2h", "mute", "2h"),
        ("/status@aftercommit_BOT", "status", ""),
        ("/mute@aftercommit_bot 2h", "mute", "2h"),
        ("hello there", "", "hello there"),
        ("/status@other_bot", "", "/status@other_bot"),
    ],
)
def test_a_private_chat_says_commands_with_or_without_the_bots_name(text: str, name: str, argument: str):
    assert heard(message(text), BOT) == ChatCommand(5, name, argument, "de", private=True)


@pytest.mark.parametrize("text", ["/status", "/status@other_bot", "hello @aftercommit_bot", "hello", "/"])
def test_a_group_is_not_overheard(text: str):
    assert heard(message(text, "supergroup"), BOT) is None


ANONYMOUS = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}


def test_an_administrator_who_stays_anonymous_is_heard_and_other_bots_and_channels_are_not():
    said = f"/status@{BOT}"
    as_group = {"from": ANONYMOUS, "sender_chat": {"id": -5, "type": "supergroup"}}
    assert heard(message(said, "supergroup", **as_group), BOT) == ChatCommand(-5, "status", "", None, private=False)
    as_channel = {"from": {"id": 136817688, "is_bot": True}, "sender_chat": {"id": -7, "type": "channel"}}
    assert heard(message(said, "supergroup", **as_channel), BOT) is None
    assert heard(message(said, "supergroup", **{"from": {"id": 9, "is_bot": True}}), BOT) is None


def test_a_topic_is_one_of_a_forum_and_no_chain_of_replies():
    said = f"/status@{BOT}"
    in_topic = heard(message(said, "supergroup", message_thread_id=42, is_topic_message=True), BOT)
    assert in_topic == ChatCommand(-5, "status", "", "de", private=False, topic=42)
    reply = heard(message(said, "supergroup", message_thread_id=42), BOT)
    assert reply == ChatCommand(-5, "status", "", "de", private=False)


@pytest.mark.parametrize("kind", ["channel_post", "edited_message", "edited_channel_post", "message_reaction"])
def test_what_is_no_message_to_the_bot_says_nothing(kind: str):
    assert heard({"update_id": 1, kind: message("/start")["message"]}, BOT) is None


def test_a_group_that_names_the_bot_is_heard():
    assert heard(message("/start@aftercommit_bot CODE", "group"), BOT) == ChatCommand(-5, "start", "CODE", "de", False)


@pytest.mark.parametrize(("status", "member"), [("kicked", False), ("left", False), ("member", True)])
def test_the_bot_hears_that_it_was_blocked_and_that_it_is_welcome_again(status: str, member: bool):
    update = {"update_id": 1, "my_chat_member": {"chat": {"id": 5}, "new_chat_member": {"status": status}}}
    assert heard(update, BOT) == Membership(5, member)


def test_the_bot_hears_that_a_group_became_a_supergroup():
    assert heard(message("", "group", migrate_to_chat_id=-1001), BOT) == Renumbered(-5, -1001)


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"message": None},
        {"message": {}},
        {"message": {"chat": {"id": "x"}, "text": "/start"}},
        {"message": {"chat": {"id": 5, "type": "private"}, "photo": []}},
        {"message": {"chat": {"id": 5, "type": "private"}, "from": {"is_bot": True}, "text": "/start"}},
        {"edited_message": {"chat": {"id": 5, "type": "private"}, "text": "/start"}},
        {"my_chat_member": {}},
    ],
)
def test_what_says_nothing_to_the_bot_is_passed_over(update: dict[str, Any]):
    assert heard(update, BOT) is None


@pytest.mark.thorough
@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.dictionaries(
            st.sampled_from(["message", "chat", "from", "id", "type", "text", "my_chat_member", "new_chat_member"]),
            inner,
        ),
    )
)
def test_no_update_is_too_strange(update: Any):
    if isinstance(update, dict):
        heard(update, BOT)
