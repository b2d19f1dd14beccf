"""Link codes: a user gets a code and sends it to the bot, which learns who they are. A code works once and expires.

The database stores a hash. A new code replaces the previous one. A wrong, a used and an expired code all get the same
answer.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from systems.host.http import Connection, changing
from systems.tasks.service.errors import NoSuchCode
from systems.tasks.service.people import find_person

LIFETIME: Final = timedelta(minutes=10)
# No characters that look alike. Twelve of 32 are 60 bits. Anyone who reads the hash could use it only until the code
# expires.
ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
GROUPS: Final = 3
LETTERS: Final = 4
LONGEST: Final = 64


@dataclass(frozen=True, slots=True)
class LinkCode:
    """A code, shown once. `start` is the message to send to the bot."""

    code: str
    expires_at: datetime
    start: str


@dataclass(frozen=True, slots=True)
class Linked:
    """The user of a redeemed code."""

    user_id: int
    name: str


_MAKE: Final = """
    insert into tasks.link_codes (user_id, code_hash, expires_at)
    values (%(user)s, %(hash)s, clock_timestamp() + %(lifetime)s)
    on conflict (user_id) do update set code_hash = excluded.code_hash, expires_at = excluded.expires_at
    returning expires_at
"""
# A concurrent second redemption waits for the first to commit, then finds nothing.
_REDEEM: Final = """
    with used as (delete from tasks.link_codes where code_hash = %s returning user_id, expires_at)
    select used.user_id, person.name from used join tasks.users person using (user_id)
    where used.expires_at > clock_timestamp()
"""


async def make_code(connection: Connection, user_id: int) -> LinkCode:
    """Make a new code for an existing user."""
    code = "-".join("".join(secrets.choice(ALPHABET) for _ in range(LETTERS)) for _ in range(GROUPS))
    async with changing(connection):
        await find_person(connection, user_id)
        parameters = {"user": user_id, "hash": _hash(code), "lifetime": LIFETIME}
        row = await (await connection.execute(_MAKE, parameters)).fetchone()
    assert row is not None
    return LinkCode(code, row[0], f"/start {code}")


async def redeem(connection: Connection, code: str) -> Linked:
    """Use up a code and return its user."""
    async with changing(connection):
        row = await (await connection.execute(_REDEEM, (_hash(code),))).fetchone()
    if row is None:
        raise NoSuchCode
    return Linked(*row)


def _hash(code: str) -> bytes:
    """Accepts lower case, missing hyphens, and O, I or L for 0 and 1."""
    plain = code.upper().replace("-", "").replace(" ", "").replace("O", "0").replace("I", "1").replace("L", "1")
    return hashlib.sha256(plain.encode("utf-8", "replace")).digest()
