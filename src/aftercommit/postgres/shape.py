"""What an outbox looks like in the database: its schema, scope columns, extra indexes and declared views.

Pure data, checked when it is declared; nothing is connected here.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

from aftercommit.errors import DeclarationError

# Aggregates hash to so many lanes; the tables are made for this number.
LANES = 64
MAX_IDENTIFIER = 63
# Index names are made of a scope name and a prefix of ten characters, and must stay apart.
MAX_SCOPE_NAME = MAX_IDENTIFIER - 10
SCOPE_TYPES: Mapping[type[Any], str] = {str: "varchar(255)", int: "bigint", UUID: "uuid"}
ENGINE_TABLES = frozenset(
    "migration head life outbox log stream relay lane published_key consumer processed_events dead_letter_events "
    "operation operation_event upkeep service_token revoked_token rate_window rate_log "
    "version_wait".split()
)
# Where an audience is declared: the column that says who hears of an event, and the table by which readers find theirs.
AUDIENCE = "audience"
# At most so many readers of one event, each named with so many characters.
MAX_AUDIENCE = 10_000
MAX_READER = 255
PARTITION_NAME = re.compile(rf"(?:log|{AUDIENCE})_\d{{6,}}")
# Columns of our tables and names inside our queries, parameters of publish(), and what PostgreSQL keeps for itself.
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
    """Every event with its status under your own names.

    `columns` maps the view's column names to canonical ones (see `VIEW_COLUMNS`), to scope columns or to a declared
    `audience`; `statuses` maps canonical states (`pending`, `published`, `failed`) to the document's words.
    `envelope=True` shows the payload wrapped in its envelope. A `writable` view accepts INSERT of pending events, as
    your own SQL does it: a known event is replayed, a new one is published.
    """

    name: str
    columns: Mapping[str, str]
    statuses: Mapping[str, str] = field(default_factory=dict)
    envelope: bool = False
    writable: bool = False


@dataclass(frozen=True, slots=True)
class LogFacet:
    """An index of the log: events of a stream, of a scope or of the whole log, by a value in their payload, in order.

    `of` is the aggregate type or the scope's name; `path` leads to the value inside the payload.
    """

    by: Literal["stream", "scope", "everything"]
    of: str
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the index: what it is for, as far as there is room, and what keeps it apart from all others."""
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
        """Refuse names that PostgreSQL would truncate or that would collide."""
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
        """The columns that the declaration adds to every event, and that go wherever it goes: scope, then audience."""
        return (*self.scope, AUDIENCE) if self.audience else tuple(self.scope)

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
        """The NOTIFY channel that tells servers of changed service tokens and revocations."""
        return _channel("aftercommit_guard_", self.schema)


class HasShape(Protocol):
    """Whatever declares tables: an `Outbox`."""

    @property
    def shape(self) -> Shape:
        """What it looks like in the database."""


def shape_of(declared: HasShape | Shape) -> Shape:
    """The shape of an outbox, or the shape itself."""
    return declared if isinstance(declared, Shape) else declared.shape


def checked_identifier(name: str, what: str) -> str:
    """The name itself, if PostgreSQL keeps all of it and nobody takes a part of it for something else.

    A driver would take % for a placeholder; and a name stands in comments of SQL too, which end with the line.
    """
    usable = isinstance(name, str) and name and "%" not in name and not any(map(_is_control, name))
    if not usable or len(name.encode()) > MAX_IDENTIFIER:
        raise DeclarationError(
            f"{what} name {name!r:.100} is not usable: 1 to {MAX_IDENTIFIER} bytes, no control characters (NUL, line "
            "ends, …), no %"
        )
    return name


def _is_control(character: str) -> bool:
    """Control characters, ends of lines and paragraphs, and halves of characters."""
    return unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs")


def _channel(prefix: str, schema: str) -> str:
    # Channels share the identifier limit; long schema names with the same head merely wake each other's relays.
    return (prefix + schema).encode()[:MAX_IDENTIFIER].decode(errors="ignore")


def _check_scope(name: str, python_type: type[Any]) -> None:
    if not _COLUMN.fullmatch(name) or len(name) > MAX_SCOPE_NAME or name in RESERVED:
        raise DeclarationError(
            f"scope name {name!r:.100} is not usable: at most {MAX_SCOPE_NAME} lower-case letters, digits and _, and "
            "not a name that the envelope, publish() or PostgreSQL uses itself"
        )
    if python_type not in SCOPE_TYPES:
        raise DeclarationError(f"scope {name!r} has type {python_type!r}: use str, int or uuid.UUID")


def _check_view(view: DeclaredView, carried: tuple[str, ...]) -> None:
    checked_identifier(view.name, "view")
    if view.name in (*ENGINE_TABLES, AUDIENCE) or PARTITION_NAME.fullmatch(view.name):
        raise DeclarationError(f"view {view.name!r} would take the place of a table of the outbox: rename it")
    if not view.columns:
        raise DeclarationError(f"view {view.name!r} shows no columns: map at least one in columns={{…}}")
    if unknown := set(view.statuses) - _STATES:
        raise DeclarationError(
            f"view {view.name!r} renames unknown states {sorted(unknown)}: there are {sorted(_STATES)}"
        )
    for word in view.statuses.values():
        if not isinstance(word, str) or not word or "\x00" in word or "%" in word:
            raise DeclarationError(f"view {view.name!r} has the state {word!r}: use text without NUL and %")
    for column, canonical in view.columns.items():
        checked_identifier(column, f"column of view {view.name!r}")
        if canonical not in VIEW_COLUMNS and canonical not in carried:
            raise DeclarationError(
                f"view {view.name!r}: {column!r} shows {canonical!r}, which is not a column of an event. "
                f"There are: {', '.join([*VIEW_COLUMNS, *carried])}"
            )
    shown = set(view.columns.values())
    if view.writable and not ({"event_type", "payload"} <= shown and shown.intersection(ID_COLUMNS)):
        raise DeclarationError(
            f"view {view.name!r} cannot be writable: it must show an event id, event_type and payload"
        )
