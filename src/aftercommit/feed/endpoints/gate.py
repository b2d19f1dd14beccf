"""Admits a reader: authentication, permission, rate limits, and whether the resource exists, in this order.

Every request passes it, a 304 too. A reader and a resource that were checked recently cost no query.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from aftercommit.access.key_count import Allowance, Rate
from aftercommit.access.permissions import permission_for
from aftercommit.access.rate_limiter import RateLimiter
from aftercommit.access.reader import Access, CachePolicy, Caching, Reader, RemembersReaders
from aftercommit.errors import Unauthorized
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.selection import ByScope, ByStream, Everything
from aftercommit.http.asgi import Header, asgi_headers
from aftercommit.http.errors import Problem, forbidden, not_found, too_many, unauthorized
from aftercommit.http.from_memory import lines_of
from aftercommit.postgres.bounded import answered_within

Exists = Callable[[Feed, str], Awaitable[bool]]

LONGEST_KEY = 255
# For how long, and for how many keys, "it exists" is kept without asking again.
BELIEVED_SECONDS = 60.0
MOST_BELIEVED = 50_000
# How many filled-in permissions are kept.
REMEMBERED = 4096


class Admission(NamedTuple):
    """A reader who may read a strand, with the rate limit headers and the cache headers of the response."""

    reader: Reader
    key: str
    headers: list[Header]
    caching: Caching

    @property
    def rights(self) -> str:
        """The reader's part of an ETag."""
        return rights_in_tag(self.reader)


class MayPass(NamedTuple):
    """A reader with the permission to read a strand, and the rate limits that count its requests."""

    reader: Reader
    key: str
    counters: list[tuple[tuple[str, str, int], Rate]]
    caching: Caching


