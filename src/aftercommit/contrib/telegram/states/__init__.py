"""Where the bot's state is kept: in an SQLite file beside it, or in PostgreSQL. Both run the same statements."""

import re
from pathlib import Path

from aftercommit.contrib.telegram.state import Store
from aftercommit.contrib.telegram.states.postgres import PostgresDriver, has_state
from aftercommit.contrib.telegram.states.sql import SqlStore
from aftercommit.contrib.telegram.states.sqlite import SqliteDriver
from aftercommit.postgres.database import safe

_POSTGRES = re.compile(r"postgres(?:ql)?://|\s*\w+\s*=")


def open_store(where: str) -> Store:
    """The state at an address of PostgreSQL (`postgresql://…`, or `host=… dbname=…`), or in a file; not opened yet."""
    if _POSTGRES.match(where):
        return SqlStore(PostgresDriver(where))
    return SqlStore(SqliteDriver(Path(where.removeprefix("sqlite:///"))))


def exists(where: str) -> bool:
    """Whether there can be a state at all: a file that is not there holds none."""
    return _POSTGRES.match(where) is not None or Path(where.removeprefix("sqlite:///")).exists()


def safe_place(where: str) -> str:
    """Where the state is, without a password."""
    return safe(where) if _POSTGRES.match(where) else where


__all__ = ["exists", "has_state", "open_store", "safe_place"]
