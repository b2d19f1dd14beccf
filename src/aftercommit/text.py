"""Text that can be stored and shown whatever it came from, words that go with a number, and a remedy that many need."""

from datetime import UTC, datetime

MAX_ERROR_LENGTH = 2000

OF_APP = "--app module:outbox"
"""Stands for the outbox of a caller whom we do not know. A command that needs declarations and is not told whose would
take others: `migrate up` would make a second outbox."""

MIGRATE = f"run `aftercommit migrate up {OF_APP}`"
"""The remedy for tables that are not what the code needs."""


def readable(error: BaseException) -> str:
    """What the error says of itself; an error that cannot even say that is known by its class."""
    try:
        return str(error) or type(error).__name__
    except Exception as problem:  # noqa: BLE001 - __str__ of a foreign error is foreign code
        return f"{type(error).__name__} (its message cannot be read: {type(problem).__name__})"


def storable_error(error: BaseException) -> str:
    """The error as text that PostgreSQL can store: bounded, and without NUL or lone surrogates."""
    text = readable(error)
    text = text.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text[:MAX_ERROR_LENGTH]


def utc_second(moment: datetime) -> str:
    """A moment in UTC to the second, as people read it: RFC 3339."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def plural(count: int, noun: str) -> str:
    """So many of a thing, for nouns that take an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
