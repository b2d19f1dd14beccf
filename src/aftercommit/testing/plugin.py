"""Loads what the ini file of the pytest plugin names: a server, an Outbox, a function."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg

from aftercommit.embedded.server import DEFAULT_VERSION
from aftercommit.errors import DeclarationError
from aftercommit.outbox import Outbox
from aftercommit.schema.references import named
from aftercommit.testing.postgres import PostgresServerForTests

_SEARCHED: Final = "(pytest's ini value `pythonpath = .` or an installed package makes it importable)"


def server_for(dsn: str | None, version: str | int | None, *, given_by: str | None = None) -> PostgresServerForTests:
    """The given server, or an embedded one of this version; not started. `given_by` names the option with the DSN."""
    if version is not None and not str(version).isdecimal():
        raise DeclarationError(f"aftercommit_postgres {version!r:.40} is not a major version of PostgreSQL, such as 18")
    chosen = DEFAULT_VERSION if version is None else int(version)
    return PostgresServerForTests(dsn, version=chosen, given_by=given_by or "dsn")


def load_outbox(where: str) -> Outbox:
    """The Outbox that the ini file names."""
    if not where:
        raise DeclarationError(
            "no Outbox to test: set aftercommit_app = package.module:name in pytest's ini file, or write a fixture "
            "aftercommit_outbox that returns it"
        )
    found = named(where, f"aftercommit_app = {where}", searched=_SEARCHED)
    if not isinstance(found, Outbox):
        raise DeclarationError(f"aftercommit_app = {where} is {found!r:.80} and not an Outbox")
    return found


def load_prepare(where: str, root: Path) -> Callable[[str], None] | None:
    """The function that the ini file names, or a function that runs the SQL file it names."""
    if not where:
        return None
    if where.endswith(".sql"):
        return _running(root / where)
    found = named(where, f"aftercommit_prepare = {where}", searched=_SEARCHED)
    if not callable(found):
        raise DeclarationError(f"aftercommit_prepare = {where} is {found!r:.80}, not a function that takes a DSN")
    prepare: Callable[[str], None] = found
    return prepare


def _running(path: Path) -> Callable[[str], None]:
    if not path.is_file():
        raise DeclarationError(f"aftercommit_prepare names {path}, which does not exist")

    def prepare(dsn: str) -> None:
        script = path.read_bytes()
        with psycopg.connect(dsn, autocommit=True) as connection:
            try:
                connection.execute(script)
            except psycopg.Error as problem:
                line = _line_of(problem, script)
                raise DeclarationError(
                    f"aftercommit_prepare names {path}, which fails{line}: {problem.diag.message_primary or problem}"
                ) from problem

    return prepare


def _line_of(problem: psycopg.Error, script: bytes) -> str:
    """The line of the script with the error, if PostgreSQL tells it."""
    position = problem.diag.statement_position
    if position is None:
        return ""
    return f" in line {script.decode(errors='replace')[: int(position) - 1].count(chr(10)) + 1}"
