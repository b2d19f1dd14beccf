"""How the logs of an investigation are read over HTTP: one declaration, served as pages, long-polls and a stream."""

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

# What leaves of an investigation, its title too, is cleaned by the same rules.
redactor: Final = Redactor()
LOGS_PATH: Final = "/api/v1/investigations/{investigation_id}/logs"

UNIFIED_LOG: Final[Mapping[str, Any]] = {
    "title": "UnifiedLog",
    "type": "object",
    "properties": {
        "event_id": {"type": "string", "format": "uuid", "description": "The producer's name for the line."},
        "ts": {"type": "string", "format": "date-time", "description": "The server's time; never runs backwards."},
        "seq": {"type": "integer", "minimum": 1, "description": "The number of the line in its investigation."},
        "source": {"type": "string", "enum": list(SOURCES)},
        "service": {"type": "string"},
        "level": {"type": "string", "enum": list(LEVELS)},
        "message": {"type": "string", "description": "Redacted."},
        "investigation_id": {"type": "string"},
        "correlation_id": {"type": "string", "description": "Joins the lines of one story; without one, the event_id."},
        "context": {"type": "object", "description": "Redacted. `client_ts` is the producer's clock."},
        "schema_version": {"type": "integer", "const": 1},
        "withheld": {"type": "string", "description": "Why nothing is shown of a line that is there."},
    },
    "required": ["event_id"],
}


def unified_log(event: LogEvent[LogRecorded]) -> Mapping[str, Any]:
    """A line as readers get it. `ts` and `seq` are given at the append; the producer's clock is in `context`."""
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
