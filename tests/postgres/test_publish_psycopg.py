"""Publishing on psycopg 3 connections, blocking and asyncio, of one's own and from a pool."""

from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from aftercommit.errors import NotInTransaction, UnsupportedConnection
from aftercommit.testing.outbox_suite import PublishHarness, PublishSuite
from aftercommit.testing.publish_stage import OUTBOX, SCOPE, SuiteOrderPlaced


class Psycopg(PublishHarness):
    """The default mode: the first statement begins a transaction. Rows come as dicts, as many applications like."""

    connection: psycopg.Connection[Any]

    @property
    def target(self) -> Any:
        return self.connection

    def open(self) -> None:
        self.connection = psycopg.connect(self.dsn, row_factory=dict_row)

    def open_outside_transaction(self) -> None:
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def begin(self) -> None:
        """The first statement begins."""

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def savepoint(self) -> None:
        self.connection.execute("savepoint here")

    def release_savepoint(self) -> None:
        self.connection.execute("release savepoint here")

    def rollback_to_savepoint(self) -> None:
        self.connection.execute("rollback to savepoint here")

    def execute(self, statement: str) -> None:
        self.connection.execute(statement.encode())

    def close(self) -> None:
        self.connection.close()


class PsycopgTransactionBlocks(Psycopg):
    """Autocommit with `transaction()` blocks, the nested ones being savepoints."""

    def open(self) -> None:
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.blocks: list[ExitStack] = []

    def begin(self) -> None:
        block = ExitStack()
        block.enter_context(self.connection.transaction())
        self.blocks.append(block)

    def commit(self) -> None:
        self.blocks.pop().close()

    def rollback(self) -> None:
        block = self.blocks.pop()
        with block:
            raise psycopg.Rollback

    savepoint = begin
    release_savepoint = commit
    rollback_to_savepoint = rollback


class AsyncPsycopg(PublishHarness):
    connection: psycopg.AsyncConnection[Any]

    @property
    def target(self) -> Any:
        return self.connection

    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.dsn, row_factory=dict_row)

    async def open_outside_transaction(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)

    async def begin(self) -> None:
        """The first statement begins."""

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def savepoint(self) -> None:
        await self.connection.execute("savepoint here")

    async def release_savepoint(self) -> None:
        await self.connection.execute("release savepoint here")

    async def rollback_to_savepoint(self) -> None:
        await self.connection.execute("rollback to savepoint here")

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement.encode())

    async def close(self) -> None:
        await self.connection.close()


class TestPsycopg(PublishSuite):
    harness = Psycopg


class TestPsycopgTransactionBlocks(PublishSuite):
    harness = PsycopgTransactionBlocks


class TestAsyncPsycopg(PublishSuite):
    harness = AsyncPsycopg


def count(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from publish_suite.outbox").fetchone()
    return 0 if row is None else int(row[0])


def test_a_pool_is_not_a_connection_and_one_borrowed_from_it_is(publish_database):
    with ConnectionPool(publish_database, min_size=1, max_size=1) as pool:
        with pytest.raises(UnsupportedConnection, match="ConnectionPool"):
            OUTBOX.publish(pool, SuiteOrderPlaced("o"), **SCOPE)  # type: ignore[call-overload]
        with pool.connection() as connection:
            receipt = OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)

    with psycopg.connect(publish_database) as connection:
        assert connection.execute("select from publish_suite.outbox where id = %s", [receipt.event_id]).fetchall()


def test_what_is_no_connection_at_all_is_refused_by_its_class(publish_database):
    for stranger in (None, "postgresql://", object()):
        with pytest.raises(UnsupportedConnection, match=type(stranger).__qualname__):
            OUTBOX.publish(stranger, SuiteOrderPlaced("o"), **SCOPE)  # type: ignore[call-overload]


def test_the_end_of_a_transaction_block_is_outside_again(publish_database):
    before = count(publish_database)
    with psycopg.connect(publish_database, autocommit=True) as connection:
        with connection.transaction():
            OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)
        with pytest.raises(NotInTransaction):
            OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)

    assert count(publish_database) == before + 1


def test_pipelines_and_client_side_binding_do_not_matter(publish_database):
    before = count(publish_database)
    connection = psycopg.connect(publish_database, cursor_factory=psycopg.ClientCursor)
    with connection, connection.pipeline():
        OUTBOX.publish(connection, [SuiteOrderPlaced("one"), SuiteOrderPlaced("two")], **SCOPE)
        OUTBOX.publish(connection, SuiteOrderPlaced("three"), idempotency_key="pipeline", **SCOPE)

    assert count(publish_database) == before + 3


def test_a_pipeline_in_autocommit_mode_is_no_transaction(publish_database):
    """A statement is under way, so the connection is not idle; the event would be committed apart from its row."""
    before = count(publish_database)
    with psycopg.connect(publish_database, autocommit=True) as connection, connection.pipeline():
        connection.execute("select 1")
        with pytest.raises(NotInTransaction):
            OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)
        with connection.transaction():
            OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)

    assert count(publish_database) == before + 1


async def test_a_pipeline_in_autocommit_mode_is_no_transaction_for_asyncio_either(publish_database):
    before = count(publish_database)
    connecting = psycopg.AsyncConnection.connect(publish_database, autocommit=True)
    async with await connecting as connection, connection.pipeline():
        await connection.execute("select 1")
        with pytest.raises(NotInTransaction):
            await OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)
        async with connection.transaction():
            await OUTBOX.publish(connection, SuiteOrderPlaced("o"), **SCOPE)

    assert count(publish_database) == before + 1


def test_two_moments_that_a_wall_clock_shows_alike_stay_two(publish_database):
    """The hour that comes twice in autumn: Python takes the two for equal, and they were once sent as one."""
    berlin = ZoneInfo("Europe/Berlin")
    moments = [datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    placed = OUTBOX.registry.resolve(SuiteOrderPlaced)
    with psycopg.connect(publish_database) as connection:
        OUTBOX.publish(connection, [placed.draft(SuiteOrderPlaced("o"), occurred_at=each) for each in moments], **SCOPE)
        stored = connection.execute("select occurred_at from publish_suite.outbox order by seq desc limit 2").fetchall()
    assert [row[0] for row in reversed(stored)] == [moment.astimezone(UTC) for moment in moments]
