"""Service tokens for programs: `act_<id>_<secret>`. The database has a hash of the secret only.

The functions here create, list and revoke them. A server keeps all of them in memory, so a wrong token costs no query,
and reads changes when it is notified.
"""

import hashlib
import hmac
import re
import secrets
import string
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import psycopg

from aftercommit.access.permissions import Permissions, checked
from aftercommit.access.reader import Reader, rights_of
from aftercommit.errors import DeclarationError, Unauthorized
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

PREFIX: Final = "act_"
# Lets a service act on behalf of any user. It must be granted by name: no wildcard includes it.
ACT_AS_USER: Final = "act-as-user"
LONGEST_USER = 255
LONGEST_NAME = 200
LONGEST_LIFE = timedelta(days=36_500)

_ALPHABET = string.ascii_letters + string.digits
_TOKEN = re.compile(r"act_([A-Za-z0-9]{12})_([A-Za-z0-9]{43})")
# Compared when there is no such token, so that an unknown id takes as long as a wrong secret.
_NOBODY = hashlib.sha256(secrets.token_bytes(32)).digest()


class _KnownToken(msgspec.Struct, frozen=True):
    """A service token in memory."""

    secret_hash: bytes
    permissions: Permissions
    expires_at: float | None


class ServiceTokens:
    """The service tokens of one outbox in the memory of one process."""

    def __init__(self, shape: Shape) -> None:
        self._statements = Statements(shape)
        self._known: dict[str, _KnownToken] = {}
        self._since = 0
        self._read_at: float | None = None
        self._used: set[str] = set()

    @property
    def age(self) -> float:
        """Seconds since the last read; infinity before the first."""
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    def verify(self, token: str, user: str | None = None) -> Reader:
        """The reader of this token: the service, or the user it acts for, if it has the permission `act-as-user`."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            raise Unauthorized("the service token is malformed")
        token_id, secret = parts.groups()
        known = self._known.get(token_id)
        same = hmac.compare_digest(_hash(secret), known.secret_hash if known is not None else _NOBODY)
        if known is None or not same:
            raise Unauthorized("there is no such service token")
        if known.expires_at is not None and known.expires_at <= time.time():
            raise Unauthorized(f"service token {token_id} has expired")
        acting = _acting(token_id, known.permissions, user)
        self._used.add(token_id)
        rights = rights_of(acting, known.permissions)
        return Reader(acting, known.permissions, token_id, known.expires_at, rights, service=token_id)

    def stands(self, reader: Reader) -> bool:
        """Whether the reader's token still exists."""
        return reader.service in self._known

    def grants(self, permission: str) -> bool:
        """Whether a token, even an expired one, was granted this permission by name."""
        return any(known.permissions.name(permission) for known in self._known.values())

    def begin_anew(self) -> None:
        """Read everything next time: the new connection may lead to another server."""
        self._since = 0

    async def refresh(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Read changes since the last read, or everything."""
        cursor = await connection.execute(self._statements["changed_service_tokens"], {"since": self._since})
        rows = await cursor.fetchall()
        if self._since == 0:
            self._known.clear()
        for _, token_id, secret_hash, permissions, expires_at, revoked in rows:
            if token_id is None:
                continue
            if revoked:
                self._known.pop(token_id, None)
            else:
                self._known[token_id] = _KnownToken(bytes(secret_hash), Permissions(permissions), expires_at)
        self._since = rows[0][0]
        self._read_at = time.monotonic()

    async def note_use(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Record which tokens were used, to the minute, which keeps it cheap."""
        if self._used:
            used, self._used = self._used, set()
            await connection.execute(self._statements["note_token_use"], {"ids": sorted(used)})


class ServiceToken(msgspec.Struct, frozen=True):
    """A service token without its secret, for operators."""

    id: str
    name: str
    permissions: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    state: str


class Created(msgspec.Struct, frozen=True):
    """A new service token. `token` is the only copy of its secret."""

    id: str
    token: str
    expires_at: datetime | None


def create(
    connection: psycopg.Connection[Any],
    shape: Shape,
    name: str,
    permissions: Iterable[str],
    *,
    lifetime: timedelta | None = None,
    by: str = "",
) -> Created:
    """Create a service token, and notify the servers."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise DeclarationError(
            f"service token name {name!r:.100} is not valid: use 1 to {LONGEST_NAME} printable characters"
        )
    if lifetime is not None and not timedelta() < lifetime <= LONGEST_LIFE:
        raise DeclarationError(f"lifetime {lifetime} is not valid: give more than 0, or none for a token without end")
    token_id, secret = _random(12), _random(43)
    parameters = {
        "id": token_id,
        "name": name,
        "secret_hash": _hash(secret),
        "permissions": list(checked(permissions)),
        "created_by": by,
        "lifetime": lifetime.total_seconds() if lifetime is not None else None,
        "channel": shape.guard_channel,
    }
    row = connection.execute(Statements(shape)["create_service_token"], parameters).fetchone()
    assert row is not None
    return Created(token_id, f"{PREFIX}{token_id}_{secret}", row[0])


def list_all(connection: psycopg.Connection[Any], shape: Shape) -> list[ServiceToken]:
    """All service tokens, newest first."""
    rows = connection.execute(Statements(shape)["service_tokens"]).fetchall()
    return [ServiceToken(*row) for row in rows]


def revoke(connection: psycopg.Connection[Any], shape: Shape, token_id: str) -> bool | None:
    """Revoke a service token. False if it was revoked before, None if there is no such token."""
    parameters = {"id": token_id, "channel": shape.guard_channel}
    row = connection.execute(Statements(shape)["revoke_service_token"], parameters).fetchone()
    return row[0] if row is not None else None


def id_of(text: str) -> str | None:
    """The id in a service token, or the id itself; None if the text is neither."""
    whole = _TOKEN.fullmatch(text)
    if whole is not None:
        return whole[1]
    return text.removeprefix(PREFIX) if re.fullmatch(r"(?:act_)?[A-Za-z0-9]{12}", text) else None


def _acting(token_id: str, permissions: Permissions, user: str | None) -> str:
    if user is None:
        return f"service:{token_id}"
    if not permissions.name(ACT_AS_USER):
        raise Unauthorized(f"service token {token_id} names a user without the permission {ACT_AS_USER}")
    if not 0 < len(user) <= LONGEST_USER or not user.isprintable():
        raise Unauthorized(f"X-User-Id must have 1 to {LONGEST_USER} printable characters")
    return user


def _hash(secret: str) -> bytes:
    # The secret has 256 random bits and cannot be guessed, so a slow hash would only slow down servers.
    return hashlib.sha256(secret.encode()).digest()


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
