"""The events of an investigation.

A log line is an event of the numbered aggregate `investigation`: the relay gives each line the next number of its
investigation. Publish nothing else on that aggregate, or readers of the logs would see gaps in the numbers. Events
about an investigation as a whole belong to the aggregate `case`.
"""

from typing import Any, Literal
from uuid import UUID

import msgspec

from aftercommit import Outbox

Source = Literal["frontend", "backend"]
Level = Literal["DEBUG", "INFO", "WARN", "ERROR"]

# The lowest first.
LEVELS: tuple[Level, ...] = ("DEBUG", "INFO", "WARN", "ERROR")
SOURCES: tuple[Source, ...] = ("frontend", "backend")
MAX_LOG_BYTES = 64 * 1024

outbox = Outbox("investigation_events", numbered=["investigation"], max_payload_bytes=MAX_LOG_BYTES)


@outbox.event("log.recorded", aggregate="investigation", key="investigation_id")
class LogRecorded(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frontend or a backend wrote a line.

    `event_id` is the producer's id of the line, and the line is stored once per id. It is unique within its
    investigation only, so the envelope has its own id: a line in one investigation cannot block one in another.
    """

    investigation_id: str
    event_id: UUID
    source: Source
    service: str
    level: Level
    message: str
    context: dict[str, Any] = {}


@outbox.event("investigation.opened", aggregate="case", key="investigation_id")
class InvestigationOpened(msgspec.Struct, frozen=True):
    """An investigation was opened."""

    investigation_id: str
    title: str
    by: str


@outbox.event("investigation.closed", aggregate="case", key="investigation_id")
class InvestigationClosed(msgspec.Struct, frozen=True):
    """An investigation was closed. Its logs can still be read."""

    investigation_id: str
    by: str
