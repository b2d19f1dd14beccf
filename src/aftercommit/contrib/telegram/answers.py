"""Interprets answers of the Bot API. Pure: bytes in, one of a few values out.

An answer that is not in the Bot API's format came from a proxy or a load balancer. It is retried, whatever its status.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, assert_never

import msgspec

from aftercommit.backoff import Exponential
from aftercommit.client.wire import seconds_in
from aftercommit.text import MAX_ERROR_LENGTH

# A bad request with one of these phrases is about the chat, not about the message: no message can reach it.
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

_BACKOFF: Final = Exponential(base=1.0, maximum=30.0)


class ApiResult(msgspec.Struct, frozen=True):
    """The call succeeded."""

    result: Any = None


class Later(msgspec.Struct, frozen=True):
    """A retry may succeed. `seconds` is the wait that Telegram asks for; `limited` if there were too many requests."""

    reason: str
    seconds: float | None = None
    limited: bool = False


class Moved(msgspec.Struct, frozen=True):
    """The group has become a supergroup with another id."""

    chat_id: int


class Unreachable(msgspec.Struct, frozen=True):
    """No message can reach this chat: its user has `blocked` the bot, or it is `gone`."""

    kind: str
    reason: str


class Refused(msgspec.Struct, frozen=True):
    """Telegram does not accept this message; a retry does not help."""

    reason: str
    kind: str = "refused"


class Conflict(msgspec.Struct, frozen=True):
    """Another program with this token, or a webhook, gets the updates."""

    reason: str


class Denied(msgspec.Struct, frozen=True):
    """Telegram does not accept the token."""

    reason: str


Reply: TypeAlias = ApiResult | Later | Moved | Unreachable | Refused | Conflict | Denied


class _Body(msgspec.Struct):
    ok: bool
    result: Any = None
    error_code: int = 0
    description: str = ""
    parameters: dict[str, Any] = {}


def reason_of(reply: Reply) -> str:
    """The reason in a reply."""
    match reply:
        case ApiResult():
            return "an answer without a result"
        case Moved(chat_id=chat_id):
            return f"the chat is {chat_id} now"
        case Later() | Unreachable() | Refused() | Conflict() | Denied():
            return reply.reason
    assert_never(reply)


def wait_after(reply: Reply, failures: int, backoff: Exponential = _BACKOFF) -> float:
    """Seconds until the next attempt: the backoff, and at least as long as Telegram asks for."""
    asked = reply.seconds if isinstance(reply, Later) else None
    return max(asked or 0.0, backoff(failures, RuntimeError()) or 0.0)


def understand(status: int, body: bytes, clean: Callable[[str], str] = str) -> Reply:
    """Read an answer. `clean` removes secrets before the text is cut, because half a secret is one, too."""
    try:
        told = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = clean(body[:MAX_ERROR_LENGTH].decode("utf-8", "replace"))[:80]
        return Later(f"status {status} with a body that is not from the Bot API: {said!r}")
    if told.ok:
        return ApiResult(told.result)
    reason = clean(told.description or f"error {told.error_code or status}")[:MAX_ERROR_LENGTH]
    return _failure(told.error_code or status, reason, told.parameters)


def _failure(code: int, reason: str, parameters: dict[str, Any]) -> Reply:
    moved_to = parameters.get("migrate_to_chat_id")
    if isinstance(moved_to, int):
        return Moved(moved_to)
    match code:
        # Telegram answers 404 to a malformed token.
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
