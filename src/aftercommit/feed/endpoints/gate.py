"""Who comes in: known, allowed, within the limits, asking for something that exists; in this order, at every request.

All of it happens in memory for a reader who was here before, so that it can stand in front of a 304 as well.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from aftercommit.access.permissions import needed
from aftercommit.access.rate_limit import Allowance, Rate, RateLimiter
from aftercommit.access.reader import Access, CachePolicy, Caching, Reader
from aftercommit.errors import Unauthorized
from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.selection import ByScope, ByStream, Everything
from aftercommit.http.asgi import Header, encoded
from aftercommit.http.errors import Problem, forbidden, not_found, too_many, unauthorized
from aftercommit.postgres.bounded import answered_within

Exists = Callable[[Feed, str], Awaitable[bool]]

LONGEST_KEY = 255
# How long "it exists" is believed without asking again, and of how many.
BELIEVED_SECONDS = 60.0
MOST_BELIEVED = 50_000
# Permissions that were put together before.
REMEMBERED = 4096


class Admission(NamedTuple):
    """Somebody who may read a strand, the headers that tell how much more they may ask, and what caches may keep."""

    reader: Reader
    key: str
    headers: list[Header]
    caching: Caching

    @property
    def rights(self) -> str:
        """What an ETag has to cover of the reader: who it is and what it may, whatever an access says of its own."""
        user, permissions = self.reader.user, self.reader.permissions
        return f"{permissions.digest}{len(user)}:{user}{self.reader.rights}"


class Gate:
    """Checks one feed's readers."""

    def __init__(
        self, feed: Feed, access: Access, limiter: RateLimiter, exists: Exists | None, exists_seconds: float
    ) -> None:
        """Without `exists` every key counts as existing, and one without events is an empty strand."""
        self._feed = feed
        self._access = access
        self._limiter = limiter
        self._exists = exists
        self._exists_within = exists_seconds
        self._believed: OrderedDict[str, float] = OrderedDict()
        self._policy = policy_of(feed.rates)
        self._rates = [(rate, b'"%b";r=%%d;t=%%d' % rate.of.encode()) for rate in feed.rates]
        self._permission = lru_cache(maxsize=REMEMBERED)(self._needed)
        self._what = what_of(feed)
        self._caches = CachePolicy(access)

    async def admit(self, headers: Mapping[str, str], key: str | None, peer: str | None = None) -> Admission:
        """The reader and the key; without a key in the address the reader's own. Otherwise a Problem."""
        authorization = headers.get("authorization")
        try:
            reader = await self._access.reader(authorization, headers, peer)
        except Unauthorized as refusal:
            raise unauthorized(refusal.hint) from refusal
        asked = self._own_key(reader) if key is None else key
        permission = self._permission(asked)
        if permission is not None and not reader.may(permission):
            raise forbidden(permission)
        if permission is None and self._feed.select.by_audience and asked != reader.user:
            # What one hears of is nobody else's business, unless a permission says whose.
            raise forbidden(f"what {asked:.100} hears of")
        told = await self._take(reader, asked)
        if not await self._is_there(asked):
            raise not_found(f"{self._what.capitalize()} {asked:.100} not found")
        return Admission(reader, asked, told, self._caches.of(authorization))

    def check_still_valid(self, reader: Reader) -> None:
        """401 when the reader's token has ended since it was admitted."""
        if not self._access.still_valid(reader):
            raise unauthorized()

    def _needed(self, key: str) -> str | None:
        return needed(self._feed.permission, key=key) if self._feed.permission is not None else None

    def _own_key(self, reader: Reader) -> str:
        return "" if isinstance(self._feed.select, Everything) else reader.user

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
        """What is counted, and whose."""
        # A user is counted whatever it reads. The prefix keeps a feed that is called user apart from that.
        return ("user", reader.user) if rate.of == "user" else (f"feed:{self._feed.name}", key)

    def _given_back(self, passed: int, reader: Reader, key: str) -> list[bytes]:
        """What the limits that had let a refused request pass have left: nobody pays for it, with none of them."""
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
        # What PostgreSQL cannot hold as text cannot be there; asking it would be an error of ours.
        if len(key) > LONGEST_KEY or "\x00" in key or not key.isprintable():
            return False
        if self._exists is None:
            return True
        now = time.monotonic()
        if self._believed.get(key, 0.0) > now:
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
    """What a key of this feed names, in a word for messages."""
    match feed.select:
        case ByStream(aggregate_type):
            return aggregate_type
        case ByScope(name):
            return name.removesuffix("_id")
    return feed.name


def policy_of(rates: tuple[Rate, ...]) -> Header:
    """The limits of a feed as `RateLimit-Policy` tells them."""
    text = ", ".join(f'"{rate.of}";q={rate.requests};w={rate.seconds}' for rate in rates)
    return encoded({"RateLimit-Policy": text})[0]
