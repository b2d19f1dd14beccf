"""The database side of an outbox: its schema, scope columns, indexes and declared views. Checked data, no IO."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

from aftercommit.errors import DeclarationError

# The number of lanes that aggregates are hashed to. The tables are made for this number.
LANES = 64
MAX_IDENTIFIER = 63
# Index names are a prefix of ten characters and a scope name, and must not be cut.
MAX_SCOPE_NAME = MAX_IDENTIFIER - 10
SCOPE_TYPES: Mapping[type[Any], str] = {str: "varchar(255)", int: "bigint", UUID: "uuid"}
ENGINE_TABLES = frozenset(
    "migration head life outbox log stream relay lane published_key consumer processed_events dead_letter_events "
    "operation operation_event upkeep service_token revoked_token rate_window rate_log consumer_worker "
    "version_wait".split()
)
# If an audience is declared: the column with the readers of an event, and the table that finds the events of a reader.
AUDIENCE = "audience"
# The most readers of one event, and the most characters of a reader.
MAX_AUDIENCE = 10_000
MAX_READER = 255
PARTITION_NAME = re.compile(rf"(?:log|{AUDIENCE})_\d{{6,}}")
# Columns of our tables, names in our queries, parameters of publish(), and PostgreSQL's system columns.
RESERVED = frozenset(
    "id seq lane position ts stream_seq aggregate_type aggregate_id event_type schema_version occurred_at "
    "correlation_id causation_id payload status retry_count next_retry_at created_at published_at last_error "
    "event_id consumer_name error error_class attempts attempts_before first_seen_at last_seen_at history "
    "spared bytes_before rank audience "
    "idempotency_key outside_transaction events event connection self "
    "tableoid ctid xmin xmax cmin cmax".split()
)
_COLUMN = re.compile(r"[a-z][a-z0-9_]*")
_STATES = frozenset({"pending", "published", "failed"})


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """A view of all events and their status, under your own names.

    `columns` maps the view's column names to columns of an event (see `VIEW_COLUMNS`), to scope columns or to a
    declared `audience`; `statuses` maps `pending`, `published` and `failed` to your own words. `envelope=True` shows
    the payload inside its envelope. A `writable` view accepts INSERT of pending events from your own SQL: a known event
    is replayed, a new one is published.
    """

    name: str
    columns: Mapping[str, str]
    statuses: Mapping[str, str] = field(default_factory=dict)
    envelope: bool = False
    writable: bool = False


@dataclass(frozen=True, slots=True)
class LogFacet:
    """An index of the log by a payload value, within a stream, within a scope or for the whole log.

    `of` is the aggregate type or the name of the scope; `path` is the path of the value in the payload. Without a path,
    it is the index of the scope itself.
    """

    by: Literal["stream", "scope", "everything"]
    of: str
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the index: as readable as it fits, and a digest that makes it unique."""
        if not self.path:
            return f"log_scope_{self.of}"
        readable = re.sub(r"[^a-z0-9]+", "_", "_".join((self.of, *self.path)).lower())[:36]
        digest = hashlib.sha256(repr((self.by, self.of, self.path)).encode()).hexdigest()[:8]
        return f"log_facet_{readable}_{digest}"


VIEW_COLUMNS: Mapping[str, str] = {
    "id": "id",
    "id_text": "id::text",
    "event_id": "id",
    "event_id_text": "id::text",
    "position": "position",
    "aggregate_type": "aggregate_type",
    "aggregate_id": "aggregate_id",
    "event_type": "event_type",
    "schema_version": "schema_version",
    "occurred_at": "occurred_at",
    "correlation_id": "correlation_id",
    "causation_id": "causation_id",
    "payload": "payload",
    "status": "status",
    "retry_count": "retry_count",
    "next_retry_at": "next_retry_at",
    "created_at": "created_at",
    "published_at": "published_at",
    "last_error": "last_error",
}
ID_COLUMNS = ("event_id", "event_id_text", "id", "id_text")


