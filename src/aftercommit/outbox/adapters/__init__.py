"""Finds the adapter for the caller's connection or session. Imports no library that is not in use."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from aftercommit.errors import UnsupportedConnection
from aftercommit.outbox.publisher import AsyncPublisher, SyncPublisher

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    import sqlalchemy.ext.asyncio
    import sqlalchemy.orm

    SyncTarget: TypeAlias = (
        psycopg.Connection[Any] | sqlalchemy.Connection | sqlalchemy.orm.Session | sqlalchemy.orm.scoped_session[Any]
    )
    AsyncTarget: TypeAlias = (
        psycopg.AsyncConnection[Any] | sqlalchemy.ext.asyncio.AsyncConnection | sqlalchemy.ext.asyncio.AsyncSession
    )

Finder = Callable[[Any], SyncPublisher | AsyncPublisher | None]

_ADAPTERS = {
    "psycopg": "psycopg",
    "psycopg_pool": "psycopg",
    "asyncpg": "asyncpg",
    "sqlalchemy": "sqlalchemy",
    "django": "django",
}


def publisher_for(connection: Any) -> SyncPublisher | AsyncPublisher:
    """The adapter for this object, chosen by the library that its class (or a base class) comes from."""
    for ancestor in type(connection).__mro__:
        adapter = _ADAPTERS.get(ancestor.__module__.partition(".")[0])
        if adapter is not None:
            find: Finder = import_module(f"{__package__}.{adapter}").find
            publisher = find(connection)
            if publisher is not None:
                return publisher
    raise UnsupportedConnection(
        f"cannot publish on {connection!r:.120} "
        f"({type(connection).__module__}.{type(connection).__qualname__}): give a psycopg or asyncpg "
        "connection, a SQLAlchemy (Async)Session or (Async)Connection, or a Django database connection"
    )
