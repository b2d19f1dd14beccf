"""Who holds things up: open transactions, prepared ones, and replication slots, each with what it holds and the remedy.

Reads PostgreSQL's own views, changes nothing. What a role may not see of other users' sessions is left unknown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import asking

# Shorter ones are everyday work.
WORTH_A_LOOK_SECONDS = 5.0
_MIB = 1 << 20

Kind = Literal["transaction", "prepared transaction", "replication slot"]


@dataclass(frozen=True, slots=True)
class Blocker:
    """Somebody who holds something up: a process id, the name of a prepared transaction, or of a slot.

    `seconds` is None where this role may not know; `holds` says what, the gravest first; `oldest` is how many
    transactions ago the rows begin that vacuum has to leave for it.
    """

    kind: Kind
    name: str
    user: str | None
    application: str
    state: str
    seconds: float | None
    holds: tuple[str, ...]
    oldest: int | None = None
    locks_tables: bool = False

    def __str__(self) -> str:
        """Who it is, in words."""
        user = f" of user {self.user!r}" if self.user else ""
        application = f" ({self.application})" if self.application else ""
        since = f" for {self.seconds:.0f} s" if self.seconds is not None else ""
        what = "process" if self.kind == "transaction" else self.kind
        return f"{what} {self.name}{user}{application}, {self.state}{since}"

    @property
    def remedy(self) -> str:
        """How an operator ends it."""
        match self.kind:
            case "transaction":
                return f"let it commit, or end it: select pg_terminate_backend({self.name})"
            case "prepared transaction":
                return f"commit prepared or rollback prepared {sql.quote(self.name)}"
            case "replication slot":
                return f"let its reader come back, or: select pg_drop_replication_slot({sql.quote(self.name)})"


def find_blockers(
    connection: psycopg.Connection[Any], shape: Shape, *, seconds: float | None = None
) -> tuple[Blocker, ...]:
    """Everybody who has held something up for longer than this (or than is worth a look), longest first."""
    seconds = WORTH_A_LOOK_SECONDS if seconds is None else seconds
    ask, statements = asking(connection), Statements(shape)
    transactions = ask(statements.render("holding_transactions"), {"schema": shape.schema, "seconds": seconds})
    outbox = sql.Identifier(shape.schema, "outbox").as_string()
    prepared = ask(statements.render("holding_prepared"), {"outbox": outbox, "seconds": seconds})
    slots = ask(statements.render("holding_slots"), {})
    return (
        *(_transaction(*row) for row in transactions),
        *(_prepared(*row) for row in prepared),
        *(_slot(*row) for row in slots),
    )


def _transaction(
    pid: str,
    user: str | None,
    application: str,
    state: str,
    seconds: float | None,
    publishes: bool,
    appends: bool,
    locked: str | None,
    touches: bool,
    waiting: list[str],
    oldest: int | None,
) -> Blocker:
    held = _holds(publishes, appends, locked, touches, waiting, oldest)
    return Blocker("transaction", pid, user, application, state, seconds, tuple(held), oldest, locked is not None)


def _holds(
    publishes: bool, appends: bool, locked: str | None, touches: bool, waiting: list[str], oldest: int | None
) -> Iterator[str]:
    if appends:
        yield "every append to the log, because it has written to the head"
    if publishes:
        yield "the relays' watermark, because it has published and not committed"
    if locked is not None:
        yield f"readers and writers of table {locked}, which it has locked"
    if waiting:
        yield f"{', '.join(waiting[:3])}{' and others' if len(waiting) > 3 else ''}, waiting for its locks"
    if touches and not (publishes or appends or locked):
        yield "migrations and the dropping of partitions, because it uses a table of the outbox"
    if oldest is not None:
        yield "vacuum, which has to leave what it might still see"


def _prepared(name: str, user: str, seconds: float, publishes: bool, oldest: int) -> Blocker:
    held = ("the relays' watermark, because it has published and is not decided",) if publishes else ()
    vacuum = "vacuum, which has to leave what it might still see"
    return Blocker("prepared transaction", name, user, "", "prepared", seconds, (*held, vacuum), oldest)


def _slot(
    name: str, kind: str, active: bool, oldest: int | None, holds_rows: bool, wal: float | None, wal_status: str
) -> Blocker:
    held = []
    if holds_rows:
        held.append("vacuum, which has to leave what its reader might still see")
    if not active:
        size = f"{wal / _MIB:.0f} MiB of" if wal is not None else "an unknown amount of"
        held.append(f"{size} WAL on the disk, which nobody reads ({wal_status})")
    state = f"{kind}, {'active' if active else 'not active'}"
    return Blocker("replication slot", name, None, "", state, None, tuple(held), oldest)
