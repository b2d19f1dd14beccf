"""What happens in an investigation, as typed events.

A log line is an event of the aggregate `investigation`, which is numbered: the relay gives each line the next number
of its investigation when it appends it. Nothing else may be published on that aggregate, or the numbers that readers
of the logs see would have holes; what happens to an investigation as a whole is about its `case`.
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

    `event_id` is the producer's name for the line, by which it is stored once. It is unique in its investigation only,
    so the envelope has an id of its own: nobody can keep a line out of one investigation by writing it to another.
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
    """From now on logs are taken."""

    investigation_id: str
    title: str
    by: str


@outbox.event("investigation.closed", aggregate="case", key="investigation_id")
class InvestigationClosed(msgspec.Struct, frozen=True):
    """No more logs are taken; those that are there can still be read."""

    investigation_id: str
    by: str
