"""Finds what blocks an outbox: open transactions, prepared transactions and replication slots, each with a remedy.

Reads PostgreSQL's own views and changes nothing. Without pg_read_all_stats, details of other users' sessions are
unknown.
"""

from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import asking

# Shorter transactions are normal.
WORTH_A_LOOK_SECONDS = 5.0
_MIB = 1 << 20
_WATERMARK = "the relays' watermark, because it has published and not committed"
_VACUUM = "vacuum, which has to keep old row versions for it"

Kind = Literal["transaction", "prepared transaction", "replication slot"]


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session, prepared transaction or replication slot that blocks others; `name` is its process id or its name.

    `seconds` is None if this role may not see it. `holds` lists what it blocks, most serious first. `oldest` is the
    age, in transactions, of the oldest rows that vacuum has to keep for it.
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
        """A description for messages."""
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
                return f"start its reader again, or: select pg_drop_replication_slot({sql.quote(self.name)})"


def find_blockers(
    connection: psycopg.Connection[Any], shape: Shape, *, seconds: float | None = None
) -> tuple[Blocker, ...]:
    """Everything that has blocked others for longer than this, by default WORTH_A_LOOK_SECONDS; longest first."""
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
    held = []
    if appends:
        held.append("every append to the log, because it has written to the head")
    if publishes:
        held.append(_WATERMARK)
    if locked is not None:
        held.append(f"readers and writers of table {locked}, which it has locked")
    if waiting:
        held.append(f"{', '.join(waiting[:3])}{' and others' if len(waiting) > 3 else ''}, waiting for its locks")
    if touches and not (publishes or appends or locked):
        held.append("migrations and the dropping of partitions, because it uses a table of the outbox")
    if oldest is not None:
        held.append(_VACUUM)
    return Blocker("transaction", pid, user, application, state, seconds, tuple(held), oldest, locked is not None)


def _prepared(name: str, user: str, seconds: float, publishes: bool, oldest: int) -> Blocker:
    held = (_WATERMARK,) if publishes else ()
    return Blocker("prepared transaction", name, user, "", "prepared", seconds, (*held, _VACUUM), oldest)


def _slot(
    name: str, kind: str, active: bool, oldest: int | None, holds_rows: bool, wal: float | None, wal_status: str
) -> Blocker:
    held = []
    if holds_rows:
        held.append(_VACUUM)
    if not active:
        size = f"{wal / _MIB:.0f} MiB of" if wal is not None else "an unknown amount of"
        held.append(f"{size} unread WAL on disk ({wal_status})")
    state = f"{kind}, {'active' if active else 'not active'}"
    return Blocker("replication slot", name, None, "", state, None, tuple(held), oldest)
