"""Migrations that are killed: `python -m tests.support.killed_migrations ADMIN_DSN TEMPLATE STRIDE`.

A database is cloned from the template, `up` runs on it in a process that kills itself (SIGKILL) at its n-th step, and
then once more without: for n = 1, 1 + STRIDE, … until a run ends before it is killed. A step is the moment before or
after a statement. Prints a line of JSON for each n: what the second run did, and how the tables look to `check`. Forked
from one process that has imported everything, because there are dozens of them.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from aftercommit.errors import AftercommitError
from aftercommit.schema import migrate
from aftercommit.testing.postgres import with_database
from tests.support.upgrade_app import outbox


class Fuse:
    """Kills its process when it has burnt down."""

    def __init__(self, length: int) -> None:
        self._left = length

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def light(fuse: Fuse) -> None:
    """Let every statement of this process burn it, before and after."""
    execute: Callable[..., Any] = psycopg.Cursor.execute

    def burning(self: Any, *arguments: Any, **options: Any) -> Any:
        fuse.burn()
        try:
            return execute(self, *arguments, **options)
        finally:
            fuse.burn()

    psycopg.Cursor.execute = burning  # type: ignore[method-assign]


def forked(work: Callable[[], object]) -> int:
    """The exit status of a child that does the work; -9 when it was killed."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def up(dsn: str, length: int | None = None) -> list[str]:
    if length is not None:
        light(Fuse(length))
    with psycopg.connect(dsn, autocommit=True) as connection:
        return migrate.up(connection, outbox.shape)


def looks(dsn: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            migrate.check(connection, outbox.shape)
        except AftercommitError as problem:
            return str(problem)
    return "current"


def clone(admin: str, template: str, number: int) -> str:
    name = f"{template}_killed_{number}"
    with psycopg.connect(admin, autocommit=True) as connection:
        statement = sql.SQL("create database {} template {} strategy file_copy")
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
    return with_database(admin, name)


def main(admin: str, template: str, stride: int) -> None:
    for number in itertools.count(1, stride):
        dsn = clone(admin, template, number)
        status = forked(partial(up, dsn, number))
        found = {"status": status, "done": [], "looks": looks(dsn), "dsn": dsn}
        if status == -signal.SIGKILL:
            found["done"] = up(dsn)
            found["looks"] = looks(dsn)
        print(json.dumps(found), flush=True)
        if status == 0:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
