"""Partitions of the log: created ahead of the tip, dropped whole by retention, both without blocking writers.

A partition covers a fixed range of positions, so its number determines its bounds, and two programs create the same
one. The table `audience`, if there is one, has the same partitions.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from aftercommit.errors import DatabaseError, DeclarationError, MissingPrivilege, SchemaNotMigrated
from aftercommit.postgres.blocks import LOCK_CLASS, name_literal, quoted, unless
from aftercommit.postgres.commits import committed
from aftercommit.postgres.shape import AUDIENCE, Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import asking
from aftercommit.schema.views import stamp_of
from aftercommit.telemetry import log_event
from aftercommit.text import MIGRATE, OF_APP

POSITIONS_PER_PARTITION = 1_000_000
AHEAD = 3

logger = logging.getLogger("aftercommit.retention")

_BOUNDS = re.compile(r"FROM \('(\d+)'\) TO \('(\d+)'\)")
_CONDEMNED = "aftercommit: retention drops this"
# Another session holds a lock or does the same work: the next run continues.
_LATER = (
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.UndefinedTable,
)


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: positions from `lower` up to but not including `upper`.

    `detaching` means that its detach has begun and not finished, `condemned` that retention has decided to drop it.
    """

    name: str
    lower: int
    upper: int
    detaching: bool = False
    condemned: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a retention run over the log did: the dropped partitions, and where and why it stopped.

    `held` says what still needs the partition at which it stopped. `horizon` is the time of the newest dropped event.
    """

    partitions: tuple[str, ...]
    stopped_at: str | None
    reason: str | None
    held: tuple[str, ...]
    horizon: datetime | None


def existing(connection: psycopg.Connection[Any], shape: Shape, table: str = "log") -> list[Partition]:
    """The partitions of the log or of the audience, lowest positions first; none if there is no such table."""
    parameters = {"table": sql.Identifier(shape.schema, table).as_string(), "condemned": _CONDEMNED}
    found = []
    for name, bounds, detaching, condemned in asking(connection)(Statements(shape).render("partitions"), parameters):
        if match := _BOUNDS.search(bounds or ""):
            found.append(Partition(name, int(match[1]), int(match[2]), bool(detaching), condemned))
    return sorted(found, key=lambda partition: partition.lower)


def ensure(connection: psycopg.Connection[Any], shape: Shape) -> list[str]:
    """Create the missing partitions ahead of the tip; returns their names.

    Several programs can call it at once, also with a role that may not create tables: it calls a function of the
    schema's owner. Takes milliseconds, and gives up after waiting five seconds for a lock.
    """
    try:
        with committed(connection):
            return [row[0] for row in asking(connection)(Statements(shape).render("make_partitions"), {})]
    except psycopg.errors.InsufficientPrivilege as problem:
        user = connection.info.user
        raise MissingPrivilege(
            f"user {user!r} may not create partitions in schema {shape.schema!r}: {problem.diag.message_primary}. "
            f"`aftercommit migrate grants {user} {OF_APP}` prints the grants"
        ) from problem
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as problem:
        raise SchemaNotMigrated(f"schema {shape.schema!r} has no function make_partitions: {MIGRATE}") from problem
    except psycopg.errors.LockNotAvailable as problem:
        raise DatabaseError(
            f"could not create partitions of {shape.schema}.log within five seconds: a migration is running, or a "
            "session holds a lock on the log. Try again; nothing is lost while the log still has partitions ahead"
        ) from problem


def drop_before(
    connection: psycopg.Connection[Any],
    shape: Shape,
    *,
    older_than: datetime,
    force: bool = False,
    max_wait_seconds: float = 10.0,
) -> list[str]:
    """Drop whole partitions whose newest event is older, lowest first; returns the names of the dropped ones.

    Stops at the first partition that is not full, or that a consumer, a dead letter or an operation still needs (unless
    `force`), so the rest has no gap. Waits up to `max_wait_seconds` for readers; unfinished work is left to the next
    run. The connection must be in autocommit mode, because a partition is detached concurrently, which is not possible
    in a transaction, and must belong to the schema's owner.
    """
    found = retain(connection, shape, older_than=older_than, force=force, max_wait_seconds=max_wait_seconds)
    if found.reason is not None:
        fields = {"outbox": shape.schema, "partition": found.stopped_at, "reason": found.reason}
        log_event(logger, logging.INFO, "log_retention_stopped", **fields)
    return list(found.partitions)


def retain(
    connection: psycopg.Connection[Any],
    shape: Shape,
    *,
    older_than: datetime,
    force: bool = False,
    max_wait_seconds: float = 10.0,
    go_on: Callable[[], bool] = lambda: True,
    dry_run: bool = False,
) -> Dropped:
    """The same, and returns where it stopped and why. Calls `go_on` before each partition."""
    if not connection.autocommit:
        raise DatabaseError("retention needs a connection in autocommit mode: psycopg.connect(…, autocommit=True)")
    if older_than.tzinfo is None:
        raise DeclarationError(f"older_than={older_than!r} has no time zone: use datetime.now(UTC) - timedelta(…)")
    run = _Retention(connection, shape, older_than, force, dry_run, max_wait_seconds, go_on)
    try:
        gone = tuple(run.run())
    except psycopg.errors.InsufficientPrivilege as problem:
        raise MissingPrivilege(
            f"user {connection.info.user!r} may not drop partitions of schema {shape.schema!r}: "
            f"{problem.diag.message_primary}. Run retention as the owner of the schema"
        ) from problem
    return Dropped(gone, run.stopped_at, run.reason, run.held, run.horizon)


def definition(shape: Shape) -> tuple[str, str]:
    """The stamp of the function that creates partitions, and the statement that defines it unless it is current."""
    statements = Statements(shape)
    body = statements.render(
        "make_partitions_body",
        size=sql.Literal(POSITIONS_PER_PARTITION),
        ahead=sql.Literal(AHEAD),
        lock_class=sql.Literal(LOCK_CLASS),
        schema_name=sql.Literal(shape.schema),
        quoted_schema=name_literal(shape.schema),
    )
    stamp = stamp_of(body)
    function_name = sql.Literal(sql.Identifier(shape.schema, "make_partitions").as_string() + "()")
    condition = statements.render("has_function", function_name=function_name, stamp=sql.Literal(stamp))
    action = statements.render("define_make_partitions", body=quoted(body), stamp=sql.Literal(stamp))
    return stamp, unless(shape, condition, action)


@dataclass
class _Retention:
    """One retention run over the log, lowest partitions first."""

    connection: psycopg.Connection[Any]
    shape: Shape
    older_than: datetime
    force: bool
    dry_run: bool
    max_wait_seconds: float
    go_on: Callable[[], bool]
    stopped_at: str | None = None
    reason: str | None = None
    held: tuple[str, ...] = ()
    horizon: datetime | None = None

    def __post_init__(self) -> None:
        self._statements = Statements(self.shape)
        self._ask = asking(self.connection)

    def run(self) -> Iterator[str]:
        """Drop what may be dropped; yields the names of the dropped partitions."""
        detached, attached = self._found()
        for name in detached:
            if self.go_on() and self._try(name, ["drop_partition"]) and _table_of(name) == "log":
                yield name
        self._drop_unheard()
        for partition in attached:
            if not self.go_on() or not self._try(partition.name, self._steps(partition)):
                return
            self._drop_unheard()
            yield partition.name

    def _drop_unheard(self) -> None:
        """Drop the partitions of the audience whose events are no longer in the log.

        After those of the log: readers notice that their events are gone from the log, but not from the audience.
        """
        try:
            with _cancelled_after(self.connection, self.max_wait_seconds):
                first = min((kept.lower for kept in existing(self.connection, self.shape)), default=0)
                heard = existing(self.connection, self.shape, AUDIENCE)
        except _LATER as problem:
            self._stopped(AUDIENCE, "the audience", problem)
            return
        for partition in heard:
            if partition.upper <= first:
                self._try(partition.name, self._leave(partition))

    def _found(self) -> tuple[list[str], list[Partition]]:
        """Detached tables that are still to be dropped, and the partitions; nothing while the log is locked."""
        parameters = {"schema": self.shape.schema, "condemned": _CONDEMNED}
        try:
            with _cancelled_after(self.connection, self.max_wait_seconds):
                detached = self._ask(self._statements.render("condemned_tables"), parameters)
                return [name for (name,) in detached], existing(self.connection, self.shape)
        except _LATER as problem:
            self._stopped("log", "the log", problem)
            return [], []

    def _try(self, name: str, steps: Iterable[str]) -> bool:
        try:
            with _cancelled_after(self.connection, self.max_wait_seconds):
                for step in steps:
                    self._execute(step, name)
        except _Stays as stays:
            self.stopped_at, self.reason, self.held = name, str(stays), stays.held
            return False
        except _LATER as problem:
            self._stopped(name, f"partition {name}", problem)
            return False
        return True

    def _stopped(self, name: str, what: str, problem: psycopg.Error) -> None:
        self.stopped_at, self.reason = name, f"another session is in the way: {problem.diag.message_primary}"
        self.held = (f"{what}: {self.reason}",)

    def _steps(self, partition: Partition) -> Iterator[str]:
        """The statements that drop this partition; continues an interrupted run."""
        if not (partition.condemned and partition.detaching):
            self._check_may_go(partition)
        yield from self._leave(partition)

    def _leave(self, partition: Partition) -> Iterator[str]:
        if not partition.condemned:
            yield "condemn_partition"
        yield "finish_detach" if partition.detaching else "detach_partition"
        yield "drop_partition"

    def _check_may_go(self, partition: Partition) -> None:
        if partition.detaching:
            raise _Stays("another session is detaching it")
        try:
            self._check_nobody_needs(partition)
        except _Stays:
            if partition.condemned:
                # An earlier run decided to drop it and was interrupted; since then something has come to need it.
                self._execute("pardon_partition", partition.name)
            raise

    def _check_nobody_needs(self, partition: Partition) -> None:
        bounds = {"lower": partition.lower, "upper": partition.upper}
        is_over, position, ts = self._ask(self._statements.render("last_of_partition"), bounds)[0]
        if not is_over:
            raise _Stays("it is not full")
        if position is None:
            # Created ahead for a life of the log that ended before it reached this partition.
            return
        if ts >= self.older_than:
            raise _Stays("its newest event is not old enough")
        holders = self._ask(self._statements.render("log_holders"), {"position": position})
        if holders and not self.force:
            held = tuple(_need(*holder) for holder in holders)
            raise _Stays(held[0], held)
        self.horizon = ts

    def _execute(self, query: str, partition: str) -> None:
        if not self.dry_run:
            parts = {
                "table": sql.Identifier(_table_of(partition)),
                "partition": sql.Identifier(partition),
                "condemned": sql.Literal(_CONDEMNED),
            }
            self.connection.execute(self._statements.render(query, **parts).encode())


def _table_of(partition: str) -> str:
    return partition.rpartition("_")[0]


class _Stays(Exception):
    """Why a partition cannot be dropped yet, and what still needs it."""

    def __init__(self, reason: str, held: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.held = held


def _need(kind: str, name: str, position: int) -> str:
    """What needs a partition, for messages."""
    match kind:
        case "consumer":
            return f"consumer {name!r} has only read up to position {position}"
        case "dead letter":
            return f"{name!r} has an open dead letter at position {position}"
        case "outbox":
            return f"event {name} at position {position} waits in the outbox to be delivered again"
        case _:
            return f"operation {name} is running and needs position {position}"


@contextlib.contextmanager
def _cancelled_after(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Cancel the running statement when the time is up.

    A timeout setting does not work here: DETACH … CONCURRENTLY cannot run in a transaction, and through a pooler a
    session setting would affect other clients.
    """

    def cancel() -> None:
        # A broken connection has nothing to cancel.
        with contextlib.suppress(psycopg.OperationalError):
            connection.cancel_safe()

    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
