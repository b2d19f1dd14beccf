"""What Telegram answers is understood: delivered, later, elsewhere, never to this chat, never at all."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.backoff import Exponential
from aftercommit.contrib.telegram.answers import (
    ApiResult,
    Conflict,
    Denied,
    Later,
    Moved,
    Refused,
    Reply,
    Unreachable,
    reason_of,
    understand,
    wait_after,
)


def failure(code: int, description: str, **parameters: Any) -> bytes:
    told = {"ok": False, "error_code": code, "description": description}
    return json.dumps({**told, **({"parameters": parameters} if parameters else {})}).encode()


def test_a_message_that_was_taken_is_done():
    assert understand(200, b'{"ok":true,"result":{"message_id":7}}') == ApiResult({"message_id": 7})


@pytest.mark.contract("T11")
@pytest.mark.parametrize(
    ("code", "description", "kind"),
    [
        (403, "Forbidden: bot was blocked by the user", "blocked"),
        (403, "Forbidden: user is deactivated", "blocked"),
        (403, "Forbidden: bot was kicked from the group chat", "blocked"),
        (403, "Forbidden: bot can't initiate conversation with a user", "blocked"),
        (400, "Bad Request: chat not found", "gone"),
        (400, "Bad Request: PEER_ID_INVALID", "gone"),
        (400, "Bad Request: group chat was deactivated", "gone"),
        (400, "Bad Request: not enough rights to send text messages to the chat", "gone"),
    ],
)
def test_no_message_gets_into_a_chat_that_is_blocked_or_gone(code: int, description: str, kind: str):
    assert understand(code, failure(code, description)) == Unreachable(kind, description)


@pytest.mark.parametrize(
    ("code", "description"),
    [
        (400, "Bad Request: can't parse entities: Unsupported start tag"),
        (400, "Bad Request: message is too long"),
        (400, "Bad Request: message text is empty"),
        (413, "Request Entity Too Large"),
    ],
)
def test_a_message_that_telegram_does_not_take_is_refused_and_not_its_chat(code: int, description: str):
    assert understand(code, failure(code, description)) == Refused(description)


@pytest.mark.contract("T11")
def test_a_limit_says_how_long_to_wait():
    answer = failure(429, "Too Many Requests: retry after 17", retry_after=17)
    assert understand(429, answer) == Later("Too Many Requests: retry after 17", 17.0, limited=True)
    assert understand(429, failure(429, "Too Many Requests")) == Later("Too Many Requests", None, limited=True)


def test_a_group_that_became_a_supergroup_says_where_it_is():
    answer = failure(400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=-1001)
    assert understand(400, answer) == Moved(-1001)


@pytest.mark.parametrize("code", [401, 404])
def test_a_token_that_is_not_known_is_denied(code: int):
    assert understand(code, failure(code, "Unauthorized")) == Denied("Unauthorized")


def test_a_second_program_with_the_token_is_a_conflict():
    said = "Conflict: terminated by other getUpdates request"
    assert understand(409, failure(409, said)) == Conflict(said)


@pytest.mark.parametrize("code", [500, 502, 503, 504, 420])
def test_trouble_at_telegram_passes(code: int):
    assert isinstance(understand(code, failure(code, "Internal Server Error")), Later)


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 500, 502])
@pytest.mark.parametrize("body", [b"", b"<html>Access denied</html>", b"[]", b'{"error": "no"}', b"\xff\xfe"])
def test_what_a_proxy_says_is_not_telegrams_word(status: int, body: bytes):
    assert isinstance(understand(status, body), Later)


@pytest.mark.thorough
@given(
    st.integers(100, 599), st.binary(max_size=200) | st.text(max_size=100).map(lambda text: json.dumps(text).encode())
)
def test_every_answer_means_something(status: int, body: bytes):
    understand(status, body)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (ApiResult(), "an answer without a result"),
        (Moved(-7), "the chat is -7 now"),
        *((reply, "because") for reply in (Later("because"), Refused("because"), Unreachable("gone", "because"))),
        *((reply, "because") for reply in (Conflict("because"), Denied("because"))),
    ],
)
def test_every_reply_says_why(reply: Reply, words: str):
    assert reason_of(reply) == words


def test_the_next_attempt_waits_as_long_as_telegram_asks_for_and_longer_the_more_have_failed():
    steady = Exponential(base=1.0, maximum=30.0, jitter=0.0)
    assert [wait_after(Later("x"), failures, steady) for failures in (1, 2, 3, 9)] == [1.0, 2.0, 4.0, 30.0]
    assert wait_after(Later("x", 7.0, limited=True), 1, steady) == 7.0
    assert wait_after(Conflict("x"), 2, steady) == 2.0


def test_what_nobody_may_see_is_taken_out_before_anything_is_cut():
    told = understand(502, b"x" * 75 + b"secret", lambda text: text.replace("secret", "***"))
    assert told == Later(f"status 502 with a body that is not from the Bot API: '{'x' * 75}***'")
    assert understand(403, failure(403, "a secret"), lambda text: text.replace("secret", "***")) == (
        Unreachable("blocked", "a ***")
    )
