"""Revoked tokens: one token by its id, or all tokens that a user got up to a time.

A server keeps them in memory. It reads new ones when it is notified, and every few seconds, so a revocation reaches
every process at once where notifications arrive, and otherwise after one interval.
"""

import time
from datetime import datetime
from typing import Any, Literal

import msgspec
import psycopg

from aftercommit.access.reader import Reader
from aftercommit.errors import DeclarationError
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

Kind = Literal["token", "user"]
LONGEST = 255
# How often a server deletes rows whose tokens have expired.
FORGET_SECONDS = 600.0


class Revocations:
    """The revocations of one outbox in the memory of one process."""

    def __init__(self, shape: Shape) -> None:
        self._statements = Statements(shape)
        self._tokens: dict[str, float] = {}
        self._users: dict[str, float] = {}
        self._since = 0
        self._forgot_at = time.monotonic()

    def hit(self, reader: Reader) -> bool:
        """Whether the reader's token is revoked. A token without `iat` counts as old."""
        if reader.token_id in self._tokens:
            return True
        revoked_at = self._users.get(reader.user)
        return revoked_at is not None and (reader.issued_at is None or reader.issued_at <= revoked_at)

    def begin_anew(self) -> None:
        """Read everything next time: the new connection may lead to another server."""
        self._since = 0

    async def refresh(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Read revocations since the last read, or all of them, and forget expired ones."""
        cursor = await connection.execute(self._statements["changed_revocations"], {"since": self._since})
        rows = await cursor.fetchall()
        if self._since == 0:
            self._tokens.clear()
            self._users.clear()
        for _, kind, value, revoked_at, until in rows:
            if kind == "token":
                self._tokens[value] = until if until is not None else float("inf")
            elif kind == "user":
                self._users[value] = revoked_at
        self._since = rows[0][0]
        if time.monotonic() - self._forgot_at > FORGET_SECONDS:
            await self._forget(connection)

    async def _forget(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._forgot_at = time.monotonic()
        now = time.time()
        self._tokens = {value: until for value, until in self._tokens.items() if until > now}
        await connection.execute(self._statements["forget_revocations"])


class Revocation(msgspec.Struct, frozen=True):
    """A revocation, for operators. It can be forgotten after `until`."""

    kind: str
    value: str
    revoked_at: datetime
    revoked_by: str
    reason: str
    until: datetime | None


def revoke(
    connection: psycopg.Connection[Any],
    shape: Shape,
    kind: Kind,
    value: str,
    *,
    until: float | None = None,
    by: str = "",
    reason: str = "",
) -> datetime:
    """Revoke a token by its id, or all tokens that a user got up to now; returns the time of the revocation."""
    if not 0 < len(value) <= LONGEST or not value.isprintable():
        raise DeclarationError(f"{kind} {value!r:.100} is not valid: use 1 to {LONGEST} printable characters")
    parameters = {
        "kind": kind,
        "value": value,
        "until": until,
        "revoked_by": by,
        "reason": reason,
        "channel": shape.guard_channel,
    }
    row = connection.execute(Statements(shape)["revoke_token"], parameters).fetchone()
    assert row is not None
    revoked_at: datetime = row[0]
    return revoked_at


def list_all(connection: psycopg.Connection[Any], shape: Shape, limit: int = 1000) -> list[Revocation]:
    """The revocations that are still kept, newest first."""
    rows = connection.execute(Statements(shape)["revocations"], {"limit": limit}).fetchall()
    return [Revocation(*row) for row in rows]
