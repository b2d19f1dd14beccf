"""PL/pgSQL blocks as text: statements that check before they act, so that any driver can run them, and repeat them."""

import hashlib

from psycopg import sql

from aftercommit.postgres.shape import MAX_IDENTIFIER, Shape
from aftercommit.postgres.statements import Statements

# The advisory lock ("aftc") that serializes migrations of a schema and the creation of its partitions.
LOCK_CLASS = 0x61667463


def quoted(body: str) -> sql.SQL:
    """The text in dollar quotes with a tag that does not occur in it."""
    tag = "aftercommit"
    while f"${tag}$" in body:
        tag += "_"
    return sql.SQL(f"${tag}$\n{body}\n${tag}$")


def block(body: str) -> str:
    """A body as a DO statement."""
    return (sql.SQL("do ") + quoted(body)).as_string()


def unless(shape: Shape, condition: str, action: str) -> str:
    """A statement that acts only if the condition is false."""
    return block(Statements(shape).render("unless", condition=sql.SQL(condition), action=sql.SQL(action)))


def without_purpose(statement: str) -> str:
    """A statement without its comment lines, for people who run it by hand and where its length costs time."""
    return "\n".join(line for line in statement.splitlines() if not line.startswith("--"))


def name_literal(*parts: str) -> sql.Literal:
    """A quoted name as a string literal, for `::regclass` and to_regclass()."""
    return sql.Literal(sql.Identifier(*parts).as_string())


def bounded(name: str) -> str:
    """A name that fits PostgreSQL's limit, so that two long names are not cut to the same one."""
    if len(name.encode()) <= MAX_IDENTIFIER:
        return name
    return name.encode()[:40].decode(errors="ignore") + "_" + hashlib.sha256(name.encode()).hexdigest()[:16]
