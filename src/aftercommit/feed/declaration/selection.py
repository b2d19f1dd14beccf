"""Which events belong to a strand, and the number that orders them there.

    ByStream("investigation")   the events of one aggregate, by its own gapless number (`stream_seq`)
    ByScope("project_id")       the events with one scope value, by position
    ByAudience("user:{key}")    the events that one reader receives, by position
    Everything()                the whole log, by position; its only key is ""

Each one provides its parts of the SQL that reads history, and the indexes for facets.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from psycopg import sql

from aftercommit.errors import DeclarationError, UnknownStrand
from aftercommit.event.json_rules import is_storable
from aftercommit.feed.declaration.entry import StoredEvent
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.shape import MAX_READER, LogFacet

_LONGEST_KEY: Final = 255
_LARGEST: Final = 2**63 - 1
_KEY: Final = "{key}"
_READER: Final = re.compile(r"[^{}]*\{key\}[^{}]*")

Parts = Mapping[str, sql.Composable]


class FeedSelection(Protocol):
    """Selects the events of a feed from the log."""

    @property
    def by_stream(self) -> bool:
        """Whether a strand is ordered by the stream's own number."""

    @property
    def by_audience(self) -> bool:
        """Whether history finds the events of a strand by their audience."""

    def check(self, outbox: Outbox) -> None:
        """DeclarationError if the outbox does not declare what this selection needs."""

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The keys of the strands that an event belongs to."""

    def number_of(self, stored: StoredEvent) -> int:
        """The event's number in its strand."""

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The key as a query parameter; UnknownStrand if no event can have it."""

    @property
    def column(self) -> str | None:
        """The column of the log that has the key."""

    def parts(self) -> Parts:
        """The constant parts of the queries."""

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """The index for a value at this path of the payload; None if there is none."""


class _ByPosition:
    """The common part of selections that are ordered by position."""

    __slots__ = ()
    by_stream = False
    by_audience = False

    def number_of(self, stored: StoredEvent) -> int:
        """The position."""
        return stored.record.position or 0

    @property
    def column(self) -> str | None:
        """None: no column has the key."""
        return None

    def parts(self) -> Parts:
        """None."""
        return {}


@dataclass(frozen=True, slots=True)
class ByStream:
    """The events of one aggregate of this type, which the outbox declares as `numbered`."""

    aggregate_type: str
    by_stream = True
    by_audience = False

    def check(self, outbox: Outbox) -> None:
        """The aggregate type must be numbered."""
        if self.aggregate_type not in outbox.numbered:
            raise DeclarationError(
                f"a feed by stream needs numbers: declare Outbox(numbered=[{self.aggregate_type!r}, …]) "
                f"(numbered now: {', '.join(outbox.numbered) or 'none'})"
            )

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The aggregate's id; events from before the aggregate was numbered are in no strand."""
        record = stored.record
        return (record.aggregate_id,) if record.aggregate_type == self.aggregate_type and stored.stream_seq else ()

    def number_of(self, stored: StoredEvent) -> int:
        """The number within the stream."""
        return stored.stream_seq or 0

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The aggregate's id."""
        return _text(key)

    @property
    def column(self) -> str | None:
        """The aggregate's id."""
        return "aggregate_id"

    def parts(self) -> Parts:
        """The aggregate type, as a literal: PostgreSQL could not use partial indexes with a parameter."""
        return {"aggregate_type": sql.Literal(self.aggregate_type)}

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """Within the stream, by its number."""
        return LogFacet("stream", self.aggregate_type, path)


@dataclass(frozen=True, slots=True)
class ByScope(_ByPosition):
    """The events with one value in this scope column."""

    name: str

    def check(self, outbox: Outbox) -> None:
        """The outbox must declare the scope."""
        if self.name not in outbox.shape.scope:
            raise DeclarationError(
                f"a feed by scope {self.name!r} needs Outbox(scope={{{self.name!r}: …}}) "
                f"(declared: {', '.join(outbox.shape.scope) or 'none'})"
            )

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The scope value as text."""
        return (str(stored.record.scope[self.name]),)

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The value in the column's type. Only its canonical text is a key, so that one value has one strand."""
        kind = outbox.shape.scope[self.name]
        if kind is str:
            return _text(key)
        try:
            value = kind(key)
        except ValueError:
            value = None
        if str(value) != key or (isinstance(value, int) and abs(value) > _LARGEST):
            what = "a UUID in lower case" if kind is UUID else "an integer"
            raise UnknownStrand(f"{self.name} {key!r:.80} is not {what}")
        return value

    @property
    def column(self) -> str | None:
        """The scope's."""
        return self.name

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """Within the scope, by position."""
        return LogFacet("scope", self.name, path)


@dataclass(frozen=True, slots=True)
class ByAudience(_ByPosition):
    """The events that one reader receives, on an outbox that declares an `audience`.

    `reader` says how audiences name the reader of a key: with "user:{key}", the key 17 is the reader user:17, and other
    readers (`team:7`) have no strand in this feed. With the default, the key is the reader.
    """

    reader: str = _KEY
    by_audience = True

    def __post_init__(self) -> None:
        longest = MAX_READER - 1 + len(_KEY)
        if not is_storable(self.reader, longest) or not _READER.fullmatch(self.reader):
            raise DeclarationError(
                f"ByAudience({self.reader!r:.100}) must contain {_KEY} once, no other braces and at most {longest} "
                f"characters: e.g. 'user:{_KEY}'"
            )

    def check(self, outbox: Outbox) -> None:
        """The outbox must declare an audience."""
        if not outbox.shape.audience:
            raise DeclarationError(
                f"a feed by audience needs Outbox({outbox.schema!r}, audience=True), and publish(…, audience=[…])"
            )

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The keys of the readers in the audience that match the pattern."""
        readers = stored.record.audience
        if self.reader == _KEY:
            return readers
        before, _, after = self.reader.partition(_KEY)
        around = len(before) + len(after)
        return [
            reader[len(before) : len(reader) - len(after)]
            for reader in readers
            if len(reader) > around and reader.startswith(before) and reader.endswith(after)
        ]

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The reader."""
        before, _, after = self.reader.partition(_KEY)
        return before + _text(key, MAX_READER - len(before) - len(after)) + after

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """None: filters compare the reader's events one by one."""
        return None


@dataclass(frozen=True, slots=True)
class Everything(_ByPosition):
    """The whole log as one strand, whose key is empty."""

    def check(self, outbox: Outbox) -> None:
        """Every outbox has a log."""

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The only key."""
        return ("",)

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The empty key."""
        if key:
            raise UnknownStrand(f"this feed has a single strand without a key, not {key!r:.80}")
        return key

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """In the log, by position."""
        return LogFacet("everything", "", path)


def _text(key: str, longest: int = _LONGEST_KEY) -> str:
    if not key or len(key) > longest or "\x00" in key:
        raise UnknownStrand(f"{key!r:.80} is not a valid id: use 1 to {longest} characters, no NUL")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UnknownStrand(f"{key!r:.80} is not Unicode text") from None
    return key
