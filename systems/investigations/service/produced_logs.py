"""Reads the lines that producers send, one or a batch, and names errors by index and field. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from aftercommit import Draft, checked_correlation, uuid7
from aftercommit.errors import ContractViolation, InvalidPayload
from aftercommit.http import Problem, bad_request
from systems.host.http import no_json, refuse_repeated_names, shortened
from systems.investigations.events import LEVELS, MAX_LOG_BYTES, SOURCES, Level, LogRecorded, Source, outbox
from systems.investigations.service.errors import BadLog

MOST_LOGS: Final = 1000
CLIENT_TS: Final = "client_ts"

_RECORDED: Final = outbox.registry.resolve(LogRecorded)
_VALUES: Final[Mapping[str, Sequence[str]]] = {"source": SOURCES, "level": LEVELS}
LONGEST_FIELD: Final = 100
# "Expected `str`, got `int` - at `$[3].level`": the place is a path; missing and unknown fields are named before it.
_PLACE: Final = re.compile(
    r"(?P<reason>.*?)(?: - at `(?:key in )?\$(?:\[(?P<index>\d+)\])?\.?(?P<path>[^`]*)`)?", re.DOTALL
)
_NAMED: Final = re.compile(r"(?:missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)


class ProducedLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One log line from a producer.

    `ts` is the producer's time and is stored as `context.client_ts`, unless the context has that field; readers see the
    server's time as `ts`. A line without an `event_id` is stored as often as it is sent.
    """

    source: Source
    service: Annotated[str, Meta(min_length=1, max_length=100)]
    level: Level
    message: Annotated[str, Meta(max_length=32_768)]
    event_id: UUID | UnsetType = UNSET
    ts: Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})] | UnsetType = UNSET
    correlation_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    context: dict[str, Any] = {}
    investigation_id: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1


_one: Final = msgspec.json.Decoder(ProducedLog)
_many: Final = msgspec.json.Decoder(list[ProducedLog])
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_logs(body: bytes, investigation_id: str) -> list[ProducedLog]:
    """The lines of a request: a JSON object is one line; an array, alone or as `{"logs": […]}`, is a batch."""
    if not body:
        raise bad_request("The body is missing: send a log as a JSON object, or an array of logs")
    try:
        logs = _decoded(body)
        refuse_repeated_names(body)
    except msgspec.ValidationError as problem:
        raise _misread(str(problem)) from problem
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise no_json(body, problem) from problem
    if not logs:
        raise bad_request("The batch is empty: send at least one log", field="logs")
    if len(logs) > MOST_LOGS:
        details = {"logs": len(logs), "most": MOST_LOGS}
        raise Problem(413, f"The batch has {len(logs)} logs: send at most {MOST_LOGS} at once", details=details)
    for index, log in enumerate(logs):
        _check(index, log, investigation_id)
    return logs


def _decoded(body: bytes) -> list[ProducedLog]:
    if body.lstrip(b" \t\r\n")[:1] == b"[":
        return _many.decode(body)
    fields = _fields.decode(body)
    if "logs" not in fields:
        return [_one.decode(body)]
    for name in fields:
        if name != "logs":
            raise bad_request(f"Unknown field {name!r:.100} beside `logs`: send only the list", field=name[:100])
    if not bytes(fields["logs"]).startswith(b"["):
        raise bad_request("`logs` must be an array of logs", field="logs")
    return _many.decode(fields["logs"])


def _misread(problem: str) -> BadLog:
    found = _PLACE.fullmatch(problem)
    assert found is not None
    named = _NAMED.search(found["reason"])
    field = ".".join(part for part in (found["path"], named["name"] if named else None) if part)
    remedy = f": use one of {', '.join(_VALUES[field])}" if field in _VALUES else ""
    reason = shortened(found["reason"]) + remedy
    return BadLog(int(found["index"] or 0), shortened(field, LONGEST_FIELD) or None, reason)


def _check(index: int, log: ProducedLog, investigation_id: str) -> None:
    """Checks beyond the types."""
    if log.investigation_id is not UNSET and log.investigation_id != investigation_id:
        raise BadLog(index, "investigation_id", f"{log.investigation_id!r:.120} is not the one in the URL")
    if log.ts is not UNSET and not _is_moment(log.ts):
        raise BadLog(index, "ts", f"{log.ts!r} is not a time with a zone, such as 2025-11-12T10:30:05.123Z")


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def drafts(logs: Sequence[ProducedLog], investigation_id: str) -> list[Draft]:
    """The events for these lines, each with an `event_id`."""
    return [_draft(log, investigation_id) for log in logs]


def _draft(log: ProducedLog, investigation_id: str) -> Draft:
    event_id = uuid7() if log.event_id is UNSET else log.event_id
    # A `client_ts` of the producer's own wins.
    context = log.context if log.ts is UNSET else {CLIENT_TS: log.ts, **log.context}
    recorded = LogRecorded(investigation_id, event_id, log.source, log.service, log.level, log.message, context)
    return Draft(type_name=_RECORDED.name, payload=recorded, correlation_id=log.correlation_id or str(event_id))


def first_refused(events: Sequence[Draft]) -> Problem | None:
    """The first line that cannot be stored, and why. Called only after the outbox has refused the batch."""
    for index, event in enumerate(events):
        try:
            size = len(_RECORDED.encode(event.payload))
            checked_correlation(event.correlation_id or "")
        except InvalidPayload as problem:
            return BadLog(index, (problem.field or "$").removeprefix("$").removeprefix(".") or None, str(problem))
        except ContractViolation as problem:
            return BadLog(index, "correlation_id", str(problem))
        if size > MAX_LOG_BYTES:
            return Problem(
                413,
                f"Log {index} has {size} bytes, and the limit is {MAX_LOG_BYTES}: shorten its message or context",
                details={"index": index, "bytes": size, "most": MAX_LOG_BYTES},
            )
    return None
