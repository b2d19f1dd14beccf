"""How long data is kept, and the retention round that removes older data, in short transactions.

The log is dropped one partition at a time. The other tables are scanned page by page, a few pages per statement and
each page once per pass, so statements are short however large the table is, and need no index. The table `upkeep`
records how far a pass has come, so any program can continue it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from aftercommit.errors import DatabaseError, DeclarationError, MissingPrivilege, SweepUnderWay
from aftercommit.postgres.commits import committed
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import partitions
from aftercommit.schema.catalog import asking
from aftercommit.text import OF_APP

# About three thousand inbox rows: about ten milliseconds per statement.
PAGES_AT_ONCE = 32
EVENTS_AT_ONCE = 2000
OPERATIONS_AT_ONCE = 100
# How long to wait for the readers of a partition; the next round tries again.
PATIENCE = 2.0
# A round whose program has died ends after this time: sooner than `aftercommit sweep` gives up waiting for it.
LEASE = 20.0
LONGEST = timedelta(days=36_500)
_BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_RELIED_ON = "another session relies on its horizon at the moment"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long an outbox keeps data that it no longer needs itself; None means forever.

    The time of `log` starts with the newest event of a partition, of `inbox` when an event was handled, of `keys`
    (idempotency keys) with the publish, of `dead_letters` when a letter was resolved or discarded, of `operations` with
    their end.
    """

    log: timedelta | None = None
    inbox: timedelta | None = timedelta(days=30)
    keys: timedelta | None = timedelta(days=7)
    dead_letters: timedelta | None = timedelta(days=30)
    operations: timedelta | None = timedelta(days=90)

    def __post_init__(self) -> None:
        """Refuse times that are not positive, or too long for a timestamp."""
        for each in fields(self):
            keep = getattr(self, each.name)
            if keep is not None and not (isinstance(keep, timedelta) and timedelta() < keep <= LONGEST):
                raise DeclarationError(
                    f"retention {each.name}={keep!r} is out of range: give a timedelta of more than zero and at most "
                    "100 years, or None to keep it forever"
                )


@dataclass(frozen=True, slots=True)
class Swept:
    """The result for one kind of data: how many rows were removed, and what old data had to stay, and why.

    `finished` is False if the time was up before everything was checked; the next round continues there.
    """

    task: str
    keep: timedelta | None
    removed: int = 0
    kept_back: tuple[str, ...] = ()
    finished: bool = True
    partitions: tuple[str, ...] = ()


@contextmanager
def _briefly(connection: psycopg.Connection[Any], statements: Statements) -> Iterator[None]:
    """A transaction with a short lock timeout."""
    with committed(connection):
        connection.execute(statements["brief_locks"])
        yield


class SweepTurn:
    """A lease on the retention round, so that one program at a time runs it."""

    def __init__(self, connection: psycopg.Connection[Any], shape: Shape, lease_seconds: float) -> None:
        self._connection, self._statements, self._lease = connection, Statements(shape), lease_seconds
        self._until: datetime | None = None
        self._asked_at = 0.0

    def claim(self, interval: float) -> bool:
        """Take the lease if it is free and the last round began at least `interval` seconds ago."""
        return self._take("claim_sweep", interval=interval)

    def renew(self) -> bool:
        """Whether we still hold the lease; renews it when half of its time has passed."""
        if time.monotonic() < self._asked_at + self._lease / 2:
            return True
        return self._take("renew_sweep", until=self._until)

    def release(self) -> None:
        """Give the lease back. If that fails, it expires by itself."""
        with suppress(*_BUSY), _briefly(self._connection, self._statements):
            self._connection.execute(self._statements["release_sweep"], {"until": self._until})

    def _take(self, query: str, **parameters: Any) -> bool:
        asked_at = time.monotonic()
        try:
            with _briefly(self._connection, self._statements):
                statement = self._statements.render(query)
                rows = asking(self._connection)(statement, {"lease": self._lease, **parameters})
        except _BUSY:
            return False
        if rows:
            self._until, self._asked_at = rows[0][0], asked_at
        return bool(rows)


