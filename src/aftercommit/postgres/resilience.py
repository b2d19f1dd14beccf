"""A service that survives outages of its database: it works in sessions, and reconnects."""

import asyncio
import logging
import time
from abc import abstractmethod

import psycopg

from aftercommit.backoff import Exponential
from aftercommit.errors import DatabaseUnavailable, SchemaNotMigrated
from aftercommit.service import Probe, Service
from aftercommit.telemetry import log_event
from aftercommit.text import MIGRATE

logger = logging.getLogger("aftercommit.database")

# Errors that may pass by themselves. A standby, for example, refuses writes until it is promoted. A refusal (wrong
# password, no such database) is not here: it ends the service, because waiting would hide it.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction, DatabaseUnavailable)


# Our statements use only tables and columns that existed when the schema was checked, so these mean they are gone.
GONE = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)


def tables_gone(problem: BaseException) -> SchemaNotMigrated:
    """The error for tables that were dropped or changed while a program runs."""
    said = str(problem).strip().partition("\n")[0]
    return SchemaNotMigrated(
        f"the tables of the outbox are gone, or are not those of this version ({said}): {MIGRATE}, or, if they were "
        "dropped by mistake, restore them from a backup"
    )


def is_lost(error: BaseException) -> bool:
    """Whether an error means that the database is lost, and is not an error that the server has sent.

    If a server dies during an answer, the driver may raise an InternalError without a SQLSTATE.
    """
    return isinstance(error, LOST) or (isinstance(error, psycopg.InternalError) and error.sqlstate is None)


class DatabaseService(Service):
    """Runs `session` again and again. It logs an outage once, and retries with backoff."""

    # For how many seconds an idle session may have no contact with the database.
    silence = 0.0
    # Whether it can be cancelled instead of stopped without losing anything important.
    may_be_cut = False

    def __init__(self, probe: Probe | None = None, *, backoff: Exponential | None = None) -> None:
        super().__init__(probe)
        self._reconnect = backoff or Exponential(base=0.1, maximum=2.0)
        self._failures = 0
        # The first error of the current outage.
        self.outage: BaseException | None = None
        # Set when the first session works.
        self.up = asyncio.Event()
        self._answered_at: float | None = None

    @abstractmethod
    async def session(self) -> None:
        """Connect and work, until stopped or until the database is lost."""

    def session_is_up(self) -> None:
        """Call it when the session works; it ends the outage."""
        if self._failures:
            log_event(logger, logging.INFO, "database_is_back", service=self.name, attempts=self._failures)
        self._failures = 0
        self.outage = None
        self.answered()
        self.up.set()

    def answered(self) -> None:
        """Call it when the database has answered."""
        self._answered_at = time.monotonic()

    def not_ready(self, within: float) -> str | None:
        """Why the service is not ready: no session, or no answer from the database within so many seconds."""
        if self.outage is not None:
            return f"{self.name}: the database is unavailable: {' '.join(str(self.outage).split())}"
        if self._answered_at is None:
            return f"{self.name}: not connected yet"
        silent = time.monotonic() - self._answered_at
        return f"{self.name}: no answer from the database for {silent:.0f} s" if silent > within else None

    async def stop_within(self, seconds: float) -> None:
        """Stop, and cancel what has not ended after so many seconds: the database may hang."""
        self.stopping.set()
        task = self._task
        if task is not None:
            await asyncio.wait({task}, timeout=seconds)
            if task.cancel():
                await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    async def run(self) -> None:
        """Run sessions until stopped; raise only errors that do not pass by themselves."""
        while not self.stopping.is_set():
            try:
                await self.session()
            except (*LOST, psycopg.InternalError) as problem:
                if not is_lost(problem):
                    raise
                await self._outage(problem)
            except GONE as problem:
                raise tables_gone(problem) from problem
            except BaseExceptionGroup as group:
                lost, rest = group.split(is_lost)
                if rest is not None or lost is None:
                    cause = first_of(rest or group)
                    raise (tables_gone(cause) if isinstance(cause, GONE) else cause) from None
                await self._outage(first_of(lost))

    async def _outage(self, problem: BaseException) -> None:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The database was lost during a cancellation, and that error has hidden it.
            raise asyncio.CancelledError from problem
        self._failures += 1
        if self._failures == 1:
            self.outage = problem
            error = " ".join(str(problem).split())
            log_event(logger, logging.WARNING, "database_is_unavailable", service=self.name, error=error)
        await self.reach("database.lost", error=problem)
        await self.pause(self._reconnect(self._failures, problem) or 0.0)


def first_of(group: BaseException) -> BaseException:
    """The first error inside a group of errors."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


async def close_quietly(connection: psycopg.AsyncConnection[object] | None) -> None:
    """Close a connection that may be broken already, even during a cancellation."""
    if connection is not None and not connection.closed:
        try:
            await asyncio.shield(connection.close())
        except psycopg.Error as problem:
            log_event(logger, logging.DEBUG, "connection_close_failed", error=str(problem))
