"""Finds the adapter for a connection or session. Imports only libraries that the caller uses already."""

from collections.abc import Callable
from functools import cache
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
_known: dict[type[Any], tuple[Finder, ...]] = {}
_by_class: dict[type[Any], Callable[[Any], SyncPublisher | AsyncPublisher]] = {}


@cache
def _finder(adapter: str) -> Finder:
    find: Finder = import_module(f"{__package__}.{adapter}").find
    return find


def _finders_for(kind: type[Any]) -> tuple[Finder, ...]:
    """The adapters for a class, by the libraries of the class and its bases."""
    libraries = (ancestor.__module__.partition(".")[0] for ancestor in kind.__mro__)
    return tuple(dict.fromkeys(_finder(_ADAPTERS[library]) for library in libraries if library in _ADAPTERS))


def publisher_for(connection: Any) -> SyncPublisher | AsyncPublisher:
    """The adapter for this object."""
    adapter = _by_class.get(type(connection))
    return adapter(connection) if adapter is not None else _found(connection)


def _found(connection: Any) -> SyncPublisher | AsyncPublisher:
    kind = type(connection)
    finders = _known.get(kind)
    if finders is None:
        finders = _known[kind] = _finders_for(kind)
    for find in finders:
        publisher = find(connection)
        if publisher is not None:
            if publisher.fits_class:
                _by_class[kind] = type(publisher)
            return publisher
    raise UnsupportedConnection(
        f"cannot publish on {connection!r:.120} "
        f"({type(connection).__module__}.{type(connection).__qualname__}): give a psycopg or asyncpg "
        "connection, a SQLAlchemy (Async)Session or (Async)Connection, or a Django database connection"
    )
