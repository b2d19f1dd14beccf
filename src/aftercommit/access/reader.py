"""A reader with permissions, and `Access`, the protocol that authenticates every request.

Pure. `BearerAccess` authenticates bearer tokens, `TrustedUsers` also programs that act on behalf of users, and you can
write your own. The access object also decides what caches may keep (`CachePolicy`).
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from aftercommit.access.permissions import Permissions
from aftercommit.errors import DeclarationError
from aftercommit.http.asgi import Header

NO_STORE: Final[Header] = (b"cache-control", b"private, no-store")
REVALIDATE: Final[Header] = (b"cache-control", b"private, no-cache")
FOR_GOOD: Final[Header] = (b"cache-control", b"private, max-age=31536000, immutable")
_BEARER: Final = "bearer "
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Reader(msgspec.Struct, frozen=True):
    """An authenticated reader. `user` must be unique across all tenants.

    `token_id` identifies the token for a revocation. `service` is the id of the service token, also when it acts on
    behalf of a user. Times are seconds since 1970. `rights` is a digest of anything else that changes what the reader
    may see; ETags cover it, `user` and `permissions`.
    """

    user: str
    permissions: Permissions
    token_id: str | None = None
    expires_at: float | None = None
    rights: str = ""
    issued_at: float | None = None
    service: str | None = None

    def may(self, permission: str) -> bool:
        """Whether the reader has this permission. Make it with `permission_for`, which keeps each key one segment."""
        return self.permissions.allow(permission)


class Access(Protocol):
    """Authenticates requests. One that is a `Service` is started and stopped with the server."""

    async def reader(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        """The reader of this Authorization header, or Unauthorized. Names in `headers` are in lower case.

        `peer` is the client's IP address, None if the server does not tell it.
        """
        ...

    def still_valid(self, reader: Reader) -> bool:
        """Whether the reader's token is neither expired nor revoked by now. Answers from memory."""
        ...


@runtime_checkable
class Varying(Protocol):
    """An access object that names every request header by which it identifies a reader.

    Responses list these headers in `Vary`. Without `vary`, caches may not store responses.
    """

    vary: Sequence[str]


@runtime_checkable
class RemembersReaders(Varying, Protocol):
    """An access object that can authenticate most requests without waiting, which makes polls faster."""

    def known_reader(self, authorization: str) -> Reader | None:
        """What `reader` would return for a request with this header and no other of `vary`; None to ask `reader`."""
        ...


@runtime_checkable
class Watched(Protocol):
    """An access object that reports changes, so that the streams of a revoked token end at once."""

    def watch(self, call: Callable[[], None]) -> None:
        """Call this after each change."""
        ...


class Caching(NamedTuple):
    """The cache headers of the responses to one request: of a page that can change, of one that never does, of one
    that may not be stored, and of a stream."""

    changing: list[Header]
    closed: list[Header]
    passing: list[Header]
    stream: list[Header]


class CachePolicy:
    """Decides what caches may keep of the responses of one access object.

    A cache may keep a response for good only if it can tell readers apart. All caches tell bearer tokens apart. Not
    every browser compares cookies, and a browser outlives a session, so a response to a cookie is always revalidated.
    """

    def __init__(self, access: Access) -> None:
        """DeclarationError if `vary` is not a list of header names."""
        names = tuple(access.vary) if isinstance(access, Varying) else ()
        are_names = all(isinstance(name, str) and _NAME.fullmatch(name) for name in names)
        if isinstance(getattr(access, "vary", None), str) or not are_names:
            raise DeclarationError(f"{access!r:.100}: vary={names!r:.100} must list header names, like ('Cookie',)")
        known = {name.lower() for name in names}
        may_store = bool(names) and "*" not in known
        vary: Header = (b"vary", ", ".join(names).encode() if may_store else b"*")
        usual = REVALIDATE if may_store else NO_STORE
        stream = [(usual[0], usual[1] + b", no-transform"), vary]
        knows_bearers = may_store and "authorization" in known and "cookie" not in known
        self._other = Caching([usual, vary], [usual, vary], [NO_STORE, vary], stream)
        self._bearer = self._other._replace(closed=[FOR_GOOD, vary]) if knows_bearers else self._other

    def of(self, authorization: str | None) -> Caching:
        """The cache headers for a request with this Authorization header."""
        is_bearer = authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER
        return self._bearer if is_bearer else self._other


def rights_of(user: str, permissions: Permissions) -> str:
    """A digest of a user and its permissions."""
    return hashlib.sha256(f"{user}\n{permissions.digest}".encode("utf-8", "replace")).hexdigest()[:16]
