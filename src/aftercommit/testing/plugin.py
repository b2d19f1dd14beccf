"""What the pytest plugin's fixtures are made of: from a line in an ini file to a server, an Outbox, a function."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg

from aftercommit.errors import DeclarationError
from aftercommit.outbox import Outbox
from aftercommit.postgres.embedded.server import DEFAULT_VERSION
from aftercommit.testing.postgres import PostgresServerForTests


def server_for(dsn: str | None, version: str | int | None) -> PostgresServerForTests:
    """The given server, or an embedded one of this version; not started."""
    if version is not None and not str(version).isdecimal():
        raise DeclarationError(f"aftercommit_postgres {version!r:.40} is not a major version of PostgreSQL, such as 18")
    return PostgresServerForTests(dsn, version=DEFAULT_VERSION if version is None else int(version))


def load_outbox(where: str) -> Outbox:
    """The Outbox that the ini file names."""
    if not where:
        raise DeclarationError(
            "which Outbox is tested? Say aftercommit_app = package.module:name in pytest's ini file, or write a "
            "fixture aftercommit_outbox that returns it"
        )
    found = _load(where, "aftercommit_app")
    if not isinstance(found, Outbox):
        raise DeclarationError(f"aftercommit_app = {where} is {found!r:.80} and not an Outbox")
    return found


def load_prepare(where: str, root: Path) -> Callable[[str], None] | None:
    """The function that the ini file names, or one that runs the file of SQL."""
    if not where:
        return None
    if where.endswith(".sql"):
        return _running(root / where)
    found = _load(where, "aftercommit_prepare")
    if not callable(found):
        raise DeclarationError(f"aftercommit_prepare = {where} is {found!r:.80} and cannot be called with a DSN")
    prepare: Callable[[str], None] = found
    return prepare


def _running(path: Path) -> Callable[[str], None]:
    if not path.is_file():
        raise DeclarationError(f"aftercommit_prepare names {path}, and there is no such file")

    def prepare(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(path.read_bytes())

    return prepare


def _load(where: str, option: str) -> Any:
    module_name, _, attribute = where.partition(":")
    if not module_name or not attribute:
        raise DeclarationError(f"{option} = {where} should look like package.module:name")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as problem:
        # A module that is there but lacks something of its own is for its author to see whole.
        if problem.name is None or not f"{module_name}.".startswith(f"{problem.name}."):
            raise
        raise DeclarationError(
            f"{option} = {where}: there is no module {problem.name!r} (pytest's ini value `pythonpath = .` or an "
            "installed package makes it importable)"
        ) from problem
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise DeclarationError(f"{option} = {where}: {found!r:.80} has no attribute {name!r}")
        found = getattr(found, name)
    return found
