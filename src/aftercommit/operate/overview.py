"""The state of an outbox, read from its tables in one transaction. Changes nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from aftercommit.errors import DatabaseUnavailable, SchemaDrift, SchemaNotMigrated
from aftercommit.operate.blockers import Blocker, find_blockers
from aftercommit.postgres.blocks import without_purpose
from aftercommit.postgres.database import privilege
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import asking
from aftercommit.schema.retention import words
from aftercommit.text import MIGRATE, utc_second

# A relay reports several times within its lease. One without lanes counts as alive for this long after its last report.
SILENCE_SECONDS = 15.0
_MINUTE = 60.0

Rows = Callable[[str], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer of the log: its position, its worker (`holder`, None without one), how long its next event has waited.

    `overdue` counts dead letters whose retry is due, the oldest for `overdue_seconds`. `lost` counts the events after
    its checkpoint that are no longer in the log. `is_ahead` means that its checkpoint is past the end of the log.
    If it has lanes, the lowest checkpoint of them counts, and `holder` tells which worker has which lanes.
    """

    name: str
    position: int
    lag: int
    paused: bool
    holder: str | None
    lag_seconds: float = 0.0
    overdue: int = 0
    overdue_seconds: float = 0.0
    lost: int = 0
    is_ahead: bool = False


@dataclass(frozen=True, slots=True)
class LifeState:
    """The present life of the log: its age, why it began, and the unused positions between it and the previous life."""

    number: int
    seconds: float
    base: int
    previous_last: int
    reason: str


@dataclass(frozen=True, slots=True)
class VersionWait:
    """A consumer that waits for code that knows a newer version of a type (`known` is 0 if it does not know the type).

    If no worker with newer code has started by `until`, it parks such events.
    """

    consumer: str
    event_type: str
    version: int
    known: int
    since: datetime
    until: datetime
    behind_the_bus: bool

    def __str__(self) -> str:
        """A description for messages."""
        return f"has been waiting for version {self.version} of {self.event_type} since {utc_second(self.since)}"


