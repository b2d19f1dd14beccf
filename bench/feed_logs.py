"""What the feed cases read: an investigation with as many logs as one likes, its feed, and a token to read it with."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg

from aftercommit import Outbox
from aftercommit.access.key_count import Rate
from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import mint
from aftercommit.event.envelope import Record
from aftercommit.feed import (
    TIME_AND_SEQ,
    AtLeast,
    ByStream,
    Cursor,
    Equals,
    Feed,
    Limits,
    LogEvent,
    OneOf,
    PagedBody,
    Wire,
    timestamp,
)
from aftercommit.feed.declaration.entry import StoredEvent
from aftercommit.feed.strands.entry_maker import EntryMaker
from aftercommit.redaction import Redactor
from aftercommit.schema import migrate

SCHEMA: Final = "bench_feed"
KEY: Final = "INV-1"
PATH: Final = "/investigations/{investigation_id}/logs"
ADDRESS: Final = PATH.format(investigation_id=KEY)
LEVELS: Final = ("DEBUG", "INFO", "WARN", "ERROR")
ERROR_EVERY: Final = 1000
# Once in every log and nowhere else, so that whoever counts these counts logs, wherever a piece of a stream ends.
MARK: Final = b"~"
MESSAGE: Final = (
    "~ Payment of order 4711 was declined by the provider after two attempts, the cart was kept for the user"
)
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
PER_STATEMENT: Final = 100_000
ENOUGH: Final = 1_000_000_000
_KEYS: Final = {
    "issuer": "bench",
    "audience": "feeds",
    "keys": [{"kty": "oct", "kid": "one", "alg": "HS256", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}],
}

FILL: Final = f"""
    insert into {SCHEMA}.log (
        position, ts, stream_seq, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
        correlation_id, payload, retry_count, created_at
    )
    select n, moment, n, uuidv7(), n, 1, 'investigation', %(key)s::text, 'log.recorded', 1, moment, 'c-' || n,
           json_build_object(
               'investigation_id', %(key)s::text, 'source', case when mod(n, 3) = 0 then 'frontend' else 'backend' end,
               'service', 'service-' || mod(n, 7), 'level', case when mod(n, %(error_every)s) = 0 then 'ERROR'
               else (array['DEBUG', 'INFO', 'WARN'])[mod(n, 3) + 1] end, 'message', %(message)s::text,
               'context', json_build_object('attempt', mod(n, 5))
           ),
           0, moment
    from generate_series(%(first)s::bigint, %(last)s::bigint) n,
         lateral (select %(began)s::timestamptz + n * interval '1 millisecond' as moment) at
"""
END: Final = f"""
    update {SCHEMA}.head set position = %(last)s, ts = %(ts)s;
    insert into {SCHEMA}.stream (aggregate_type, aggregate_id, seq, ts)
    values ('investigation', %(key)s, %(last)s, %(ts)s);
"""


class LogRecorded(msgspec.Struct, frozen=True):
    """A line of a log."""

    investigation_id: str
    source: str
    service: str
    level: str
    message: str
    context: dict[str, Any]


def line(event: LogEvent[LogRecorded]) -> Mapping[str, Any]:
    """A line as readers get it."""
    log = event.payload
    return {
        "event_id": str(event.event_id),
        "ts": timestamp(event.ts),
        "seq": event.stream_seq,
        "source": log.source,
        "service": log.service,
        "level": log.level,
        "message": log.message,
        "investigation_id": log.investigation_id,
        "correlation_id": event.correlation_id,
        "context": log.context,
        "schema_version": event.schema_version,
    }


def declared() -> Feed:
    """The feed, with its outbox declared anew. Its limits count every request and refuse none."""
    outbox = Outbox(SCHEMA, numbered=["investigation"])
    outbox.declare("log.recorded", LogRecorded, aggregate="investigation", key="investigation_id")
    return Feed(
        "logs",
        outbox,
        select=ByStream("investigation"),
        types=("log.recorded",),
        cursor=TIME_AND_SEQ,
        filters=(
            AtLeast("minLevel", facet="level", order=LEVELS, default="DEBUG"),
            OneOf("source", facet="source", values=("frontend", "backend")),
            Equals("service", facet="service", longest=100),
        ),
        facets={"level": "level", "source": "source", "service": "service"},
        item=line,
        redactor=Redactor(),
        limits=Limits(default=100, least=10, most=1000),
        wire=Wire(cursor="afterCursor", limit="limit", body=PagedBody("logs"), event_name="log"),
        permission="investigation:{key}:read",
        rates=(Rate("user", ENOUGH, 60), Rate("resource", ENOUGH, 60)),
    )


def keys() -> TokenKeys:
    """The keys of servers and readers."""
    return TokenKeys.from_text(json.dumps(_KEYS))


def bearer() -> str:
    """The header of somebody who may read the investigation."""
    return f"Bearer {mint(keys(), 'ada', [f'investigation:{KEY}:read'], timedelta(hours=12))}"


def prepare(connection: psycopg.Connection[Any], logs: int) -> None:
    """The schema, with so many logs of one investigation."""
    migrate.up(connection, declared().outbox.shape)
    constant = {"key": KEY, "message": MESSAGE, "error_every": ERROR_EVERY, "began": BEGAN}
    for first in range(1, logs + 1, PER_STATEMENT):
        connection.execute(FILL, {**constant, "first": first, "last": min(logs, first + PER_STATEMENT - 1)})
    if not logs:
        return
    for statement in END.split(";")[:-1]:
        connection.execute(statement.encode(), {"key": KEY, "last": logs, "ts": moment_of(logs)})
    connection.execute(f"vacuum analyze {SCHEMA}.log")
    connection.execute("checkpoint")


def moment_of(number: int) -> datetime:
    """When a log was appended."""
    return BEGAN + timedelta(milliseconds=number)


def cursor_of(number: int) -> str:
    """The cursor at a log, fit for an address."""
    return TIME_AND_SEQ.format(Cursor(number, moment_of(number))).replace("#", "%23")


def stored(number: int) -> StoredEvent:
    """A log as the reader of the log has it in hand."""
    log = LogRecorded(KEY, "backend", "checkout", "INFO", MESSAGE, {"attempt": number % 5})
    moment = moment_of(number)
    record = Record(
        event_id=UUID(int=number),
        event_type="log.recorded",
        schema_version=1,
        aggregate_type="investigation",
        aggregate_id=KEY,
        occurred_at=moment,
        correlation_id=f"c-{number}",
        causation_id=None,
        payload=msgspec.json.encode(log),
        created_at=moment,
        seq=number,
        position=number,
    )
    return StoredEvent(record, moment, number)


def item(number: int) -> bytes:
    """What our feed makes of it, for those who have it ready."""
    return EntryMaker().entry_of(declared(), stored(number)).body
