"""The journal as newer code knows it: lines have a mood since version 2, and there are pictures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from aftercommit.feed import Feed, LogEvent
from aftercommit.feed.app import FeedApp
from aftercommit.outbox import Outbox
from tests.feed.journal import SCHEMA, Journal, journal_feed, to_item


@dataclass(frozen=True)
class MoodyLine:
    """A line of version 2."""

    book_id: str
    text: str
    mood: str
    level: str = "INFO"
    author: str = "nobody"


@dataclass(frozen=True)
class PicturePasted:
    """A type that older code does not have."""

    book_id: str
    text: str
    level: str = "INFO"
    author: str = "nobody"


def newer_outbox() -> Outbox:
    outbox = Outbox(SCHEMA, numbered=["book"])
    outbox.declare("line.written", MoodyLine, aggregate="book", key="book_id", version=2)
    outbox.declare("picture.pasted", PicturePasted, aggregate="book", key="book_id")
    outbox.upcast("line.written", from_version=1)(with_mood)
    return outbox


def with_mood(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "mood": "unknown"}


def moody_item(event: LogEvent[Any]) -> Mapping[str, Any]:
    return {**to_item(event), "mood": getattr(event.payload, "mood", None)}


def newer_feed(**options: Any) -> Feed:
    return journal_feed(newer_outbox(), **{"item": moody_item, **options})


def newer_app(journal: Journal, **options: Any) -> FeedApp:
    """A server with newer code on the same journal."""
    return journal.app(feed=newer_feed(**options.pop("feed", {})), **options)


async def write_newer(journal: Journal, *texts: str, book: str = "b-1", picture: bool = False, **fields: Any) -> None:
    """Lines by newer code, which are in the log when this returns."""
    made = [
        PicturePasted(book, text, **fields) if picture else MoodyLine(book, text, mood="glad", **fields)
        for text in texts
    ]
    with psycopg.connect(journal.dsn) as connection:
        newer_outbox().publish(connection, made)
    journal.written += len(made)
    await journal.signals.wait_total("relay.appended", journal.written)
