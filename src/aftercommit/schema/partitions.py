"""Partitions of the log: made ahead of the tip, dropped whole by retention. Neither ever blocks a writer.

A partition covers a fixed range of positions, so its bounds follow from its number and two programs make the same one.
Where an audience is declared it has the same partitions, which come and go with those of the log.
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
# Somebody is in the way, or somebody else is doing the same: the next run goes on.
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

    `detaching` when its detach was begun and not finished, `condemned` when retention has decided to drop it.
    """

    name: str
    lower: int
    upper: int
    detaching: bool = False
    condemned: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a run of retention over the log did: the partitions that are gone, and where it stopped.

    `held` names those who still need the partition at which it stopped; `horizon` is the time of the newest event gone.
    """

    partitions: tuple[str, ...]
    stopped_at: str | None
    reason: str | None
    held: tuple[str, ...]
    horizon: datetime | None


def existing(connection: psycopg.Connection[Any], shape: Shape, table: str = "log") -> list[Partition]:
    """The partitions of the log or of the audience, lowest positions first; none where there is no such table."""
    parameters = {"table": sql.Identifier(shape.schema, table).as_string(), "condemned": _CONDEMNED}
    found = []
    for name, bounds, detaching, condemned in asking(connection)(Statements(shape).render("partitions"), parameters):
        if match := _BOUNDS.search(bounds or ""):
            found.append(Partition(name, int(match[1]), int(match[2]), bool(detaching), condemned))
    return sorted(found, key=lambda partition: partition.lower)


def ensure(connection: psycopg.Connection[Any], shape: Shape) -> list[str]:
    """Make the partitions ahead of the tip that are missing; returns their names.

    Safe from several programs at once, and for a role that may not create tables: the work is done by a function of the
    schema's owner. Takes milliseconds and gives up after five seconds behind somebody's lock.
    """
    try:
        with committed(connection):
            return [row[0] for row in asking(connection)(Statements(shape).render("make_partitions"), {})]
    except psycopg.errors.InsufficientPrivilege as problem:
        user = connection.info.user
        raise MissingPrivilege(
            f"user {user!r} may not make partitions in schema {shape.schema!r}: {problem.diag.message_primary}. "
            f"`aftercommit migrate grants {user} {OF_APP}` prints what to grant"
        ) from problem
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as problem:
        raise SchemaNotMigrated(f"schema {shape.schema!r} has no function make_partitions: {MIGRATE}") from problem
    except psycopg.errors.LockNotAvailable as problem:
        raise DatabaseError(
            f"partitions of {shape.schema}.log could not be made within five seconds: a migration runs, or a session "
            "holds a lock on the log. Nothing is lost while partitions are left; try again"
        ) from problem


def drop_before(
    connection: psycopg.Connection[Any],
    shape: Shape,
    *,
    older_than: datetime,
    force: bool = False,
    max_wait_seconds: float = 10.0,
) -> list[str]:
    """Drop whole partitions whose newest event is older, lowest first; returns the names of those that are gone.

    Stops at the first partition that is not full or that a consumer, a dead letter or an operation still needs (unless
    forced), so no gap is left in what remains. Readers are waited for up to `max_wait_seconds`, and writers not at all;
    what could not be finished is left to the next run. The connection must be in autocommit mode and belong to the
    schema's owner: a partition is detached concurrently, which cannot be part of a transaction.
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
    """The same, telling where it stopped and why; `go_on` is asked before each partition."""
    if not connection.autocommit:
        raise DatabaseError("retention needs a connection in autocommit mode: psycopg.connect(…, autocommit=True)")
    if older_than.tzinfo is None:
        raise DeclarationError(f"older_than={older_than!r} has no time zone: use datetime.now(UTC) - timedelta(…)")
    run = _Retention(connection, shape, older_than, force, dry_run)
    try:
        gone = tuple(run.run(max_wait_seconds, go_on))
    except psycopg.errors.InsufficientPrivilege as problem:
        raise MissingPrivilege(
            f"user {connection.info.user!r} may not drop partitions of schema {shape.schema!r}: "
            f"{problem.diag.message_primary}. Run retention as the owner of the schema"
        ) from problem
    return Dropped(gone, run.stopped_at, run.reason, run.held, run.horizon)


def definition(shape: Shape) -> tuple[str, str]:
    """The stamp of the function that makes partitions, and the statement that defines it where it is not current."""
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


