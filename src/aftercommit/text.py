"""Text for messages: errors that PostgreSQL can store, times, plurals, and the remedy that many messages share."""

import hashlib
from datetime import UTC, datetime

MAX_ERROR_LENGTH = 2000

OF_APP = "--app module:outbox"
"""Placeholder for the caller's outbox in proposed commands. Without it, `migrate up` would create another outbox."""

MIGRATE = f"run `aftercommit migrate up {OF_APP}`"
"""The remedy for tables that the code cannot work with."""


def readable(error: BaseException) -> str:
    """The error's message, or its class where it has no readable message."""
    try:
        return str(error) or type(error).__name__
    except Exception as problem:  # noqa: BLE001 - __str__ of a foreign error is foreign code
        return f"{type(error).__name__} (str() of this error raised {type(problem).__name__})"


def storable_error(error: BaseException) -> str:
    """The error as text that PostgreSQL can store: bounded, and without NUL or lone surrogates."""
    text = readable(error)
    text = text.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text[:MAX_ERROR_LENGTH]


def utc_second(moment: datetime) -> str:
    """A time in UTC to the second, in RFC 3339."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def plural(count: int, noun: str) -> str:
    """A count with its noun, for nouns whose plural ends in s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def text_or_hash(value: str, longest: int) -> str:
    """The text as PostgreSQL can store it: one that is too long, or not valid, is replaced by its hash."""
    plain = value.encode("utf-8", "replace").decode()
    if plain == value and len(value) <= longest and "\x00" not in value:
        return value
    return "sha256:" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
