"""The options of `follow` and `read`, and gaps, which they report besides events."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypedDict

import httpx
import msgspec

from aftercommit.client.bookmark import Bookmark
from aftercommit.client.machine import Pace
from aftercommit.client.wire import FeedEvent, Wire
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.client")

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]


class Gap(msgspec.Struct, frozen=True):
    """Events that this reader does not get.

    `reason` is `jump` (the numbers from `expected` to just before `got` did not come), `withheld` (the server could not
    show the event with this `event_id` and `number`), or the server's: `retention` (the events are no longer kept) or
    `epoch` (the log was restored). Reading goes on after `restart`.
    """

    reason: str
    after: str | None
    restart: str | None
    message: str
    expected: int | None = None
    got: int | None = None
    event_id: str | None = None
    number: int | None = None


class ReadOptions(TypedDict, total=False):
    """The options of `read` and `read_back`, which `follow` takes as well.

    token       bearer token, or a function (also async) that returns one and is called again if the server refuses it
    filters     query parameters of the feed, for example {"minLevel": "WARN"}
    limit       events per page
    wire        names and form of the feed: LOGS (default), TASKS, or a Wire of your own
    headers     further headers for every request
    pace        waits and intervals
    client      an httpx.AsyncClient of your own, for proxies and certificates; it is left open
    on_gap      called with each Gap; without it, gaps are logged as `feed_gap`
    """

    token: Token | None
    filters: Mapping[str, str] | None
    limit: int | None
    wire: Wire
    headers: Mapping[str, str] | None
    pace: Pace
    client: httpx.AsyncClient | None
    on_gap: Callable[[Gap], None] | None


class Options(ReadOptions, total=False):
    """The options of `follow` and `follow_sync` besides `ReadOptions`.

    bookmark    where the cursor is saved; without one, in memory
    start       cursor to begin after if the bookmark is empty; without one, the newest page comes first
    gapless     report a jump in the numbers as a gap. Has no effect together with filters
    save_every_seconds
                time between two saves of the bookmark while events keep coming (1); 0 saves after each event
    stream      address of the stream if it is not `/stream` below the url, or False to poll only
    """

    bookmark: Bookmark | None
    start: str | None
    gapless: bool
    save_every_seconds: float
    stream: str | bool


def withheld(event: FeedEvent, after: str | None) -> Gap:
    """The gap for an event that the server could not show."""
    message = f"the server could not show event {event.id}: {event.withheld}"
    return Gap("withheld", after, event.cursor or after, message, event_id=event.id, number=event.number)


def report(gap: Gap, url: str, on_gap: Callable[[Gap], None] | None) -> None:
    """Pass a gap to `on_gap`, or log it."""
    if on_gap is not None:
        on_gap(gap)
    else:
        log_event(logger, logging.WARNING, "feed_gap", url=url, gap=msgspec.structs.asdict(gap))
