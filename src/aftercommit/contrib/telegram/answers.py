"""What an answer of the Bot API means for a message and its chat. Pure: bytes in, one of a few values out.

Only Telegram's own words count. An answer that is not of the Bot API's form came from something in between, a proxy or
a load balancer, and passes, whatever its status says.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, assert_never

import msgspec

from aftercommit.backoff import Exponential
from aftercommit.client.wire import seconds_in
from aftercommit.text import MAX_ERROR_LENGTH

# A bad request is about the message, unless it says one of these: then no message will ever get into that chat.
_NO_SUCH_CHAT: Final = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "group chat was deactivated",
    "the group chat was deleted",
    "chat_write_forbidden",
    "chat_send_plain_forbidden",
    "chat_restricted",
    "topic_closed",
    "not enough rights",
    "have no rights to send",
    "need administrator rights",
    "bot is not a member",
    "bot was kicked",
)

# How much is quoted of an answer that is not of the Bot API.
_QUOTED: Final = 80
_BACKOFF: Final = Exponential(base=1.0, maximum=30.0)


class ApiResult(msgspec.Struct, frozen=True):
    """Telegram did it."""

    result: Any = None


class Later(msgspec.Struct, frozen=True):
    """It may succeed later. `seconds` is how long Telegram asks to wait; `limited` if it was asked too much."""

    reason: str
    seconds: float | None = None
    limited: bool = False


class Moved(msgspec.Struct, frozen=True):
    """The group has become a supergroup and is to be found under another number."""

    chat_id: int


class Unreachable(msgspec.Struct, frozen=True):
    """No message gets into this chat: `blocked` by its user, or `gone`."""

    kind: str
    reason: str


class Refused(msgspec.Struct, frozen=True):
    """Telegram will never take this message."""

    reason: str


class Conflict(msgspec.Struct, frozen=True):
    """Somebody else gets the updates: another program with this token, or a webhook."""

    reason: str


class Denied(msgspec.Struct, frozen=True):
    """Telegram does not know the token, or no longer."""

    reason: str


Reply: TypeAlias = ApiResult | Later | Moved | Unreachable | Refused | Conflict | Denied


class _Body(msgspec.Struct):
    ok: bool
    result: Any = None
    error_code: int = 0
    description: str = ""
    parameters: dict[str, Any] = {}


def reason_of(reply: Reply) -> str:
    """What a reply says of itself."""
    match reply:
        case ApiResult():
            return "an answer that says nothing"
        case Moved(chat_id=chat_id):
            return f"the chat is {chat_id} now"
        case Later() | Unreachable() | Refused() | Conflict() | Denied():
            return reply.reason
    assert_never(reply)


def wait_after(reply: Reply, failures: int, backoff: Exponential = _BACKOFF) -> float:
    """Seconds until the next attempt after so many that failed: as long as Telegram asks for, or longer."""
    asked = reply.seconds if isinstance(reply, Later) else None
    return max(asked or 0.0, backoff(failures, RuntimeError()) or 0.0)


def understand(status: int, body: bytes, clean: Callable[[str], str] = str) -> Reply:
    """What an answer says. `clean` takes out what nobody may see, before anything is cut: half a secret is one, too."""
    try:
        told = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = clean(body[:MAX_ERROR_LENGTH].decode("utf-8", "replace"))[:_QUOTED]
        return Later(f"an answer {status} that is not of the Bot API: {said!r}")
    if told.ok:
        return ApiResult(told.result)
    reason = clean(told.description or f"error {told.error_code or status}")[:MAX_ERROR_LENGTH]
    return _failure(told.error_code or status, reason, told.parameters)


def _failure(code: int, reason: str, parameters: dict[str, Any]) -> Reply:
    moved_to = parameters.get("migrate_to_chat_id")
    if isinstance(moved_to, int):
        return Moved(moved_to)
    match code:
        # Telegram answers 404 to a token that has not even the form of one.
        case 401 | 404:
            return Denied(reason)
        case 403:
            return Unreachable("blocked", reason)
        case 409:
            return Conflict(reason)
        case 429:
            return Later(reason, seconds_in(parameters.get("retry_after")), limited=True)
        case 400 | 413:
            gone = any(words in reason.lower() for words in _NO_SUCH_CHAT)
            return Unreachable("gone", reason) if gone else Refused(reason)
    return Later(reason, seconds_in(parameters.get("retry_after")))
