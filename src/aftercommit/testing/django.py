"""Use the test's database in Django, or Django's database in the test kit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from aftercommit.testing.postgres import with_database

_PARTS: Final = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}


@contextmanager
def use_django_database(dsn: str, alias: str = "default") -> Iterator[None]:
    """Inside this block, and in this thread, `connections[alias]` connects to this database."""
    connection = _connection(alias)
    parts = conninfo_to_dict(dsn)
    before = dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update({name: str(parts.get(part) or "") for name, part in _PARTS.items()})
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)


def django_dsn(alias: str = "default") -> str:
    """The URI of Django's current database; with pytest-django, of its test database."""
    settings = _connection(alias).settings_dict
    parts = {part: str(settings[name]) for name, part in _PARTS.items() if settings.get(name)}
    return with_database(make_conninfo("", **parts), parts["dbname"])


def _connection(alias: str) -> Any:
    from django.db import connections

    return connections[alias]
