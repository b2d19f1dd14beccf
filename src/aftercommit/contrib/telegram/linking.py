"""One-time codes: who a chat may be linked to. Ours are kept hashed in the bot's state, others the backend knows."""

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
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.state import Code, Store
from aftercommit.contrib.telegram.trouble import BackendTrouble

# No letters and digits that look alike; ten of them are 49 bits, and a code lasts minutes.
_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_LENGTH: Final = 10
LONGEST_CODE: Final = 64
_TRIES: Final = 5
_TRY_SECONDS: Final = 600.0
_REMEMBERED: Final = 10_000
_LONGEST_NAME: Final = 200
_LONGEST_USER: Final = 200


class Wrong(msgspec.Struct, frozen=True):
    """The code does not count."""


class Unchecked(msgspec.Struct, frozen=True):
    """Whether it counts cannot be told at the moment."""

    trouble: BackendTrouble


Redeemed: TypeAlias = Code | Wrong | Unchecked


def issue_code(store: Store, user_id: str, name: str, lifetime: timedelta) -> str:
    """A new code for a user, of which only the hash is kept."""
    code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    store.put_code(hash_of(code), Code(user_id, name), utc_now() + lifetime)
    return code


def can_be_user(user_id: str) -> bool:
    """Whether the feed can be asked for this user: that takes a header or an address."""
    plain = user_id.isascii() and user_id.isprintable() and user_id == user_id.strip()
    return plain and 0 < len(user_id) <= _LONGEST_USER


def hash_of(code: str) -> str:
    """What is kept of a code, however large its letters are. It is random and short-lived, so a quick hash does."""
    return hashlib.sha256(code.upper().encode("utf-8", "replace")).hexdigest()


class Guesses:
    """How many wrong codes came from each chat, so that nobody guesses at leisure. Pure; bounded."""

    def __init__(self) -> None:
        """None."""
        self._wrong: OrderedDict[int, tuple[float, int]] = OrderedDict()

    def wait(self, chat_id: int, now: float) -> float:
        """Seconds until this chat may try again."""
        since, wrong = self._wrong.get(chat_id, (now, 0))
        return max(0.0, since + _TRY_SECONDS - now) if wrong >= _TRIES else 0.0

    def count(self, chat_id: int, now: float) -> None:
        """A wrong code."""
        since, wrong = self._wrong.pop(chat_id, (now, 0))
        if since + _TRY_SECONDS <= now:
            since, wrong = now, 0
        self._wrong[chat_id] = (since, wrong + 1)
        if len(self._wrong) > _REMEMBERED:
            self._wrong.popitem(last=False)


class Codes:
    """Redeems codes: ours first, then at the backend."""

    def __init__(self, settings: BotSettings, memory: Memory, reader: BackendReader) -> None:
        """Nothing is asked yet."""
        self._settings = settings
        self._memory = memory
        self._reader = reader

    async def redeem(self, code: str) -> Redeemed:
        """Whom the code stands for."""
        now = utc_now()
        found = await self._memory.do(lambda store: store.take_code(hash_of(code), now))
        if found is not None or self._settings.redeem is None:
            return found or Wrong()
        told = await self._reader.redeem(code)
        if isinstance(told, PollFailed):
            # It is the answer to a code that is not known, used or expired; a malformed one may be a bad request.
            return Wrong() if told.status in (400, 404, 410, 422) else Unchecked(told.trouble)
        user_id = str(told["user_id"])
        if not can_be_user(user_id):
            problem = Unreadable("the answer has a user_id for which nobody can ask", user_id)
            return Unchecked(self._reader.unreadable(problem))
        return Code(user_id, str(told.get("name") or user_id)[:_LONGEST_NAME])