@contextmanager
def the_only_one(
    connection: psycopg.Connection[Any],
    shape: Shape,
    *,
    interval: float,
    lease: float = LEASE,
    max_wait_seconds: float = 0.0,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[SweepTurn | None]:
    """The lease on a round, or None: for one program at a time, and at least `interval` seconds after the last round.

    With `max_wait_seconds`, waits that long for another program's round, and then raises SweepUnderWay.
    """
    turn = SweepTurn(connection, shape, lease)
    deadline = time.monotonic() + max_wait_seconds
    while not (claimed := turn.claim(interval)) and time.monotonic() < deadline and not stopping():
        time.sleep(0.1)
    if not claimed and max_wait_seconds and not stopping():
        raise SweepUnderWay(
            f"another program has been sweeping outbox {shape.schema!r}, or locking its table upkeep, for "
            f"{max_wait_seconds:g} s: try again later"
        )
    try:
        yield turn if claimed else None
    finally:
        if claimed and not connection.broken:
            turn.release()


@dataclass(frozen=True, slots=True)
class _Pages:
    """A table whose old rows are found by scanning its pages."""

    task: str
    table: str
    old: str
    # Whether running operations rely on the rows as they were when the operation began.
    waits_for_operations: bool = False


_TABLES = (
    _Pages("inbox", "processed_events", "old_inbox", waits_for_operations=True),
    _Pages("keys", "published_key", "old_keys"),
    _Pages("dead_letters", "dead_letter_events", "old_dead_letters", waits_for_operations=True),
)


@dataclass
class Round:
    """One retention round on a connection in autocommit mode.

    It ends after `seconds`, when `stopping` returns True, or when another program has taken over the `turn`; in each
    case between two statements. It waits only briefly for locks. `whole` starts every pass from the beginning, as a
    manual call should; otherwise an unfinished pass continues, and a finished one starts again only when it is due.
    `dry_run` counts and changes nothing. `even_if_unread` drops partitions that are still needed.
    """

    connection: psycopg.Connection[Any]
    shape: Shape
    retention: Retention
    seconds: float = 5.0
    stopping: Callable[[], bool] = lambda: False
    whole: bool = False
    dry_run: bool = False
    even_if_unread: bool = False
    turn: SweepTurn | None = None
    _deadline: float = field(init=False, default=0.0)

    def run(self) -> list[Swept]:
        """Run the round; returns a result for each of log, inbox, keys, dead letters and operations."""
        if not self.connection.autocommit:
            raise DatabaseError("retention needs a connection in autocommit mode: psycopg.connect(…, autocommit=True)")
        self._ask, self._statements = asking(self.connection), Statements(self.shape)
        self._deadline = time.monotonic() + self.seconds
        try:
            tables = ((table.task, partial(self._table, table)) for table in _TABLES)
            return [
                self._task("log", self._log),
                *(self._task(name, work) for name, work in tables),
                self._task("operations", self._operations),
            ]
        except psycopg.errors.InsufficientPrivilege as problem:
            user = self.connection.info.user
            raise MissingPrivilege(
                f"user {user!r} may not remove old data from schema {self.shape.schema!r}: "
                f"{problem.diag.message_primary}. `aftercommit migrate grants {user} {OF_APP}` prints the grants"
            ) from problem

    def _task(self, name: str, work: Callable[[], Swept]) -> Swept:
        keep = getattr(self.retention, name)
        if not self._goes_on():
            return Swept(name, keep, finished=keep is None)
        try:
            return work()
        except _BUSY:
            return Swept(name, keep, kept_back=("another session holds a lock",), finished=False)

    def _goes_on(self) -> bool:
        ours = self.turn is None or self.turn.renew()
        return ours and time.monotonic() < self._deadline and not self.stopping()

    def _rows(self, query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        with _briefly(self.connection, self._statements):
            return self._ask(self._statements.render(query), parameters)

    def _value(self, query: str, parameters: Mapping[str, Any]) -> Any:
        return self._rows(query, parameters)[0][0]

    # The log

    def _log(self) -> Swept:
        keep = self.retention.log
        if keep is None:
            return self._kept(Swept("log", None))
        older_than = self._value("kept_since", {"keep": keep})
        try:
            found = partitions.retain(
                self.connection,
                self.shape,
                older_than=older_than,
                force=self.even_if_unread,
                max_wait_seconds=PATIENCE,
                go_on=self._goes_on,
                dry_run=self.dry_run,
            )
        except MissingPrivilege as problem:
            return self._kept(Swept("log", keep, kept_back=(str(problem),)))
        swept = Swept("log", keep, len(found.partitions), found.held, self._goes_on(), found.partitions)
        return self._kept(swept, found.horizon if found.partitions else None)

    def _kept(self, swept: Swept, horizon: datetime | None = None) -> Swept:
        """Record the result."""
        if self.dry_run:
            return swept
        try:
            parameters = {
                "task": swept.task,
                "keep": swept.keep,
                "removed": swept.removed,
                "horizon": horizon,
                "kept_back": Jsonb(dict.fromkeys(swept.kept_back, 0)),
            }
            with _briefly(self.connection, self._statements):
                self.connection.execute(self._statements["note_kept"], parameters)
        except _BUSY:
            return swept if swept.keep is None else replace(swept, kept_back=(*swept.kept_back, _RELIED_ON))
        return swept

    # Tables that are scanned page by page

    def _table(self, table: _Pages) -> Swept:
        keep = getattr(self.retention, table.task)
        if keep is None:
            return self._kept(Swept(table.task, None))
        if self.dry_run:
            if held := self._running_operations(table):
                return Swept(table.task, keep, kept_back=held)
            return self._walk(table, keep, self._value("kept_since", {"keep": keep}), 0, Counter())
        try:
            with _briefly(self.connection, self._statements):
                begun = self._begin(table, keep)
        except _BUSY:
            return Swept(table.task, keep, kept_back=(_RELIED_ON,), finished=False)
        if not isinstance(begun, tuple):
            return begun
        return self._walk(table, keep, *begun)

    def _begin(self, table: _Pages, keep: timedelta) -> tuple[datetime, int, Counter[str]] | Swept:
        """Begin or continue a pass: the time before which rows are old, the next page, and what had to stay so far."""
        parameters = {"task": table.task, "keep": keep}
        page, before, same, due, held_back = self._ask(self._statements.render("lock_upkeep"), parameters)[0]
        if page is not None and same and not self.whole:
            return before, page, Counter(held_back)
        if not due and same and not self.whole:
            return Swept(table.task, keep)
        # Asked while we hold the lock, so operations that began under the old horizon are among these.
        if held := self._running_operations(table):
            return self._kept(Swept(table.task, keep, kept_back=held))
        return self._value("begin_pass", parameters), 0, Counter()

    def _running_operations(self, table: _Pages) -> tuple[str, ...]:
        running = self._rows("running_operations", {}) if table.waits_for_operations else ()
        return tuple(f"operation {name} ({kind}, by {by}) is running" for name, kind, by in running)

    def _walk(self, table: _Pages, keep: timedelta, before: datetime, page: int, holders: Counter[str]) -> Swept:
        name = sql.Identifier(self.shape.schema, table.table).as_string()
        pages = self._value("pages_of", {"table": name})
        removed = 0
        while page < pages and self._goes_on():
            removed += self._step(table, before, page, pages, holders)
            page += PAGES_AT_ONCE
        if pages == 0:
            with _briefly(self.connection, self._statements):
                self._note(table, None, 0, holders)
        return Swept(table.task, keep, removed, words(holders), page >= pages)

    def _step(self, table: _Pages, before: datetime, page: int, pages: int, holders: Counter[str]) -> int:
        """Remove old rows from the next pages and record the progress, in one transaction."""
        statement = self._statements.render(
            "count_pages" if self.dry_run else "sweep_pages",
            old=self._statements.part(table.old),
            table=sql.Identifier(table.table),
        )
        beyond = page + PAGES_AT_ONCE
        next_page = beyond if beyond < pages else None
        parameters = {"first": f"({page},0)", "last": f"({beyond},0)", "before": before}
        try:
            with _briefly(self.connection, self._statements):
                removed, held = self._ask(statement, parameters)[0]
                self._note(table, next_page, removed, holders + Counter(held))
        except _BUSY:
            removed, held = 0, {"another session's lock": 1}
            # If even this cannot be recorded, these pages are scanned again.
            with suppress(*_BUSY), _briefly(self.connection, self._statements):
                self._note(table, next_page, removed, holders + Counter(held))
        holders.update(held)
        return int(removed)

    def _note(self, table: _Pages, page: int | None, removed: int, holders: Counter[str]) -> None:
        if not self.dry_run:
            progress = {"next_page": page, "removed": removed, "kept_back": Jsonb(holders)}
            self.connection.execute(self._statements["note_progress"], {"task": table.task, **progress})

    # Operations

    def _operations(self) -> Swept:
        keep = self.retention.operations
        if keep is None:
            return self._kept(Swept("operations", None))
        before = self._value("kept_since", {"keep": keep})
        if self.dry_run:
            return Swept("operations", keep, self._value("count_old_operations", {"before": before}))
        removed = 0
        parameters = {"before": before, "limit": OPERATIONS_AT_ONCE}
        while self._goes_on() and (found := self._rows("old_operations", parameters)):
            for operation, _ in found:
                removed += self._remove_operation(operation, before)
        return self._kept(Swept("operations", keep, removed, finished=self._goes_on()), before)

    def _remove_operation(self, operation: object, before: datetime) -> int:
        parameters = {"operation": operation, "after": -1, "limit": EVENTS_AT_ONCE, "before": before}
        while self._goes_on():
            count, last = self._rows("sweep_operation_events", parameters)[0]
            if count == 0:
                return len(self._rows("sweep_operation", parameters))
            parameters["after"] = last
        return 0


def words(kept_back: Mapping[str, int]) -> tuple[str, ...]:
    """What had to stay, for messages; if rows were counted, with their number."""
    return tuple(f"{count} held by {who}" if count else who for who, count in sorted(kept_back.items()))
