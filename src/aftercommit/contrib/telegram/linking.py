"""Link codes. The bot stores its own as hashes; all others are redeemed at the backend."""

import hashlib
import secrets
from collections import OrderedDict
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from aftercommit.client.wire import Unreadable
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.reader import BackendReader, PollFailed
from aftercommit.contrib.telegram.state import Code
from aftercommit.contrib.telegram.states.sql import Store
from aftercommit.contrib.telegram.trouble import BackendTrouble

# No characters that look alike. Ten of them are 50 bits, and a code lasts minutes.
_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_LENGTH: Final = 10
LONGEST_CODE: Final = 64
_TRIES: Final = 5
_TRY_SECONDS: Final = 600.0
_REMEMBERED: Final = 10_000
_LONGEST_USER: Final = 200


class Wrong(msgspec.Struct, frozen=True):
    """The code is not valid."""


class Unchecked(msgspec.Struct, frozen=True):
    """The code could not be checked."""

    trouble: BackendTrouble


Redeemed: TypeAlias = Code | Wrong | Unchecked


def issue_code(store: Store, user_id: str, name: str, lifetime: timedelta) -> str:
    """Make a new code for a user, and store its hash."""
    code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    store.put_code(hash_of(code), Code(user_id, name), utc_now() + lifetime)
    return code


def can_be_user(user_id: str) -> bool:
    """Whether this user id fits into a header or an address."""
    plain = user_id.isascii() and user_id.isprintable() and user_id == user_id.strip()
    return plain and 0 < len(user_id) <= _LONGEST_USER


def hash_of(code: str) -> str:
    """The stored hash of a code, in any case. Codes are random and short-lived, so a fast hash is enough."""
    return hashlib.sha256(code.upper().encode("utf-8", "replace")).hexdigest()


class Guesses:
    """Limits wrong codes per chat, against guessing. Pure; bounded."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[int, tuple[float, int]] = OrderedDict()

    def wait(self, chat_id: int, now: float) -> float:
        """Seconds until this chat may try again."""
        since, wrong = self._wrong.get(chat_id, (now, 0))
        return max(0.0, since + _TRY_SECONDS - now) if wrong >= _TRIES else 0.0

    def count(self, chat_id: int, now: float) -> None:
        """Count a wrong code."""
        since, wrong = self._wrong.pop(chat_id, (now, 0))
        if since + _TRY_SECONDS <= now:
            since, wrong = now, 0
        self._wrong[chat_id] = (since, wrong + 1)
        if len(self._wrong) > _REMEMBERED:
            self._wrong.popitem(last=False)


async def redeem(code: str, memory: Memory, reader: BackendReader) -> Redeemed:
    """The user of a code: first of the bot's own codes, then at the backend."""
    now = utc_now()
    found = await memory.do(lambda store: store.take_code(hash_of(code), now))
    if found is not None or not reader.redeems:
        return found or Wrong()
    told = await reader.redeem(code)
    if isinstance(told, PollFailed):
        # A wrong, used or expired code; 400 and 422 are for malformed ones.
        return Wrong() if told.status in (400, 404, 410, 422) else Unchecked(told.trouble)
    user_id = str(told["user_id"])
    if not can_be_user(user_id):
        return Unchecked(reader.unreadable(Unreadable("the answer has an unusable user_id", user_id)))
    return Code(user_id, str(told.get("name") or user_id)[:_LONGEST_USER])
