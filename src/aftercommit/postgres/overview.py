"""How an outbox is doing, read from its tables in one look. Changes nothing and locks nothing."""

from dataclasses import dataclass
from typing import Any

import psycopg

from aftercommit.errors import SchemaNotMigrated
from aftercommit.postgres.catalog import asking
from aftercommit.postgres.database import privilege
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements

# A relay speaks up several times within its lease; one without lanes is taken for alive this long.
SILENCE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer of the log: how far it is, and who works for it (None: nobody)."""

    name: str
    position: int
    lag: int
    paused: bool
    holder: str | None


@dataclass(frozen=True, slots=True)
class RelayState:
    """A relay on record: seconds since it was heard of, and how many lanes it holds."""

    name: str
    silent_seconds: float
    lanes: int

    @property
    def is_alive(self) -> bool:
        """Whether it still carries lanes, or was heard of just now."""
        return self.lanes > 0 or self.silent_seconds < SILENCE_SECONDS


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Open dead letters of one owner (a consumer, or @relay) in one status."""

    owner: str
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class Overview:
    """An outbox at one moment."""

    outbox: str
    pending: int
    oldest_seconds: float
    retrying: int
    failed: int
    head: int
    consumers: tuple[ConsumerState, ...]
    relays: tuple[RelayState, ...]
    dead_letters: tuple[DeadLetterCount, ...]

    def dead(self, status: str) -> int:
        """Dead letters in one status, whoever owns them."""
        return sum(each.count for each in self.dead_letters if each.status == status)

    def problems(self, max_age: float) -> list[str]:
        """What an operator should look at, in words; nothing when all is well."""
        found = []
        if self.pending and not any(relay.is_alive for relay in self.relays):
            found.append(f"{self.pending} events wait and no relay is alive: start `aftercommit relay`")
        if self.oldest_seconds > max_age:
            found.append(f"the oldest event has waited {self.oldest_seconds:.0f} s, more than {max_age:g} s")
        for consumer in self.consumers:
            if consumer.lag > 0 and consumer.holder is None and not consumer.paused:
                found.append(
                    f"consumer {consumer.name!r} is {consumer.lag} events behind and nobody works for it: "
                    "start `aftercommit worker`"
                )
        return found


def outboxes(connection: psycopg.Connection[Any]) -> list[str]:
    """The schemas of this database that hold an outbox."""
    return [row[0] for row in asking(connection)(Statements(Shape()).render("find_outboxes"), {})]


def overview(connection: psycopg.Connection[Any], shape: Shape) -> Overview:
    """One look at an outbox; SchemaNotMigrated when it is not there."""
    statements, ask = Statements(shape), asking(connection)
    try:
        with connection.transaction():
            pending, oldest_seconds, retrying, failed, head = ask(statements.render("overview_outbox"), {})[0]
            consumers = ask(statements.render("overview_consumers"), {})
            relays = ask(statements.render("overview_relays"), {})
            dead_letters = ask(statements.render("overview_dead_letters"), {})
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as problem:
        raise SchemaNotMigrated(
            f"there is no outbox in schema {shape.schema!r} of database {connection.info.dbname!r}: "
            "run `aftercommit migrate up`"
        ) from problem
    except psycopg.errors.InsufficientPrivilege as problem:
        raise privilege(connection.info.user, shape, problem) from problem
    return Overview(
        shape.schema,
        pending,
        oldest_seconds,
        retrying,
        failed,
        head,
        consumers=tuple(ConsumerState(*row) for row in consumers),
        relays=tuple(RelayState(*row) for row in relays),
        dead_letters=tuple(DeadLetterCount(*row) for row in dead_letters),
    )
