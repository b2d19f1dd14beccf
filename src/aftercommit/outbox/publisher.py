"""Runs the statements of a publish on the caller's connection, in a blocking half and an async one.

Every transaction of the application pays for what happens here, so one event without a key takes the short way: one
statement, no rows to fetch, no conversation.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from aftercommit.errors import NotInTransaction, UnsupportedConnection
from aftercommit.outbox.insert import Receipt, Script, Style

Rows = Sequence[Sequence[Any]]


class SyncPublisher(ABC):
    """A blocking connection."""

    style: Style

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether what is written now is undone by the caller's rollback."""

    @abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run one statement in the caller's transaction and return its rows."""

    def require_transaction(self) -> None:
        """Refuse a connection on which the event would commit alone."""
        if not self.in_transaction():
            raise NotInTransaction(_OUTSIDE)

    def run(self, script: Script) -> Receipt:
        """Hold the script's conversation with the database."""
        try:
            question = next(script)
            while True:
                question = script.send(self.fetch(*question))
        except StopIteration as end:
            return _receipt(end)


class AsyncPublisher(ABC):
    """An asyncio connection."""

    style: Style

    @abstractmethod
    async def in_transaction(self) -> bool:
        """Whether what is written now is undone by the caller's rollback."""

    @abstractmethod
    async def execute(self, statement: str, parameters: Sequence[Any]) -> None:
        """Run one statement in the caller's transaction."""

    @abstractmethod
    async def fetch(self, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run one statement in the caller's transaction and return its rows."""

    async def require_transaction(self) -> None:
        """Refuse a connection on which the event would commit alone."""
        if not await self.in_transaction():
            raise NotInTransaction(_OUTSIDE)

    async def run(self, script: Script) -> Receipt:
        """Hold the script's conversation with the database."""
        try:
            question = next(script)
            while True:
                question = script.send(await self.fetch(*question))
        except StopIteration as end:
            return _receipt(end)


_OUTSIDE = (
    "publish was called outside a transaction, where the event would commit without the rows it speaks of: "
    "open a transaction first, or say publish(…, outside_transaction=True) if the event stands alone"
)


def _receipt(end: StopIteration) -> Receipt:
    receipt: Receipt = end.value
    return receipt


def style_of_driver(driver: str) -> Style:
    """How placeholders look for a driver underneath SQLAlchemy or Django."""
    styles: dict[str, Style] = {
        "psycopg": "psycopg",
        "psycopg_async": "psycopg",
        "asyncpg": "asyncpg",
        "psycopg2": "text",
    }
    try:
        return styles[driver]
    except KeyError:
        raise UnsupportedConnection(
            f"the driver {driver!r} is not supported: use psycopg (postgresql+psycopg:), asyncpg or psycopg2"
        ) from None
