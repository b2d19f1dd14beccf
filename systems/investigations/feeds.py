"""The logs of an investigation over HTTP: pages, long-polls and a stream, from one declaration."""

from collections.abc import Mapping
from typing import Any, Final

from aftercommit.access import Rate
from aftercommit.feed import (
    TIME_AND_SEQ,
    AtLeast,
    ByStream,
    Equals,
    Feed,
    Limits,
    LogEvent,
    OneOf,
    PagedBody,
    Wire,
    timestamp,
)
from aftercommit.redaction import Redactor
from systems.investigations.events import LEVELS, SOURCES, LogRecorded, outbox

# Lines and titles are redacted by the same rules.
redactor: Final = Redactor()
LOGS_PATH: Final = "/api/v1/investigations/{investigation_id}/logs"

UNIFIED_LOG: Final[Mapping[str, Any]] = {
    "title": "UnifiedLog",
    "type": "object",
    "properties": {
        "event_id": {"type": "string", "format": "uuid", "description": "The producer's id of the line."},
        "ts": {"type": "string", "format": "date-time", "description": "The server's time; it never goes backwards."},
        "seq": {"type": "integer", "minimum": 1, "description": "Number of the line in its investigation."},
        "source": {"type": "string", "enum": list(SOURCES)},
        "service": {"type": "string"},
        "level": {"type": "string", "enum": list(LEVELS)},
        "message": {"type": "string", "description": "Redacted."},
        "investigation_id": {"type": "string"},
        "correlation_id": {"type": "string", "description": "Groups related lines; by default the event_id."},
        "context": {"type": "object", "description": "Redacted. `client_ts` is the time by the producer's clock."},
        "schema_version": {"type": "integer", "const": 1},
        "withheld": {"type": "string", "description": "Why the server hides this line; most fields are then missing."},
    },
    "required": ["event_id"],
}


def unified_log(event: LogEvent[LogRecorded]) -> Mapping[str, Any]:
    """A line as readers get it. The relay assigns `ts` and `seq`; the producer's time is in `context`."""
    line = event.payload
    return {
        "event_id": str(line.event_id),
        "ts": timestamp(event.ts),
        "seq": event.stream_seq,
        "source": line.source,
        "service": line.service,
        "level": line.level,
        "message": line.message,
        "investigation_id": line.investigation_id,
        "correlation_id": event.correlation_id,
        "context": line.context,
        "schema_version": event.schema_version,
    }


logs: Final = Feed(
    "logs",
    outbox,
    select=ByStream("investigation"),
    types=("log.recorded",),
    cursor=TIME_AND_SEQ,
    filters=(
        AtLeast("minLevel", facet="level", order=LEVELS, default="DEBUG"),
        OneOf("source", facet="source", values=SOURCES),
        Equals("service", facet="service", longest=100),
    ),
    facets={"level": "level", "source": "source", "service": "service"},
    item=unified_log,
    redactor=redactor,
    limits=Limits(default=100, least=10, most=1000),
    wire=Wire(cursor="afterCursor", limit="limit", body=PagedBody("logs"), event_name="log"),
    permission="investigation:{key}:read",
    rates=(Rate("user", 100, 60), Rate("resource", 1000, 60)),
    item_schema=UNIFIED_LOG,
)
