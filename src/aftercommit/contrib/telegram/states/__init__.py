"""Storage of the bot's state: an SQLite file or PostgreSQL, with the same statements."""

import re
from pathlib import Path

from aftercommit.contrib.telegram.states.postgres import PostgresDriver, has_state
from aftercommit.contrib.telegram.states.sql import Store
from aftercommit.contrib.telegram.states.sqlite import SqliteDriver
from aftercommit.postgres.database import safe

_POSTGRES = re.compile(r"postgres(?:ql)?://|\s*\w+\s*=")


def open_store(where: str) -> Store:
    """The state in PostgreSQL (`postgresql://…` or `host=… dbname=…`) or in a file. Nothing is opened yet."""
    if _POSTGRES.match(where):
        return Store(PostgresDriver(where))
    return Store(SqliteDriver(Path(where.removeprefix("sqlite:///"))))


def exists(where: str) -> bool:
    """Whether there can be a state: false for a file that does not exist."""
    return _POSTGRES.match(where) is not None or Path(where.removeprefix("sqlite:///")).exists()


def safe_place(where: str) -> str:
    """The location of the state, without a password."""
    return safe(where) if _POSTGRES.match(where) else where


__all__ = ["exists", "has_state", "open_store", "safe_place"]
