"""Read a part of a feed, to its end: forwards from a cursor or a time, or backwards from a cursor.

    async for event in read(url, token=token, from_time=yesterday):
        …                                       # in order, up to the newest
    async for event in read_back(url, token=token):
        …                                       # the newest first, down to the oldest that is kept

A request is repeated a few times if the failure may pass (a lost connection, a limit, a server that restarts). Any
other failure is raised, a gone cursor included. An event that the server cannot show is reported to `on_gap`. No
bookmark is needed: to go on later, pass the cursor of the last event.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Unpack

from aftercommit.client.connection import Answer, Lost
from aftercommit.client.machine import UNAUTHORIZED, is_passing
from aftercommit.client.options import ReadOptions, report, withheld
from aftercommit.client.requests import FeedRequests, refused
from aftercommit.client.wire import END, FeedEvent, FetchedPage, Unreadable
from aftercommit.errors import DeclarationError, FeedRefused, FollowError
from aftercommit.text import readable


async def read(
    url: str, *, after: str | None = None, from_time: datetime | None = None, **options: Unpack[ReadOptions]
) -> AsyncGenerator[FeedEvent]:
    """The events after a cursor or from a time on, up to the newest, in order; without either, all that are kept.

    Raises FeedRefused if the server refuses, for example because the cursor is gone, and FollowError if it cannot be
    reached.
    """
    if after is not None and from_time is not None:
        raise DeclarationError(f"read({url!r}): after= and from_time= both say where to begin: pass one of them")
    async with aclosing(_PatientRequests(url, options)) as requests:
        place = after if after is not None else requests.wire.beginning
        if from_time is not None:
            page = await requests.page(requests.address.page_from(_text(url, from_time)), None)
        else:
            page = await requests.page(requests.address.poll(place), place)
        while True:
            for event in requests.received(page.events):
                yield event
            if not page.more:
                return
            page = await requests.page(requests.address.poll(page.next), page.next)


async def read_back(
    url: str, *, before: str | None = None, **options: Unpack[ReadOptions]
) -> AsyncGenerator[FeedEvent]:
    """The events before a cursor, the newest first, down to the oldest that is kept; without a cursor, all of them.

    Raises as `read` does.
    """
    async with aclosing(_PatientRequests(url, options)) as requests:
        place = before
        if place is None:
            newest = await requests.page_before(END)
            for event in requests.received(reversed(newest.events)):
                yield event
            # A page that is not full says how far back the server looked, which may be before its first event.
            place = newest.previous or _first_place(url, newest)
        while place is not None:
            page = await requests.page_before(place)
            for event in requests.received(reversed(page.events)):
                yield event
            place = page.previous


class _PatientRequests(FeedRequests):
    """Repeats a request while that may help."""

    def __init__(self, url: str, options: ReadOptions) -> None:
        super().__init__(url, options)
        self._url, self._on_gap = url, options.get("on_gap")

    async def page(self, url: str, after: str | None) -> FetchedPage:
        return await self._ask(url, lambda answer: self.wire.page(answer.body, answer.headers, after))

    async def page_before(self, cursor: str) -> FetchedPage:
        url = self.address.page_before(cursor)
        return await self._ask(url, lambda answer: self.wire.page_back(answer.body, answer.headers))

    def received(self, events: Iterable[FeedEvent]) -> Iterator[FeedEvent]:
        """The events that the server has shown; the others are reported as gaps."""
        for event in events:
            if event.withheld is None:
                yield event
            else:
                report(withheld(event, None), self._url, self._on_gap)

    async def _ask(self, url: str, parse: Callable[[Answer], FetchedPage]) -> FetchedPage:
        failures, renewed = 0, False
        while True:
            headers = await self.credential.headers("application/json")
            try:
                answer = await self.get(url, headers)
                if answer.status == 200:
                    return parse(answer)
                found: FollowError = refused(answer)
            except (Lost, Unreadable) as problem:
                found = FollowError(f"{url} cannot be read: {readable(problem)}")
                found.__cause__ = problem
            status, asked = (found.status, found.retry_after) if isinstance(found, FeedRefused) else (None, None)
            if status == UNAUTHORIZED and self.credential.can_refresh and not renewed:
                renewed = True
                await self.credential.refresh()
                continue
            failures += 1
            if failures > self.pace.failures or (status is not None and not is_passing(status)):
                raise found
            own = self.pace.backoff * 2.0**failures * (1 - self.pace.jitter * random.random())
            await asyncio.sleep(min(max(asked or 0.0, own), self.pace.longest))


def _first_place(url: str, newest: FetchedPage) -> str | None:
    """The cursor of the first event of a page; None if the page is empty."""
    if not newest.events:
        return None
    if newest.events[0].cursor is None:
        raise FollowError(f"the events of {url} do not show their cursors: pass before= to say where to begin")
    return newest.events[0].cursor


def _text(url: str, moment: datetime) -> str:
    if moment.tzinfo is None:
        raise DeclarationError(f"read({url!r}): from_time={moment!r} has no time zone: pass one, for example UTC")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