@dataclass(frozen=True, slots=True)
class RelayState:
    """A known relay: seconds since its last report (None if unknown), and how many lanes it holds.

    `ahead_seconds` is how far in the future its last report is: then the database's clock was set back.
    """

    name: str
    silent_seconds: float | None
    lanes: int
    ahead_seconds: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether it holds lanes, or has reported recently."""
        return self.lanes > 0 or (self.silent_seconds is not None and self.silent_seconds < SILENCE_SECONDS)


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Open dead letters of one owner (a consumer, or @relay) in one status."""

    owner: str
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class OperationState:
    """A running operation: how many of its events are finished (`through`), and whether a process drives it."""

    id: str
    kind: str
    status: str
    requested_by: str
    total: int
    through: int
    failed: int
    driven: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class UpkeepState:
    """Retention of one kind of data: how long it is kept (None: forever), how much was removed, what had to stay."""

    task: str
    keep_seconds: float | None
    horizon: datetime | None
    removed: int
    kept_back: tuple[str, ...]
    under_way: bool
    ran_seconds_ago: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of an outbox at one time; rates are events per second, None if unknown."""

    outbox: str
    pending: int
    oldest_seconds: float
    retrying: int
    failed: int
    head: int
    consumers: tuple[ConsumerState, ...]
    relays: tuple[RelayState, ...]
    dead_letters: tuple[DeadLetterCount, ...]
    published_rate: float | None = None
    delivered_rate: float | None = None
    free_lanes: int = 0
    operations: tuple[OperationState, ...] = ()
    upkeep: tuple[UpkeepState, ...] = ()
    holders: tuple[Blocker, ...] = ()
    life: LifeState | None = None
    version_waits: tuple[VersionWait, ...] = ()

    def dead(self, status: str) -> int:
        """How many dead letters of all owners have this status."""
        return sum(each.count for each in self.dead_letters if each.status == status)

    @property
    def max_lag(self) -> int:
        """The lag of the slowest consumer."""
        return max((consumer.lag for consumer in self.consumers), default=0)

    @property
    def drain_seconds(self) -> float | None:
        """Seconds until the backlog is gone at the present rates; None if it does not shrink, or rates are unknown."""
        return drain_seconds(self.pending, self.published_rate, self.delivered_rate)


def drain_seconds(pending: int, published_rate: float | None, delivered_rate: float | None) -> float | None:
    """Seconds until a backlog is gone at these rates; None if it does not shrink, or rates are unknown."""
    if pending == 0:
        return 0.0
    if published_rate is None or delivered_rate is None or delivered_rate <= published_rate:
        return None
    return pending / (delivered_rate - published_rate)


def outboxes(connection: psycopg.Connection[Any]) -> list[str]:
    """The schemas of this database that contain an outbox."""
    return [row[0] for row in asking(connection)(Statements(Shape()).render("find_outboxes"), {})]


def require_outbox(connection: psycopg.Connection[Any], shape: Shape) -> None:
    """Raise SchemaNotMigrated if there is no outbox, or one of an older version."""
    ask, statements = asking(connection), Statements(shape)
    with explained(connection, shape), connection.transaction():
        ask(statements.render("overview_patience"), {})
        ask(statements.render("overview_upkeep"), {})


def overview(connection: psycopg.Connection[Any], shape: Shape) -> Overview:
    """The present state of an outbox; SchemaNotMigrated if there is none."""
    rows = _asking(connection, Statements(shape))
    with explained(connection, shape), connection.transaction():
        seen, waiting = _glanced(rows, shape)
        appended, written = rows("overview_minute")[0]
        return replace(
            seen,
            published_rate=None if written is None else (written + waiting) / _MINUTE,
            delivered_rate=None if appended is None else appended / _MINUTE,
            free_lanes=rows("overview_lanes")[0][0],
            operations=tuple(OperationState(*row) for row in rows("overview_operations")),
            upkeep=tuple(_upkeep(*row) for row in rows("overview_upkeep")),
            holders=find_blockers(connection, shape),
            life=next((LifeState(*row) for row in rows("overview_life")), None),
        )


def glance(connection: psycopg.Connection[Any], statements: Statements) -> Overview:
    """What the panel of `aftercommit up` shows of an outbox: backlog, log, consumers, relays and dead letters alone."""
    shape = statements.shape
    with explained(connection, shape), connection.transaction():
        return _glanced(_asking(connection, statements), shape)[0]


def _asking(connection: psycopg.Connection[Any], statements: Statements) -> Rows:
    """Queries by their name, independent of the row and cursor factories of the connection."""

    def rows(query: str) -> Sequence[Any]:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(statements[query]).fetchall()

    return rows


def _glanced(rows: Rows, shape: Shape) -> tuple[Overview, int]:
    """The overview without what only operators ask for, and how many events of the last minute are still pending."""
    rows("overview_patience")
    found = rows("overview_outbox")
    if not found:
        raise SchemaDrift(": ".join(empty_head(shape)))
    pending, oldest_seconds, retrying, failed, head, waiting = found[0]
    waits = tuple(VersionWait(*row) for row in rows("overview_version_waits"))
    if any(wait.behind_the_bus for wait in waits):
        oldest_seconds = rows("overview_oldest")[0][0]
    seen = Overview(
        shape.schema,
        pending,
        oldest_seconds,
        retrying,
        failed,
        head,
        consumers=tuple(ConsumerState(*row) for row in rows("overview_consumers")),
        relays=tuple(_relay(*row) for row in rows("overview_relays")),
        dead_letters=tuple(DeadLetterCount(*row) for row in rows("overview_dead_letters")),
        version_waits=waits,
    )
    return seen, waiting


def empty_head(shape: Shape) -> tuple[str, str]:
    """The problem of a head without a row, and its remedy."""
    remedy = Statements(shape).render("fill_head", table=sql.Identifier("head"))
    found = f"table head of outbox {shape.schema!r} is empty, so nothing can be appended to the log"
    return found, without_purpose(remedy)


@contextmanager
def explained(connection: psycopg.Connection[Any], shape: Shape) -> Iterator[None]:
    """Turn PostgreSQL's errors about missing tables, locks and privileges into ours, with a remedy."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName) as problem:
        raise SchemaNotMigrated(
            f"schema {shape.schema!r} of database {connection.info.dbname!r} has no outbox, or one of an older "
            f"version: {MIGRATE}"
        ) from problem
    except psycopg.errors.InsufficientPrivilege as problem:
        raise privilege(connection.info.user, shape, problem) from problem
    except psycopg.errors.LockNotAvailable as problem:
        raise _locked(connection, shape) from problem


def _locked(connection: psycopg.Connection[Any], shape: Shape) -> DatabaseUnavailable:
    found = find_blockers(connection, shape, seconds=0.0)
    who = "; ".join(f"{each} blocks {each.holds[0]} ({each.remedy})" for each in found if each.locks_tables)
    return DatabaseUnavailable(f"a table of outbox {shape.schema!r} is locked and cannot be read: {who or 'try again'}")


def _relay(name: str, silent_seconds: float, lanes: int) -> RelayState:
    """A report from slightly in the future counts as now; one from further ahead says nothing about now."""
    if silent_seconds < -SILENCE_SECONDS:
        return RelayState(name, None, lanes, -silent_seconds)
    return RelayState(name, max(0.0, silent_seconds), lanes)


def _upkeep(*row: Any) -> UpkeepState:
    found = UpkeepState(*row)
    # The table has a JSON object with counts.
    kept_back: Any = found.kept_back
    return replace(found, kept_back=words(kept_back))
