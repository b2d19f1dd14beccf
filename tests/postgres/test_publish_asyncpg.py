"""Publishing on asyncpg connections, of one's own and from a pool."""

import json
from typing import Any

import asyncpg
import pytest

from aftercommit.errors import UnsupportedConnection
from aftercommit.testing.outbox_suite import PublishHarness, PublishSuite
from aftercommit.testing.publish_stage import NOTE_TAKEN, OUTBOX, SCOPE, SuiteOrderPlaced


class Asyncpg(PublishHarness):
    connection: Any

    @property
    def target(self) -> Any:
        return self.connection

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.dsn)
        self.transactions: list[Any] = []

    open_outside_transaction = open

    async def begin(self) -> None:
        transaction = self.connection.transaction()
        await transaction.start()
        self.transactions.append(transaction)

    async def commit(self) -> None:
        await self.transactions.pop().commit()

    async def rollback(self) -> None:
        await self.transactions.pop().rollback()

    savepoint = begin
    release_savepoint = commit
    rollback_to_savepoint = rollback

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def close(self) -> None:
        await self.connection.close()


class AsyncpgPool(Asyncpg):
    """A connection borrowed from asyncpg's pool, which hands out a proxy."""

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(self.dsn, min_size=1, max_size=1)
        self.connection = await self.pool.acquire()
        self.transactions = []

    open_outside_transaction = open

    async def close(self) -> None:
        await self.pool.release(self.connection)
        await self.pool.close()


class TestAsyncpg(PublishSuite):
    harness = Asyncpg


class TestAsyncpgPool(PublishSuite):
    harness = AsyncpgPool


@pytest.fixture
async def connection(publish_database):
    connection = await asyncpg.connect(publish_database)
    yield connection
    await connection.close()


async def test_the_pool_itself_is_not_a_connection(publish_database):
    async with asyncpg.create_pool(publish_database, min_size=1, max_size=1) as pool:
        with pytest.raises(UnsupportedConnection, match="Pool"):
            await OUTBOX.publish(pool, SuiteOrderPlaced("o"), **SCOPE)


async def test_codecs_of_the_application_leave_what_is_published_alone(connection):
    """Many applications install them so that json columns take dicts and ids are strings."""
    await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
    await connection.execute("delete from publish_suite.published_key")
    async with connection.transaction():
        one = await OUTBOX.publish(connection, NOTE_TAKEN(a=1), **SCOPE)
        many = await OUTBOX.publish(connection, [NOTE_TAKEN(a=2), NOTE_TAKEN(a=3)], idempotency_key="k", **SCOPE)
        again = await OUTBOX.publish(connection, [NOTE_TAKEN(a=2), NOTE_TAKEN(a=3)], idempotency_key="k", **SCOPE)

    assert again.event_ids == many.event_ids
    query = "select payload ->> 'a' from publish_suite.outbox where id = any($1) order by seq"
    assert [row[0] for row in await connection.fetch(query, [*one.event_ids, *many.event_ids])] == ["1", "2", "3"]


@pytest.mark.thorough
async def test_a_value_that_asyncpg_read_can_be_published(connection):
    """Its ids are a class of its own."""
    owner = await connection.fetchval("select gen_random_uuid()")
    async with connection.transaction():
        receipt = await OUTBOX.publish(
            connection, NOTE_TAKEN.draft({"owner": owner}, event_id=owner), tenant="t", account_id=1, owner_id=owner
        )

    assert receipt.event_id == owner
    query = "select owner_id, payload ->> 'owner' from publish_suite.outbox where id = $1"
    assert tuple(await connection.fetchrow(query, owner)) == (owner, str(owner))