@dataclass(frozen=True, slots=True)
class Shape:
    """The database side of one outbox declaration."""

    schema: str = "aftercommit"
    scope: Mapping[str, type[Any]] = field(default_factory=dict)
    indexed: tuple[str, ...] = ()
    views: tuple[DeclaredView, ...] = ()
    facets: tuple[LogFacet, ...] = ()
    audience: bool = False

    def __post_init__(self) -> None:
        checked_identifier(self.schema, "schema")
        if self.schema.startswith("pg_") or self.schema == "information_schema":
            raise DeclarationError(f"schema {self.schema!r} belongs to PostgreSQL: choose another name")
        for name, python_type in self.scope.items():
            _check_scope(name, python_type)
        for name in self.indexed:
            if name not in self.scope and name not in ("aggregate_id", "created_at"):
                raise DeclarationError(f"indexed={name!r} is not a scope column, aggregate_id or created_at")
        names = [view.name for view in self.views]
        for view in self.views:
            _check_view(view, self.carried)
            if names.count(view.name) > 1:
                raise DeclarationError(f"view {view.name!r} is declared twice: give one of the two another name")

    @property
    def carried(self) -> tuple[str, ...]:
        """The declared columns of every event: scope, then audience."""
        return (*self.scope, AUDIENCE) if self.audience else tuple(self.scope)

    @property
    def log_facets(self) -> tuple[LogFacet, ...]:
        """The indexes of the log that are declared. Each costs the relay time with every event.

        Scopes have one if they are declared first or `indexed`, or if a feed reads by them.
        """
        first = next(iter(self.scope), None)
        scopes = (name for name in self.scope if name == first or name in self.indexed)
        return tuple(dict.fromkeys([*(LogFacet("scope", name, ()) for name in scopes), *self.facets]))

    @property
    def publish_channel(self) -> str:
        """The NOTIFY channel that wakes relays."""
        return _channel("aftercommit_outbox_", self.schema)

    @property
    def log_channel(self) -> str:
        """The NOTIFY channel that wakes readers of the log."""
        return _channel("aftercommit_log_", self.schema)

    @property
    def guard_channel(self) -> str:
        """The NOTIFY channel for changes of service tokens and revocations."""
        return _channel("aftercommit_guard_", self.schema)


class HasShape(Protocol):
    """An `Outbox`, or another object with a shape."""

    @property
    def shape(self) -> Shape:
        """Its tables in the database."""


def shape_of(declared: HasShape | Shape) -> Shape:
    """The shape of an outbox, or the shape itself."""
    return declared if isinstance(declared, Shape) else declared.shape


def checked_identifier(name: str, what: str) -> str:
    """The name, if PostgreSQL does not cut it and drivers do not change it.

    A driver would take % for a placeholder. Names are also in SQL comments, which end with the line.
    """
    usable = isinstance(name, str) and name and "%" not in name and not any(map(_is_control, name))
    if not usable or len(name.encode()) > MAX_IDENTIFIER:
        raise DeclarationError(
            f"{what} name {name!r:.100} is not valid: use 1 to {MAX_IDENTIFIER} bytes, no control characters (NUL, "
            "line ends, …), no %"
        )
    return name


def _is_control(character: str) -> bool:
    """Control characters, line and paragraph separators, and lone surrogates."""
    return unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs")


def _channel(prefix: str, schema: str) -> str:
    # Channels have the identifier limit. Long schema names that are cut to the same one just wake each other's relays.
    return (prefix + schema).encode()[:MAX_IDENTIFIER].decode(errors="ignore")


def _check_scope(name: str, python_type: type[Any]) -> None:
    if not _COLUMN.fullmatch(name) or len(name) > MAX_SCOPE_NAME or name in RESERVED:
        raise DeclarationError(
            f"scope name {name!r:.100} is not valid: use at most {MAX_SCOPE_NAME} lower-case letters, digits and _, "
            "and not a name that the envelope, publish() or PostgreSQL uses itself"
        )
    if python_type not in SCOPE_TYPES:
        raise DeclarationError(f"scope {name!r} has type {python_type!r}: use str, int or uuid.UUID")


def _check_view(view: DeclaredView, carried: tuple[str, ...]) -> None:
    checked_identifier(view.name, "view")
    if view.name in (*ENGINE_TABLES, AUDIENCE) or PARTITION_NAME.fullmatch(view.name):
        raise DeclarationError(f"view {view.name!r} has the name of a table of the outbox: rename it")
    if not view.columns:
        raise DeclarationError(f"view {view.name!r} has no columns: map at least one in columns={{…}}")
    if unknown := set(view.statuses) - _STATES:
        raise DeclarationError(f"view {view.name!r} renames unknown states {sorted(unknown)}: use {sorted(_STATES)}")
    for word in view.statuses.values():
        if not isinstance(word, str) or not word or "\x00" in word or "%" in word:
            raise DeclarationError(f"view {view.name!r} has the state {word!r}: use text without NUL and %")
    for column, canonical in view.columns.items():
        checked_identifier(column, f"column of view {view.name!r}")
        if canonical not in VIEW_COLUMNS and canonical not in carried:
            raise DeclarationError(
                f"view {view.name!r}: {column!r} shows {canonical!r}, which is not a column of an event. "
                f"Use one of {', '.join([*VIEW_COLUMNS, *carried])}"
            )
    shown = set(view.columns.values())
    if view.writable and not ({"event_type", "payload"} <= shown and shown.intersection(ID_COLUMNS)):
        raise DeclarationError(
            f"view {view.name!r} cannot be writable: it must show an event id, event_type and payload"
        )
