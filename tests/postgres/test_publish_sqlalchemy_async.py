"""Publishing on SQLAlchemy's AsyncSession, async_scoped_session and AsyncConnection, over asyncpg and psycopg."""

import asyncio
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from aftercommit.testing.outbox_suite import PublishHarness, PublishSuite

pytestmark = pytest.mark.newest


class AsyncConnectionHarness(PublishHarness):
    """What an AsyncSession and an AsyncConnection have in common."""

    driver = "asyncpg"
    work: Any

    @property
    def target(self) -> Any:
        return self.work

    async def start(self, engine: AsyncEngine) -> None:
        self.work = await engine.connect()

    async def connect(self, **options: Any) -> None:
        self.engine = create_async_engine(self.dsn.replace("postgresql:", f"postgresql+{self.driver}:"), **options)
        self.nested: list[Any] = []
        await self.start(self.engine)

    async def open(self) -> None:
        await self.connect()

    async def open_outside_transaction(self) -> None:
        await self.connect(isolation_level="AUTOCOMMIT")

    async def begin(self) -> None:
        await self.work.begin()

    async def commit(self) -> None:
        await self.work.commit()

    async def rollback(self) -> None:
        await self.work.rollback()

    async def savepoint(self) -> None:
        self.nested.append(await self.work.begin_nested())

    async def release_savepoint(self) -> None:
        await self.nested.pop().commit()

    async def rollback_to_savepoint(self) -> None:
        await self.nested.pop().rollback()

    async def execute(self, statement: str) -> None:
        await self.work.execute(sqlalchemy.text(statement))

    async def close(self) -> None:
        await self.work.close()
        await self.engine.dispose()


class AsyncSessionHarness(AsyncConnectionHarness):
    async def start(self, engine: AsyncEngine) -> None:
        self.work = AsyncSession(engine)


class AsyncScopedSessionHarness(AsyncConnectionHarness):
    async def start(self, engine: AsyncEngine) -> None:
        self.task = asyncio.current_task()
        self.work = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: self.task)


class PsycopgConnectionHarness(AsyncConnectionHarness):
    driver = "psycopg"


class PsycopgSessionHarness(AsyncSessionHarness):
    driver = "psycopg"


class TestAsyncConnection(PublishSuite):
    harness = AsyncConnectionHarness


class TestAsyncSession(PublishSuite):
    harness = AsyncSessionHarness


class TestAsyncScopedSession(PublishSuite):
    harness = AsyncScopedSessionHarness


class TestAsyncConnectionOverPsycopg(PublishSuite):
    harness = PsycopgConnectionHarness


class TestAsyncSessionOverPsycopg(PublishSuite):
    harness = PsycopgSessionHarness
