"""Who asks: a reader with permissions, and the one question that every way out asks before it lets anything out.

Pure. `bearer.BearerAccess` answers it from bearer tokens, `trusted.TrustedUsers` also from what a trusted caller says;
a team may bring an `Access` of its own. The access also decides what caches may keep (`CachePolicy`).
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
    """Somebody who was authenticated. `user` is unique: it names no two people, also not of two tenants.

    `token_id` names the token for a revocation, `service` the service token that asks, also where it asks on behalf
    of a user. Times are seconds since 1970. `rights` is a digest of whatever else changes what the reader may see;
    an ETag covers it besides `user` and `permissions`.
    """

    user: str
    permissions: Permissions
    token_id: str | None = None
    expires_at: float | None = None
    rights: str = ""
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
class Varying(Protocol):
    """An access that names every request header by which it recognises a reader.

    Answers list these headers in `Vary`. Nothing that was answered by an access without `vary` may be stored.
    """

    vary: Sequence[str]


@runtime_checkable
class Watched(Protocol):
    """An access that tells when it has learnt something: streams of those who may not read any more end at once."""

    def watch(self, call: Callable[[], None]) -> None:
        """Call this then."""
        ...


class Caching(NamedTuple):
    """What caches may keep of the answers to one request, as headers: of a page that can change, of one that never
    does, of one that must be asked for again whatever happens, and of a stream."""

    changing: list[Header]
    closed: list[Header]
    passing: list[Header]
    stream: list[Header]


class CachePolicy:
    """Decides what caches may keep of the answers that one access lets out.

    An answer may be kept for good only if every cache can tell readers apart. All of them tell bearer tokens apart.
    Not every browser compares cookies, and a browser outlives a session: an answer to a cookie is asked for again.
    """

    def __init__(self, access: Access) -> None:
        """DeclarationError when `vary` does not list names of headers."""
        names = tuple(access.vary) if isinstance(access, Varying) else ()
        if isinstance(getattr(access, "vary", None), str) or not all(map(_is_name, names)):
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
        """For a request with this Authorization header."""
        is_bearer = authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER
        return self._bearer if is_bearer else self._other


def rights_of(user: str, permissions: Permissions) -> str:
    """The digest of who somebody is and what it may."""
    return hashlib.sha256(f"{user}\n{permissions.digest}".encode("utf-8", "replace")).hexdigest()[:16]


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
