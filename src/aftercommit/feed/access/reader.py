"""Who asks: a reader with permissions, and the one question that every way out asks before it lets anything out.

Pure. `bearer.BearerAccess` answers it from bearer tokens, `trusted.TrustedUsers` also from what a trusted caller says;
a team may bring an `Access` of its own.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from aftercommit.feed.access.permissions import Permissions
from aftercommit.feed.http.asgi import Header

# Who asks is told by both: a cache must not hand what a program read for one user to the next one it asks for.
VARY: Header = (b"vary", b"Authorization, X-User-Id")


class Reader(msgspec.Struct, frozen=True):
    """Somebody who was authenticated. `rights` is a digest of who it is and what it may, for ETags and cache keys.

    `token_id` names the token for a revocation, `service` the service token that asks, also where it asks on behalf
    of a user. Times are seconds since 1970.
    """

    user: str
    permissions: Permissions
    token_id: str | None
    expires_at: float | None
    rights: str
    issued_at: float | None = None
    service: str | None = None

    def may(self, permission: str) -> bool:
        """Whether the reader has this permission; make it with `permissions.needed`, which keeps a key one segment."""
        return self.permissions.allow(permission)


class Access(Protocol):
    """How a server finds out who asks. One that is a `Service` is started and stopped with the server."""

    async def reader(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        """Whoever shows this Authorization header, otherwise Unauthorized. Names of headers are in lower case.

        `peer` is the address at the other end of the connection, None where the server does not tell it.
        """
        ...

    def still_valid(self, reader: Reader) -> bool:
        """Whether the reader's token has neither expired nor been revoked since; in memory, asks nobody."""
        ...


@runtime_checkable
class Watched(Protocol):
    """An access that tells when it has learnt something: streams of those who may not read any more end at once."""

    def watch(self, call: Callable[[], None]) -> None:
        """Call this then."""
        ...


def rights_of(user: str, permissions: Permissions) -> str:
    """The digest of who somebody is and what it may."""
    return hashlib.sha256(f"{user}\n{permissions.digest}".encode("utf-8", "replace")).hexdigest()[:16]
