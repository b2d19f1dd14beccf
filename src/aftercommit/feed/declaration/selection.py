"""Which events make a strand, and by what number they are ordered there.

    ByStream("investigation")   the events of one aggregate, by its own gapless number (`stream_seq`)
    ByScope("project_id")       the events of one scope value, by position
    ByAudience("user:{key}")    the events of which one reader hears, by position
    Everything()                the whole log, by position; its one key is ""

Each names the parts of the SQL by which history is read, and the place a facet's index has.
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
    """What a feed selects from the log."""

    @property
    def by_stream(self) -> bool:
        """Whether a strand is ordered by the stream's own number."""

    @property
    def by_audience(self) -> bool:
        """Whether history finds a strand's events by who hears of them."""

    def check(self, outbox: Outbox) -> None:
        """DeclarationError when this outbox has nothing of the kind."""

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The keys of the strands that an event belongs to."""

    def number_of(self, stored: StoredEvent) -> int:
        """Its number there."""

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The key as a query takes it; UnknownStrand when no event can have it."""

    @property
    def column(self) -> str | None:
        """The column of the log that holds the key."""

    def parts(self) -> Parts:
        """Parts of the queries that are constants of this declaration."""

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """The index by which events with a value in this place of their payload are found; None: there can be none."""


@dataclass(frozen=True, slots=True)
class ByStream:
    """The events of one aggregate of this type, which the outbox declares `numbered`."""

    aggregate_type: str
    by_stream: bool = True
    by_audience: bool = False

    def check(self, outbox: Outbox) -> None:
        """Only numbered aggregates have a number that readers can hold."""
        if self.aggregate_type not in outbox.numbered:
            raise DeclarationError(
                f"a feed by stream needs numbers: declare Outbox(numbered=[{self.aggregate_type!r}, …]) "
                f"(numbered now: {', '.join(outbox.numbered) or 'none'})"
            )

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The aggregate's id; events from before it was numbered are in no strand."""
        record = stored.record
        return (record.aggregate_id,) if record.aggregate_type == self.aggregate_type and stored.stream_seq else ()

    def number_of(self, stored: StoredEvent) -> int:
        """The number within the stream."""
        return stored.stream_seq or 0

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The id itself."""
        return _text(key)

    @property
    def column(self) -> str | None:
        """The aggregate's id."""
        return "aggregate_id"

    def parts(self) -> Parts:
        """The aggregate's type stands in the query itself, so that partial indexes fit."""
        return {"aggregate_type": sql.Literal(self.aggregate_type)}

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """Within the stream, by its number."""
        return LogFacet("stream", self.aggregate_type, path)


@dataclass(frozen=True, slots=True)
class ByScope:
    """The events with one value in this scope column."""

    name: str
    by_stream: bool = False
    by_audience: bool = False

    def check(self, outbox: Outbox) -> None:
        """Only what is declared as scope is on every event."""
        if self.name not in outbox.shape.scope:
            raise DeclarationError(
                f"a feed by scope {self.name!r} needs Outbox(scope={{{self.name!r}: …}}) "
                f"(declared: {', '.join(outbox.shape.scope) or 'none'})"
            )

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The scope value as text."""
        return (str(stored.record.scope[self.name]),)

    def number_of(self, stored: StoredEvent) -> int:
        """The position."""
        return stored.record.position or 0

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The value in the column's type, when the key is how we write it: there is one strand for one value."""
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

    def parts(self) -> Parts:
        """None."""
        return {}

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """Within the scope, by position."""
        return LogFacet("scope", self.name, path)


@dataclass(frozen=True, slots=True)
class ByAudience:
    """The events of which one reader hears, on an outbox that declares an `audience`.

    `reader` says how a key is written in audiences: with "user:{key}" the key 17 is the reader user:17, and readers of
    other kinds (`team:7`) have no strand in this feed. As it stands, the key is the reader.
    """

    reader: str = _KEY
    by_stream: bool = False
    by_audience: bool = True

    def __post_init__(self) -> None:
        """Refuse what could name nobody, or everybody."""
        longest = MAX_READER - 1 + len(_KEY)
        if not is_storable(self.reader, longest) or not _READER.fullmatch(self.reader):
            raise DeclarationError(
                f"ByAudience({self.reader!r:.100}) must hold {_KEY} once, no other braces and at most {longest} "
                f"characters: e.g. 'user:{_KEY}'"
            )

    def check(self, outbox: Outbox) -> None:
        """Only where it is declared does every event say who hears of it."""
        if not outbox.shape.audience:
            raise DeclarationError(
                f"a feed by audience needs Outbox({outbox.schema!r}, audience=True), and publish(…, audience=[…])"
            )

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """Everybody who hears of it and is written as this feed writes its readers."""
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

    def number_of(self, stored: StoredEvent) -> int:
        """The position."""
        return stored.record.position or 0

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """The reader."""
        before, _, after = self.reader.partition(_KEY)
        return before + _text(key, MAX_READER - len(before) - len(after)) + after

    @property
    def column(self) -> str | None:
        """None: an event has many readers."""
        return None

    def parts(self) -> Parts:
        """None."""
        return {}

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """None: values are compared event by event among those that the reader hears of."""
        return None


@dataclass(frozen=True, slots=True)
class Everything:
    """The whole log as one strand, whose key is empty."""

    by_stream: bool = False
    by_audience: bool = False

    def check(self, outbox: Outbox) -> None:
        """Every outbox has a log."""

    def keys_of(self, stored: StoredEvent) -> Iterable[str]:
        """The one key."""
        return ("",)

    def number_of(self, stored: StoredEvent) -> int:
        """The position."""
        return stored.record.position or 0

    def parameter(self, outbox: Outbox, key: str) -> Any:
        """Nothing is asked for."""
        if key:
            raise UnknownStrand(f"a feed of everything has no key, and {key!r:.80} was asked for")
        return key

    @property
    def column(self) -> str | None:
        """None."""
        return None

    def parts(self) -> Parts:
        """None."""
        return {}

    def facet(self, path: tuple[str, ...]) -> LogFacet | None:
        """In the log, by position."""
        return LogFacet("everything", "", path)


def _text(key: str, longest: int = _LONGEST_KEY) -> str:
    if not key or len(key) > longest or "\x00" in key:
        raise UnknownStrand(f"{key!r:.80} cannot be the id of anything: 1 to {longest} characters, no NUL")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UnknownStrand(f"{key!r:.80} is not text") from None
    return key
