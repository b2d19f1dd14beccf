"""Loads the outbox and the database that the options of a command name."""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import psycopg

from aftercommit.application import Application
from aftercommit.cli.options import Given
from aftercommit.embedded import default_folder
from aftercommit.embedded.postmaster import find_postmaster
from aftercommit.errors import DatabaseError, DeclarationError
from aftercommit.operate.overview import outboxes, overview
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database, checked
from aftercommit.postgres.shape import Shape
from aftercommit.schema.references import named
from aftercommit.settings import APP, DATABASE_URL, LISTEN_URL, SCHEMA, Settings


def load_outbox(settings: Settings) -> Outbox:
    """The Outbox that --app names."""
    found = load_named(settings, "Outbox")
    if isinstance(found, Application):
        found = _one_of(found, settings)
    if not isinstance(found, Outbox):
        raise DeclarationError(
            f"--app {settings.app!r} is {found!r:.80}, not an Outbox: name the Outbox that your service publishes with"
        )
    return found


def _one_of(application: Application, settings: Settings) -> Outbox:
    """The application's only outbox, or the one that --schema names."""
    known = {outbox.schema: outbox for outbox in application.outboxes}
    wanted = settings.schema or (next(iter(known)) if len(known) == 1 else None)
    if wanted not in known:
        raise DeclarationError(
            f"--app {settings.app!r} has these outboxes: {', '.join(known) or 'none'}. Choose one with --schema"
        )
    return known[wanted]


def load_application(settings: Settings) -> Application:
    """The Application that --app names. An Outbox is wrapped in one."""
    found = load_named(settings, "Application or Outbox")
    if isinstance(found, Outbox):
        return Application(about="your application", outboxes=(found,))
    if not isinstance(found, Application):
        raise DeclarationError(
            f"--app {settings.app!r} is {found!r:.80}, neither an Application nor an Outbox: name one of yours"
        )
    return found


def load_named(settings: Settings, what: str) -> Any:
    """The object that --app names. Like `python -m`, imports from the current directory as well."""
    if settings.app is None:
        raise DeclarationError(
            f"this command needs your declarations: name your {what} with --app package.module:name, or in {APP}"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return named(settings.app, f"--app {settings.app!r}", searched=f"in {here} or among the installed packages")


def load_shape(settings: Settings) -> Shape:
    """The shape of the outbox that --app names; otherwise, of one in --schema without scope and views."""
    if settings.app is not None:
        return load_outbox(settings).shape
    return Shape(settings.schema) if settings.schema is not None else Shape()


def load_shapes(settings: Settings) -> list[Shape]:
    """The shapes of all outboxes that --app names: an Application may have several."""
    if settings.app is None:
        return [load_shape(settings)]
    found = load_application(settings).outboxes
    for outbox in found:
        outbox.registry.require_upcasters()
    return [outbox.shape for outbox in found]


def load_database(settings: Settings, command: str) -> Database:
    """The database of --dsn, of DATABASE_URL, or of the running embedded server. Does not connect."""
    dsn = settings.dsn or running_server()
    if dsn is None:
        raise DatabaseError(
            f"no database: set {DATABASE_URL}, give --dsn, or run `aftercommit up`, which starts one (none is running "
            f"in {default_folder().absolute()})"
        )
    return database_at(dsn, settings, command)


def database_at(dsn: str, settings: Settings, command: str) -> Database:
    """The database at this address. An error names the option or variable that has the invalid address."""
    context = click.get_current_context(silent=True)
    given = context.find_object(Given) if context is not None else None
    checked(dsn, "--dsn" if given is not None and "dsn" in given.options else DATABASE_URL)
    if settings.listen_dsn is not None:
        checked(settings.listen_dsn, LISTEN_URL)
    return Database(dsn, listen_dsn=settings.listen_dsn, application_name=f"aftercommit {command}")


def running_server() -> str | None:
    """The address of the embedded server in AFTERCOMMIT_HOME, if one is running there."""
    for data_folder in sorted(default_folder().absolute().glob("postgres-*"), reverse=True):
        server = find_postmaster(data_folder) if data_folder.is_dir() else None
        if server is not None and server.is_ready:
            host = quote(str(server.socket_folder), safe="/")
            return f"postgresql://postgres@/postgres?host={host}&port={server.port}"
    return None


def find_shape(settings: Settings, connection: psycopg.Connection[Any]) -> Shape:
    """The outbox that --app or --schema names, or the only one in the database."""
    if settings.app is not None or settings.schema is not None:
        return load_shape(settings)
    found = outboxes(connection)
    if len(found) > 1:
        raise DeclarationError(
            f"database {connection.info.dbname!r} has several outboxes ({', '.join(found)}): choose one with --schema "
            f"or {SCHEMA}"
        )
    return Shape(found[0]) if found else Shape()


def find_outbox(settings: Settings, connection: psycopg.Connection[Any]) -> Shape:
    """The same, after a check that the outbox exists and that this code can read it."""
    shape = find_shape(settings, connection)
    overview(connection, shape)
    return shape