class _Retention:
    """One run of retention over the log, lowest partitions first."""

    def __init__(
        self, connection: psycopg.Connection[Any], shape: Shape, older_than: datetime, force: bool, dry_run: bool
    ) -> None:
        self._connection = connection
        self._shape = shape
        self._older_than = older_than
        self._force = force
        self._dry_run = dry_run
        self._statements = Statements(shape)
        self._ask = asking(connection)
        self.stopped_at: str | None = None
        self.reason: str | None = None
        self.held: tuple[str, ...] = ()
        self.horizon: datetime | None = None

    def run(self, max_wait_seconds: float, go_on: Callable[[], bool]) -> Iterator[str]:
        """Drop what may go; yields the names of those that are gone."""
        detached, attached = self._found(max_wait_seconds)
        for name in detached:
            if go_on() and self._try(name, ["drop_partition"], max_wait_seconds) and _table_of(name) == "log":
                yield name
        self._drop_unheard(max_wait_seconds)
        for partition in attached:
            if not go_on() or not self._try(partition.name, self._steps(partition), max_wait_seconds):
                return
            self._drop_unheard(max_wait_seconds)
            yield partition.name

    def _drop_unheard(self, max_wait_seconds: float) -> None:
        """Let partitions of the audience go whose events are gone.

        In this order: a reader behind what is left of the log is told so, and one behind what is left of the audience
        would not be.
        """
        try:
            with _cancelled_after(self._connection, max_wait_seconds):
                first = min((kept.lower for kept in existing(self._connection, self._shape)), default=0)
                heard = existing(self._connection, self._shape, AUDIENCE)
        except _LATER as problem:
            self._stopped(AUDIENCE, "the audience", problem)
            return
        for partition in heard:
            if partition.upper <= first:
                self._try(partition.name, self._leave(partition), max_wait_seconds)

    def _found(self, max_wait_seconds: float) -> tuple[list[str], list[Partition]]:
        """Tables that are detached and were to go, and the partitions; nothing while somebody has locked the log."""
        parameters = {"schema": self._shape.schema, "condemned": _CONDEMNED}
        try:
            with _cancelled_after(self._connection, max_wait_seconds):
                detached = self._ask(self._statements.render("condemned_tables"), parameters)
                return [name for (name,) in detached], existing(self._connection, self._shape)
        except _LATER as problem:
            self._stopped("log", "the log", problem)
            return [], []

    def _try(self, name: str, steps: Iterable[str], max_wait_seconds: float) -> bool:
        try:
            with _cancelled_after(self._connection, max_wait_seconds):
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
        self.stopped_at, self.reason = name, f"somebody is in the way: {problem.diag.message_primary}"
        self.held = (f"{what}: {self.reason}",)

    def _steps(self, partition: Partition) -> Iterator[str]:
        """What takes this partition away; an interrupted run is taken up where it stopped."""
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
            raise _Stays("somebody else is detaching it")
        try:
            self._check_nobody_needs(partition)
        except _Stays:
            if partition.condemned:
                # A run that was interrupted before the detach decided it, and somebody has come to need it since.
                self._execute("pardon_partition", partition.name)
            raise

    def _check_nobody_needs(self, partition: Partition) -> None:
        bounds = {"lower": partition.lower, "upper": partition.upper}
        is_over, position, ts = self._ask(self._statements.render("last_of_partition"), bounds)[0]
        if not is_over:
            raise _Stays("it is not full")
        if position is None:
            # Made ahead for a life of the log that ended before it came so far.
            return
        if ts >= self._older_than:
            raise _Stays("its newest event is not old enough")
        holders = self._ask(self._statements.render("log_holders"), {"position": position})
        if holders and not self._force:
            held = tuple(_need(*holder) for holder in holders)
            raise _Stays(held[0], held)
        self.horizon = ts

    def _execute(self, query: str, partition: str) -> None:
        if not self._dry_run:
            parts = {
                "table": sql.Identifier(_table_of(partition)),
                "partition": sql.Identifier(partition),
                "condemned": sql.Literal(_CONDEMNED),
            }
            self._connection.execute(self._statements.render(query, **parts).encode())


def _table_of(partition: str) -> str:
    return partition.rpartition("_")[0]


class _Stays(Exception):
    """Why a partition may not go yet, and who still needs it."""

    def __init__(self, reason: str, held: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.held = held


def _need(kind: str, name: str, position: int) -> str:
    """Who needs what, in words."""
    match kind:
        case "consumer":
            return f"consumer {name!r} has read up to {position} only"
        case "dead letter":
            return f"a dead letter of {name!r} is open at position {position}"
        case "outbox":
            return f"event {name}, at position {position}, waits in the outbox to be delivered once more"
        case _:
            return f"operation {name} is under way and goes through position {position}"


@contextlib.contextmanager
def _cancelled_after(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Cancels what runs when the time is over.

    A timeout setting would not do: DETACH … CONCURRENTLY cannot run in a transaction, and a setting of the session
    would reach other clients through a pooler.
    """

    def cancel() -> None:
        # A connection that is gone has nothing left to cancel.
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
