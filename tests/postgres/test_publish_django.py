"""Publishing inside Django's atomic(), on the default database and on another alias."""

from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connection as default_connection
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict

from aftercommit.errors import NotInTransaction, UnsupportedConnection
from aftercommit.testing.outbox_suite import PublishHarness, PublishSuite
from aftercommit.testing.publish_stage import OUTBOX, SCOPE, SuiteOrderPlaced

POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "NAME": "given by the harness"}

if not settings.configured:
    settings.configure(
        DATABASES={
            "default": dict(POSTGRESQL),
            "events": dict(POSTGRESQL),
            "bound by the server": {**POSTGRESQL, "OPTIONS": {"server_side_binding": True}},
            "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        },
        USE_TZ=True,
    )
    django.setup()


def connected(alias: str, dsn: str) -> Any:
    """This thread's connection under the alias, to the database of the test."""
    parts = conninfo_to_dict(dsn)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    connection = connections[alias]
    connection.settings_dict.update({name: str(parts.get(key) or "") for name, key in names.items()})
    return connection


class Django(PublishHarness):
    """Views and commands: autocommit, with atomic() around what belongs together."""

    alias = "default"

    @property
    def target(self) -> Any:
        return default_connection

    def open(self) -> None:
        self.connection = connected(self.alias, self.dsn)
        self.blocks: list[Any] = []

    open_outside_transaction = open

    def begin(self) -> None:
        block = transaction.atomic(using=self.alias)
        block.__enter__()
        self.blocks.append(block)

    def commit(self) -> None:
        self.blocks.pop().__exit__(None, None, None)

    def rollback(self) -> None:
        # An exception on its way out of the block, which the caller of the block catches.
        self.blocks.pop().__exit__(RuntimeError, RuntimeError("undo"), None)

    savepoint = begin
    release_savepoint = commit
    rollback_to_savepoint = rollback

    def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def close(self) -> None:
        self.connection.close()


class DjangoOnAnotherAlias(Django):
    alias = "events"

    @property
    def target(self) -> Any:
        return connections["events"]


class DjangoBoundByTheServer(DjangoOnAnotherAlias):
    """With the option that makes psycopg send parameters apart from the statement."""

    alias = "bound by the server"

    @property
    def target(self) -> Any:
        return connections["bound by the server"]


class TestDjango(PublishSuite):
    harness = Django


class TestDjangoOnAnotherAlias(PublishSuite):
    harness = DjangoOnAnotherAlias


class TestDjangoBoundByTheServer(PublishSuite):
    harness = DjangoBoundByTheServer


@pytest.fixture
def events(publish_database):
    connection = connected("events", publish_database)
    yield connection
    connection.close()


def test_a_transaction_on_one_alias_is_none_on_another(events, publish_database):
    """The event would commit apart from the rows it speaks of."""
    default = connected("default", publish_database)
    try:
        with transaction.atomic(using="default"), pytest.raises(NotInTransaction):
            OUTBOX.publish(events, SuiteOrderPlaced("o"), **SCOPE)
    finally:
        default.close()


def test_autocommit_switched_off_is_a_transaction(events):
    transaction.set_autocommit(False, using="events")
    OUTBOX.publish(events, SuiteOrderPlaced("o"), **SCOPE)
    transaction.rollback(using="events")
    transaction.set_autocommit(True, using="events")


def test_another_database_is_refused_by_name():
    with pytest.raises(UnsupportedConnection, match="'other' is sqlite"):
        OUTBOX.publish(connections["other"], SuiteOrderPlaced("o"), **SCOPE)
