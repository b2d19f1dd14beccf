"""What `follow` and `read` take, and what they tell besides events."""

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
    """Events that this reader will not get.

    `reason` is `jump` (numbers from `expected` to just before `got` did not come), `withheld` (the server could not
    show the event `event_id`, whose number is `number`), or what the server says: `retention` (they are no longer kept)
    or `epoch` (the log was restored). Reading goes on after `restart`.
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
    """What `read` and `read_back` take, and `follow` as well.

    token       bearer token, or a function (also async) that gets one and is asked again when the server refuses it
    filters     query parameters of the feed, for example {"minLevel": "WARN"}
    limit       events per page
    wire        names and form of the feed: LOGS (default), TASKS, or your own
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
    """What `follow` and `follow_sync` take besides `ReadOptions`.

    bookmark    where the place is kept; without one, in memory
    start       cursor to begin after when the bookmark is empty; without one, the newest page comes first
    gapless     the numbers of this feed have no gaps for us: a jump is reported. Has no effect together with filters
    save_every_seconds
                time between two saves of the bookmark while events keep coming (1); 0 saves after each event
    stream      address of the stream where it is not `/stream` behind the url, or False to poll only
    """

    bookmark: Bookmark | None
    start: str | None
    gapless: bool
    save_every_seconds: float
    stream: str | bool


def withheld(event: FeedEvent, after: str | None) -> Gap:
    """The gap that an event leaves which the server could not show."""
    message = f"the server could not show event {event.id}: {event.withheld}"
    return Gap("withheld", after, event.cursor or after, message, event_id=event.id, number=event.number)


def report(gap: Gap, url: str, on_gap: Callable[[Gap], None] | None) -> None:
    """To whoever wants to know, otherwise into the log."""
    if on_gap is not None:
        on_gap(gap)
    else:
        log_event(logger, logging.WARNING, "feed_gap", url=url, gap=msgspec.structs.asdict(gap))
