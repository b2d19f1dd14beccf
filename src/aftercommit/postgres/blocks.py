"""PL/pgSQL blocks: statements that look before they act, so that one text serves every driver and can run again.

Pure text. Nothing is executed here.
"""

import hashlib

from psycopg import sql

from aftercommit.postgres.shape import MAX_IDENTIFIER, Shape
from aftercommit.postgres.statements import Statements

# Migrations of one schema and its new partitions take turns under this advisory lock ("aftc").
LOCK_CLASS = 0x61667463


def quoted(body: str) -> sql.SQL:
    """The text between dollar quotes that do not occur in it: a schema may be called anything."""
    tag = "aftercommit"
    while f"${tag}$" in body:
        tag += "_"
    return sql.SQL(f"${tag}$\n{body}\n${tag}$")


def block(body: str) -> str:
    """A body as a statement of its own."""
    return (sql.SQL("do ") + quoted(body)).as_string()


def unless(shape: Shape, condition: str, action: str) -> str:
    """A statement that acts only where the condition does not hold yet."""
    return block(Statements(shape).render("unless", condition=sql.SQL(condition), action=sql.SQL(action)))


def without_purpose(statement: str) -> str:
    """A statement for a person to run, without the line that tells readers of our files what it is for."""
    return "\n".join(line for line in statement.splitlines() if not line.startswith("--"))


def name_literal(*parts: str) -> sql.Literal:
    """A quoted name as a string, as `::regclass` and to_regclass() read it."""
    return sql.Literal(sql.Identifier(*parts).as_string())


def bounded(name: str) -> str:
    """A name that PostgreSQL does not cut off: two long ones could meet in one object otherwise."""
    if len(name.encode()) <= MAX_IDENTIFIER:
        return name
    return name.encode()[:40].decode(errors="ignore") + "_" + hashlib.sha256(name.encode()).hexdigest()[:16]
