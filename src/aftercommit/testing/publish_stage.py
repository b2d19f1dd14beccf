"""The surroundings of the publish suite: its events, its tables, the callers of a case, and an observer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from aftercommit.outbox import Outbox, Receipt
from aftercommit.schema import migrate
from aftercommit.testing.publish_harness import Caller, PublishHarness

LIMIT = 1 << 20
OUTBOX = Outbox("publish_suite", scope={"tenant": str, "account_id": int, "owner_id": UUID}, max_payload_bytes=LIMIT)
OWNER = UUID("0192b3c4-0000-7000-8000-000000000001")
SCOPE: dict[str, Any] = {"tenant": "Ærø ☃", "account_id": -(2**63), "owner_id": OWNER}
DEADLINE = 60.0

# Everything that a driver could take for a placeholder, an escape or the end of a literal.
AWKWARD = "ünï ☃ 𝄞 \u2028 'single' \"double\" \\ \\u0041 %s %% %(name)s {} {schema} $1 :name ; -- \t\n"


@OUTBOX.event("suite.order_placed", version=3, oldest_version=3, aggregate="order", key="order_id")
@dataclass(frozen=True)
class SuiteOrderPlaced:
    """An event with an aggregate and a typed payload."""

    order_id: str
    note: str = ""


NOTE_TAKEN = OUTBOX.declare("suite.note_taken")

HEARD = Outbox("publish_suite_heard", audience=True)
NOTE_HEARD = HEARD.declare("suite.note_heard")


def create_suite_tables(dsn: str) -> None:
    """Make the tables of the publish suite in an empty database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, OUTBOX.shape)
        migrate.up(connection, HEARD.shape)
        connection.execute("create table publish_suite.business (note text not null)")


class Stage:
    """One case: its database, cleared of earlier cases, its callers, and an observer."""

    def __init__(self, dsn: str, harness: type[PublishHarness]) -> None:
        self._dsn = dsn
        self._harness = harness
        self._callers: list[Caller] = []
        self.observer = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        tables = [f"publish_suite.{table}" for table in ("outbox", "published_key", "relay", "business")]
        for table in (*tables, "publish_suite_heard.outbox", "publish_suite_heard.published_key"):
            self.observer.execute(f"delete from {table}")  # noqa: S608 - the names stand one line above

    async def caller(self, *, in_transactions: bool = True) -> Caller:
        """A caller that works in transactions, with none begun; or one whose statements commit by themselves."""
        caller = Caller(self._harness(self._dsn))
        await (caller.open() if in_transactions else caller.open_outside_transaction())
        self._callers.append(caller)
        return caller

    def stored(self) -> list[dict[str, Any]]:
        """The committed events, in the order of the outbox."""
        return self.observer.execute("select * from publish_suite.outbox order by seq").fetchall()

    def ids(self) -> list[UUID]:
        """The ids of the committed events."""
        return [row["id"] for row in self.stored()]

    def notes(self) -> list[str]:
        """The aggregate ids of the committed events."""
        return [row["aggregate_id"] for row in self.stored()]

    def business(self) -> list[str]:
        """The committed rows of the application."""
        return [row["note"] for row in self.observer.execute("select note from publish_suite.business order by note")]

    @contextmanager
    def locked(self) -> Iterator[psycopg.Connection[Any]]:
        """Nobody can publish until the block ends; what the connection has written is committed then."""
        with psycopg.connect(self._dsn) as connection:
            connection.execute("lock table publish_suite.outbox in exclusive mode")
            yield connection

    async def session_waits_for_lock(self) -> None:
        """Wait until a session of this database waits for a lock."""
        query = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        async with asyncio.timeout(DEADLINE):
            while not self.observer.execute(query).fetchall():  # noqa: ASYNC110 - a server does not call back
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Disconnect all callers and the observer."""
        for caller in self._callers:
            await caller.close()
        self.observer.close()


class Suite(Protocol):
    """The class of a case."""

    @property
    def harness(self) -> type[PublishHarness]:
        """The kind of connection under test."""
        ...


Case = Callable[[Any, Stage], Awaitable[None]]


def case(check: Case) -> Callable[[Suite, str], None]:
    """Run a case in its own event loop, so that pytest needs no asyncio plugin."""

    async def staged(suite: Suite, dsn: str) -> None:
        stage = Stage(dsn, suite.harness)
        try:
            await check(suite, stage)
        finally:
            await stage.close()

    def run(self: Suite, publish_database: str) -> None:
        asyncio.run(staged(self, publish_database))

    run.__name__, run.__qualname__, run.__doc__ = check.__name__, check.__qualname__, check.__doc__
    return run


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The block raises this error, and its message contains these words."""
    with pytest.raises(kind) as caught:
        yield caught
    for word in words:
        assert word in str(caught.value)


async def raised_by(step: Awaitable[Any]) -> Exception:
    """The error that this step raises, of whatever class."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver has its own
        await step
    return caught.value


def orders(*names: str) -> list[SuiteOrderPlaced]:
    """One event per name."""
    return [SuiteOrderPlaced(name) for name in names]


async def publish(caller: Caller, events: Any, **options: Any) -> Receipt:
    """Publish with the suite's scope."""
    return await caller.publish(OUTBOX, events, **{**SCOPE, **options})


def sized(size: int) -> SuiteOrderPlaced:
    """An event with an encoded payload of so many bytes."""
    empty = len(msgspec.json.encode(SuiteOrderPlaced("sized")))
    return SuiteOrderPlaced("sized", "x" * (size - empty))
