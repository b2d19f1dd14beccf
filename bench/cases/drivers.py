"""The kinds of connections that can be published on, each with the transaction that its users write."""

from typing import Any

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bench import shop
from bench.cases.stacks import CUSTOMER, TOTAL, AsyncStack, BlockingStack, Given, Row, Stack

NAMED_ORDER = sqlalchemy.text(shop.PLACE_ORDER.format(":customer", ":total"))
NAMED = {"customer": CUSTOMER, "total": TOTAL}


class Psycopg(BlockingStack):
    """psycopg, blocking, in threads."""

    name = "psycopg"

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn)

    def transact(self, connection: psycopg.Connection[Any], event: Given, row: Row) -> None:
        connection.execute(self.order.encode(), (CUSTOMER, TOTAL))
        if event is not None:
            self.outbox.publish(connection, event, tenant_id=shop.TENANT)
        elif row is not None:
            connection.execute(self.insert.encode(), row)
        connection.commit()


class AsyncPsycopg(AsyncStack):
    """psycopg on asyncio."""

    name = "psycopg async"

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self.dsn)

    async def transact(self, connection: psycopg.AsyncConnection[Any], event: Given, row: Row) -> None:
        await connection.execute(self.order.encode(), (CUSTOMER, TOTAL))
        if event is not None:
            await self.outbox.publish(connection, event, tenant_id=shop.TENANT)
        elif row is not None:
            await connection.execute(self.insert.encode(), row)
        await connection.commit()


class Asyncpg(AsyncStack):
    """asyncpg."""

    name = "asyncpg"
    marks = "$"

    async def connect(self) -> Any:
        return await asyncpg.connect(self.dsn)

    async def transact(self, connection: Any, event: Given, row: Row) -> None:
        async with connection.transaction():
            await connection.execute(self.order, CUSTOMER, TOTAL)
            if event is not None:
                # asyncpg ships no types, so the type checker cannot see that this is awaitable.
                await self.outbox.publish(connection, event, tenant_id=shop.TENANT)
            elif row is not None:
                await connection.execute(self.insert, *row)


class SqlalchemyConnection(BlockingStack):
    """SQLAlchemy Core on psycopg."""

    name = "SQLAlchemy Connection"

    def connect(self) -> sqlalchemy.Connection:
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(self.dsn))
        return engine.connect()

    def transact(self, connection: sqlalchemy.Connection, event: Given, row: Row) -> None:
        connection.execute(NAMED_ORDER, NAMED)
        if event is not None:
            self.outbox.publish(connection, event, tenant_id=shop.TENANT)
        elif row is not None:
            connection.exec_driver_sql(self.insert, row)
        connection.commit()


class SqlalchemySession(BlockingStack):
    """A SQLAlchemy Session per transaction on psycopg, from an engine with one connection."""

    name = "SQLAlchemy Session"

    def connect(self) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(self.dsn), pool_size=1, max_overflow=0
        )

    def transact(self, connection: sqlalchemy.Engine, event: Given, row: Row) -> None:
        with Session(connection) as session:
            session.execute(NAMED_ORDER, NAMED)
            if event is not None:
                self.outbox.publish(session, event, tenant_id=shop.TENANT)
            elif row is not None:
                session.connection().exec_driver_sql(self.insert, row)
            session.commit()

    def disconnect(self, connection: sqlalchemy.Engine) -> None:
        connection.dispose()


class SqlalchemyAsyncSession(AsyncStack):
    """A SQLAlchemy AsyncSession per transaction on asyncpg, from an engine with one connection."""

    name = "SQLAlchemy AsyncSession"
    marks = "$"

    async def connect(self) -> Any:
        return create_async_engine(
            "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(self.dsn), pool_size=1, max_overflow=0
        )

    async def transact(self, connection: Any, event: Given, row: Row) -> None:
        async with AsyncSession(connection) as session:
            await session.execute(NAMED_ORDER, NAMED)
            if event is not None:
                await self.outbox.publish(session, event, tenant_id=shop.TENANT)
            elif row is not None:
                await (await session.connection()).exec_driver_sql(self.insert, row)
            await session.commit()

    async def disconnect(self, connection: Any) -> None:
        await connection.dispose()


class Django(BlockingStack):
    """Django's connection inside atomic()."""

    name = "Django"

    def open(self) -> None:
        parts = conninfo_to_dict(self.dsn)
        names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
        database = {name: str(parts.get(key) or "") for name, key in names.items()}
        if not settings.configured:
            settings.configure(
                DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}}, USE_TZ=True
            )
            django.setup()
        super().open()

    def connect(self) -> Any:
        connection = connections["default"]
        connection.ensure_connection()
        return connection

    def transact(self, connection: Any, event: Given, row: Row) -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(self.order, (CUSTOMER, TOTAL))
            if event is not None:
                self.outbox.publish(connection, event, tenant_id=shop.TENANT)
            elif row is not None:
                with connection.cursor() as cursor:
                    cursor.execute(self.insert, row)


STACKS: tuple[type[Stack], ...] = (
    Psycopg,
    AsyncPsycopg,
    Asyncpg,
    SqlalchemyConnection,
    SqlalchemySession,
    SqlalchemyAsyncSession,
    Django,
)
