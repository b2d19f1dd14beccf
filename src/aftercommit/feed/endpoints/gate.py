"""Admits a reader: authentication, permission, rate limits, and whether the resource exists, in this order.

Every request passes it, a 304 too. A reader and a resource that were checked recently cost no query.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from aftercommit.access.permissions import permission_for
from aftercommit.access.rate_limit import Allowance, Rate, RateLimiter
from aftercommit.access.reader import Access, CachePolicy, Caching, Reader
from aftercommit.errors import Unauthorized
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.selection import ByScope, ByStream, Everything
from aftercommit.http.asgi import Header, asgi_headers
from aftercommit.http.errors import Problem, forbidden, not_found, too_many, unauthorized
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
        """The reader's part of an ETag: the user, its permissions, and `rights` of a custom access object."""
        user, permissions = self.reader.user, self.reader.permissions
        return f"{permissions.digest}{len(user)}:{user}{self.reader.rights}"


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
        self._counter = f"feed:{feed.name}"
        self._permission = lru_cache(maxsize=REMEMBERED)(self._needed)
        self._what = what_of(feed)
        self._caches = CachePolicy(access)

    async def admit(self, headers: Mapping[str, str], key: str | None, peer: str | None = None) -> Admission:
        """The reader and the key. A path without a key means the reader's own. Raises a Problem to refuse."""
        authorization = headers.get("authorization")
        try:
            reader = await self._access.reader(authorization, headers, peer)
        except Unauthorized as refusal:
            raise unauthorized(refusal.hint) from refusal
        own = "" if isinstance(self._feed.select, Everything) else reader.user
        asked = own if key is None else key
        permission = self._permission(asked)
        if permission is not None and not reader.may(permission):
            raise forbidden(permission)
        if permission is None and self._feed.select.by_audience and asked != reader.user:
            # Without a declared permission, users read only their own events.
            raise forbidden(f"the events of {asked:.100}")
        limits = await self._take(reader, asked)
        if not await self._is_there(asked):
            raise not_found(f"{self._what.capitalize()} {asked:.100} not found")
        return Admission(reader, asked, limits, self._caches.of(authorization))

    def check_still_valid(self, reader: Reader) -> None:
        """401 if the reader's token has expired or was revoked since the admission."""
        if not self._access.still_valid(reader):
            raise unauthorized()

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

    async def _is_there(self, key: str) -> bool:
        now = time.monotonic()
        if self._believed.get(key, 0.0) > now:
            return True
        # PostgreSQL cannot store such a key, and a query for it would fail.
        if len(key) > LONGEST_KEY or "\x00" in key or not key.isprintable():
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
