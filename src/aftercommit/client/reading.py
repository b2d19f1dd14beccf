"""Read a part of a feed and come to an end: what came since a place or a time, or back from a place.

    async for event in read(url, token=token, from_time=yesterday):
        …                                       # in order, up to the newest there is
    async for event in read_back(url, token=token):
        …                                       # the newest first, down to the oldest that is kept

What passes by itself (a lost connection, a limit, a server that restarts) is waited for a few times; everything else is
raised, also that a cursor is gone. An event that the server cannot show is not handed over: `on_gap` hears of it.
Needs no bookmark: the cursor of the last event is where to go on.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Unpack

from aftercommit.client import wire
from aftercommit.client.connection import Answer, FeedConnection, Lost
from aftercommit.client.credential import Credential
from aftercommit.client.machine import UNAUTHORIZED, Pace, is_passing
from aftercommit.client.options import ReadOptions, report, withheld
from aftercommit.client.wire import END, LOGS, FeedAddress, FeedEvent, FetchedPage, Unreadable
from aftercommit.clock import utc_now
from aftercommit.errors import DeclarationError, FeedRefused, FollowError
from aftercommit.text import readable


async def read(
    url: str, *, after: str | None = None, from_time: datetime | None = None, **options: Unpack[ReadOptions]
) -> AsyncGenerator[FeedEvent]:
    """The events after a cursor or from a time on, in order, and without either all that are kept; up to the newest.

    Raises FeedRefused when the server says no, also because the cursor is gone; FollowError when it cannot be reached.
    """
    if after is not None and from_time is not None:
        raise DeclarationError(f"read({url!r}): after= and from_time= both say where to begin: give one of them")
    async with aclosing(_Asking(url, options)) as asking:
        if from_time is not None:
            page = await asking.page_from(_text(url, from_time))
        else:
            page = await asking.page(after if after is not None else asking.wire.beginning)
        while True:
            for event in asking.received(page.events):
                yield event
            if not page.more:
                return
            page = await asking.page(page.next)


async def read_back(
    url: str, *, before: str | None = None, **options: Unpack[ReadOptions]
) -> AsyncGenerator[FeedEvent]:
    """The events before a cursor, without one all, the newest first, down to the oldest that is kept.

    Raises as `read` does.
    """
    async with aclosing(_Asking(url, options)) as asking:
        place = before
        if place is None:
            newest = await asking.page_before(END)
            for event in asking.received(reversed(newest.events)):
                yield event
            # One that is not full says how far back the server has looked, which may be before its first event.
            place = newest.previous or _first_place(url, newest)
        while place is not None:
            page = await asking.page_before(place)
            for event in asking.received(reversed(page.events)):
                yield event
            place = page.previous


class _Asking:
    """The requests of one reading."""

    def __init__(self, url: str, options: ReadOptions) -> None:
        self.wire = options.get("wire") or LOGS
        self._url, self._on_gap = url, options.get("on_gap")
        self._address = FeedAddress(url, self.wire, limit=options.get("limit"), filters=options.get("filters"))
        self._credential = Credential(options.get("token"), options.get("headers"))
        self._connection = FeedConnection(options.get("client"))
        self._pace = options.get("pace") or Pace()

    async def page(self, after: str | None) -> FetchedPage:
        url = self._address.poll(after)
        return await self._ask(url, lambda answer: self.wire.page(answer.body, answer.headers, after))

    async def page_from(self, time: str) -> FetchedPage:
        url = self._address.page_from(time)
        return await self._ask(url, lambda answer: self.wire.page(answer.body, answer.headers, None))

    async def page_before(self, cursor: str) -> FetchedPage:
        url = self._address.page_before(cursor)
        return await self._ask(url, lambda answer: self.wire.page_back(answer.body, answer.headers))

    def received(self, events: Iterable[FeedEvent]) -> Iterator[FeedEvent]:
        """Those that the server has shown; the others are gaps."""
        for event in events:
            if event.withheld is None:
                yield event
            else:
                report(withheld(event, None), self._url, self._on_gap)

    async def aclose(self) -> None:
        await self._connection.close()

    async def _ask(self, url: str, understood: Callable[[Answer], FetchedPage]) -> FetchedPage:
        """A page, asked for again as long as that may help."""
        failures, renewed = 0, False
        while True:
            headers = await self._credential.headers("application/json")
            try:
                return await self._attempt(url, headers, understood)
            except FollowError as problem:
                found = problem
            status = found.status if isinstance(found, FeedRefused) else None
            if status == UNAUTHORIZED and self._credential.can_refresh and not renewed:
                renewed = True
                await self._credential.refresh()
                continue
            failures += 1
            if failures > self._pace.failures or (status is not None and not is_passing(status)):
                raise found
            await asyncio.sleep(self._wait(found, failures))

    async def _attempt(
        self, url: str, headers: Mapping[str, bytes], understood: Callable[[Answer], FetchedPage]
    ) -> FetchedPage:
        try:
            answer = await self._connection.get(url, headers, self._pace.answer)
            if answer.status == 200:
                return understood(answer)
        except (Lost, Unreadable) as problem:
            raise FollowError(f"{url} cannot be read: {readable(problem)}") from problem
        raise wire.refusal(answer.status, answer.headers, answer.body, utc_now())

    def _wait(self, problem: FollowError, failures: int) -> float:
        told = problem.retry_after if isinstance(problem, FeedRefused) else None
        own = self._pace.backoff * 2.0**failures * (1 - self._pace.jitter * random.random())
        return min(max(told or 0.0, own), self._pace.longest)


def _first_place(url: str, newest: FetchedPage) -> str | None:
    """The cursor of the first event of a page; None where there is nothing before it to ask for."""
    if not newest.events:
        return None
    if newest.events[0].cursor is None:
        raise FollowError(f"the events of {url} do not tell their cursors: say where to begin with before=")
    return newest.events[0].cursor


def _text(url: str, moment: datetime) -> str:
    if moment.tzinfo is None:
        raise DeclarationError(f"read({url!r}): from_time={moment!r} has no time zone: say which, as in UTC")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
