"""What an outbox looks like in the database: its schema, scope columns, extra indexes and declared views. Pure data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from aftercommit.errors import DeclarationError

MAX_IDENTIFIER = 63
SCOPE_TYPES: Mapping[type[Any], str] = {str: "varchar(255)", int: "bigint", UUID: "uuid"}
RESERVED = frozenset(
    "id seq lane position ts stream_seq aggregate_type aggregate_id event_type schema_version occurred_at correlation_id "
    "causation_id payload status retry_count next_retry_at created_at published_at last_error event_id consumer_name "
    "error error_class attempts first_seen_at last_seen_at history idempotency_key events event connection".split()
)
_COLUMN = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class DeclaredView:
    """Every event with its status under a document's own names.

    `columns` maps the view's column names to canonical ones (see `VIEW_COLUMNS`); `statuses` maps canonical states
    (`pending`, `published`, `failed`) to the document's words. `envelope=True` shows the payload wrapped in its
    envelope. A `writable` view accepts INSERT of pending events, as the document's own SQL does it.
    """

    name: str
    columns: Mapping[str, str]
    statuses: Mapping[str, str] = field(default_factory=dict)
    envelope: bool = False
    writable: bool = False


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


@dataclass(frozen=True, slots=True)
class Shape:
    """The database side of one outbox declaration."""

    schema: str = "aftercommit"
    scope: Mapping[str, type[Any]] = field(default_factory=dict)
    indexed: tuple[str, ...] = ()
    views: tuple[DeclaredView, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that PostgreSQL would truncate or that would collide."""
        checked_identifier(self.schema, "schema")
        if self.schema.startswith("pg_") or self.schema == "information_schema":
            raise DeclarationError(f"schema {self.schema!r} belongs to PostgreSQL: choose another name")
        for name, python_type in self.scope.items():
            _check_scope(name, python_type)
        for name in self.indexed:
            if name not in self.scope and name != "aggregate_id":
                raise DeclarationError(f"indexed={name!r} is not a scope column nor aggregate_id")
        for view in self.views:
            _check_view(view, self.scope)

    @property
    def publish_channel(self) -> str:
        """The NOTIFY channel that wakes relays."""
        return _channel("aftercommit_outbox_", self.schema)

    @property
    def log_channel(self) -> str:
        """The NOTIFY channel that wakes readers of the log."""
        return _channel("aftercommit_log_", self.schema)


def checked_identifier(name: str, what: str) -> str:
    """The name itself, if PostgreSQL keeps all of it."""
    if not isinstance(name, str) or not name or "\x00" in name or "%" in name or len(name.encode()) > MAX_IDENTIFIER:
        raise DeclarationError(f"{what} name {name!r:.100} is not usable: 1 to {MAX_IDENTIFIER} bytes, no NUL, no %")
    return name


def _channel(prefix: str, schema: str) -> str:
    # Channels share the identifier limit; two long schema names with the same head merely wake each other's relays.
    return (prefix + schema).encode()[:MAX_IDENTIFIER].decode(errors="ignore")


def _check_scope(name: str, python_type: type[Any]) -> None:
    if not _COLUMN.fullmatch(name) or len(name) > MAX_IDENTIFIER or name in RESERVED:
        raise DeclarationError(
            f"scope name {name!r} is not usable: lower-case letters, digits and _, not one of the envelope's own names"
        )
    if python_type not in SCOPE_TYPES:
        raise DeclarationError(f"scope {name!r} has type {python_type!r}: use str, int or uuid.UUID")


def _check_view(view: DeclaredView, scope: Mapping[str, type[Any]]) -> None:
    checked_identifier(view.name, "view")
    unknown = set(view.statuses) - {"pending", "published", "failed"}
    if unknown:
        raise DeclarationError(f"view {view.name!r} renames unknown states {sorted(unknown)}")
    for column, canonical in view.columns.items():
        checked_identifier(column, f"column of view {view.name!r}")
        if canonical not in VIEW_COLUMNS and canonical not in scope:
            raise DeclarationError(f"view {view.name!r}: {column!r} shows {canonical!r}, which is not a column of an event")