class Gate:
    """Admits the readers of one feed."""

    def __init__(
        self, feed: Feed, access: Access, limiter: RateLimiter, exists: Exists | None, exists_seconds: float
    ) -> None:
        """Without `exists`, every key exists, and a key without events is an empty strand."""
        self._feed = feed
        self._access = access
        self._limiter = limiter
        self._exists = exists
        self._exists_within = exists_seconds
        self._believed: OrderedDict[str, float] = OrderedDict()
        self._policy = policy_of(feed.rates)
        self._rates = [(rate, b'"%b";r=%%d;t=%%d' % rate.of.encode()) for rate in feed.rates]
        states = b", ".join(state for _, state in self._rates)
        self._limit_lines = b"ratelimit: %b\r\n%b" % (states, lines_of([self._policy]).replace(b"%", b"%%"))
        self._counter = f"feed:{feed.name}"
        self._permission = lru_cache(maxsize=REMEMBERED)(self._needed)
        self._what = what_of(feed)
        self._caches = CachePolicy(access)
        # The reader of an Authorization header, as far as memory alone can tell.
        self.known_reader = access.known_reader if isinstance(access, RemembersReaders) else _nobody
        # The headers that tell readers apart, besides Authorization.
        self.tells_apart = frozenset(name.lower().encode() for name in getattr(access, "vary", ())) - {b"authorization"}

    async def admit(self, headers: Mapping[str, str], key: str | None, peer: str | None = None) -> Admission:
        """The reader and the key. A path without a key means the reader's own. Raises a Problem to refuse."""
        authorization = headers.get("authorization")
        try:
            reader = await self._access.reader(authorization, headers, peer)
        except Unauthorized as refusal:
            raise unauthorized(refusal.hint) from refusal
        asked = self._own_key(reader) if key is None else key
        if (refused := self._refused(reader, asked)) is not None:
            raise forbidden(refused)
        limits = await self._take(reader, asked)
        if not await self._is_there(asked):
            raise not_found(f"{self._what.capitalize()} {asked:.100} not found")
        return Admission(reader, asked, limits, self._caches.of(authorization))

    def may_pass(self, reader: Reader, key: str | None, authorization: str) -> "MayPass | None":
        """What `admit` would find out about a reader and a key, whenever they ask; None if it would refuse."""
        asked = self._own_key(reader) if key is None else key
        if self._refused(reader, asked) is not None:
            return None
        counters = [((*self._counted(rate, reader, asked), rate.seconds), rate) for rate, _ in self._rates]
        return MayPass(reader, asked, counters, self._caches.of(authorization))

    def passing(self, known: "MayPass") -> Callable[[], list[int]] | None:
        """What counts this request, if its rate limits let it pass now; None if `admit` has to decide."""
        return self._limiter.passing(known.counters) if self._is_believed(known.key) else None

    def limit_lines(self, figures: list[int]) -> bytes:
        """The header lines of the rate limits of a request that was counted."""
        return self._limit_lines % tuple(figures) if figures else b""

    def check_still_valid(self, reader: Reader) -> None:
        """401 if the reader's token has expired or was revoked since the admission."""
        if not self._access.still_valid(reader):
            raise unauthorized()

    def _own_key(self, reader: Reader) -> str:
        return "" if isinstance(self._feed.select, Everything) else reader.user

    def _refused(self, reader: Reader, key: str) -> str | None:
        """What the reader may not do; None if it may read this key."""
        permission = self._permission(key)
        if permission is not None:
            return None if reader.may(permission) else permission
        # Without a declared permission, users read only their own events.
        return f"the events of {key:.100}" if self._feed.select.by_audience and key != reader.user else None

    def _needed(self, key: str) -> str | None:
        return permission_for(self._feed.permission, key=key) if self._feed.permission is not None else None

    async def _take(self, reader: Reader, key: str) -> list[Header]:
        if not self._rates:
            return []
        states: list[bytes] = []
        for rate, state in self._rates:
            allowance = await self._limiter.take(*self._counted(rate, reader, key), rate)
            if not allowance.allowed:
                states = [*self._given_back(len(states), reader, key), state % (allowance.remaining, allowance.reset)]
                raise self._limited(rate, allowance, b", ".join(states))
            states.append(state % (allowance.remaining, allowance.reset))
        return [(b"ratelimit", b", ".join(states)), self._policy]

    def _counted(self, rate: Rate, reader: Reader, key: str) -> tuple[str, str]:
        """The name and the key of a counter."""
        # A user has one counter for all feeds. The prefix keeps a feed called `user` apart from it.
        return ("user", reader.user) if rate.of == "user" else (self._counter, key)

    def _given_back(self, passed: int, reader: Reader, key: str) -> list[bytes]:
        """Return a refused request to the limits that had let it pass, so that none of them counts it."""
        states = []
        for rate, state in self._rates[:passed]:
            left = self._limiter.give_back(*self._counted(rate, reader, key), rate)
            states.append(state % (left.remaining, left.reset))
        return states

    def _limited(self, rate: Rate, allowance: Allowance, state: bytes) -> Problem:
        period = "minute" if rate.seconds == 60 else f"{rate.seconds} seconds"
        whose = rate.of if rate.of == "user" else self._what
        said = f"Too many requests. Limit: {rate.requests} per {period} per {whose}"
        problem = too_many(said, allowance.retry_after)
        problem.headers["RateLimit"] = state.decode()
        problem.headers["RateLimit-Policy"] = self._policy[1].decode()
        return problem

    def _is_believed(self, key: str) -> bool:
        return self._believed.get(key, 0.0) > time.monotonic() or (self._exists is None and _is_possible(key))

    async def _is_there(self, key: str) -> bool:
        now = time.monotonic()
        if self._believed.get(key, 0.0) > now:
            return True
        if not _is_possible(key):
            return False
        if self._exists is None:
            return True
        async with answered_within(self._exists_within):
            is_there = await self._exists(self._feed, key)
        if not is_there:
            return False
        self._believed[key] = now + BELIEVED_SECONDS
        self._believed.move_to_end(key)
        if len(self._believed) > MOST_BELIEVED:
            self._believed.popitem(last=False)
        return True


def _nobody(authorization: str) -> Reader | None:
    return None


def rights_in_tag(reader: Reader) -> str:
    """The reader's part of an ETag: the user, its permissions, and `rights` of a custom access object."""
    return f"{reader.permissions.digest}{len(reader.user)}:{reader.user}{reader.rights}"


def _is_possible(key: str) -> bool:
    """Whether PostgreSQL can store such a key; a query for any other would fail."""
    return len(key) <= LONGEST_KEY and "\x00" not in key and key.isprintable()


def what_of(feed: Feed) -> str:
    """What a key of this feed identifies, in a word for messages."""
    match feed.select:
        case ByStream(aggregate_type):
            return aggregate_type
        case ByScope(name):
            return name.removesuffix("_id")
    return feed.name


def policy_of(rates: tuple[Rate, ...]) -> Header:
    """The rate limits of a feed as the header `RateLimit-Policy`."""
    text = ", ".join(f'"{rate.of}";q={rate.requests};w={rate.seconds}' for rate in rates)
    return asgi_headers({"RateLimit-Policy": text})[0]
