"""Findings of checks, and the context that checks work with."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import psycopg

from aftercommit.errors import AftercommitError
from aftercommit.operate.health import HealthLimits, HealthProblem, Subject, problems
from aftercommit.operate.overview import Overview, overview
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema.catalog import asking

Level = Literal["ok", "warning", "problem"]
"""How bad a finding is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check, with a remedy unless its level is `ok`."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class CheckProblem:
    """A warning or problem that a check found."""

    level: Literal["warning", "problem"]
    found: str
    remedy: str


# Things work, but an operator should know about this.
warning = partial(CheckProblem, "warning")
# Something does not work, or data may be lost.
problem = partial(CheckProblem, "problem")


class ServerFacts(NamedTuple):
    """A row of the query `doctor_server`."""

    number: int
    version: str
    in_recovery: bool
    user: str
    database: str


class UserRights(NamedTuple):
    """A row of the query `doctor_rights`."""

    may_make_partitions: bool
    may_drop_partitions: bool
    may_see_others: bool


@dataclass
class CheckContext:
    """The outbox to check, on one connection. Data that several checks need is read once. See `diagnose`."""

    connection: psycopg.Connection[Any]
    database: Database
    shape: Shape
    declared: Collection[str] | None
    now: Callable[[], datetime]
    limits: HealthLimits
    users_by_header: bool = False

    def rows(self, query: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        """The rows of a named query."""
        return asking(self.connection)(
            Statements(self.shape).render(query), {"schema": self.shape.schema, **parameters}
        )

    def settings(self, *names: str) -> dict[str, str]:
        """Server settings as they apply to this user in this database."""
        return {str(name): str(value) for name, value in self.rows("doctor_settings", names=list(names))}

    @property
    def overview(self) -> Overview:
        """The state of the outbox."""
        if isinstance(self._overview, Exception):
            raise self._overview
        return self._overview

    @cached_property
    def _overview(self) -> Overview | AftercommitError | psycopg.Error:
        # An error is remembered too: the next check would only wait for the same lock again.
        try:
            return overview(self.connection, self.shape)
        except (AftercommitError, psycopg.Error) as error:
            return error

    def problems(self, about: Subject, consumer: str | None = None) -> Iterator[CheckProblem]:
        """The problems that `status` reports about a subject, or about one consumer."""
        for each in self.beyond_limits:
            if (each.about, each.consumer) == (about, consumer):
                yield problem(each.found, each.remedy)

    @cached_property
    def beyond_limits(self) -> list[HealthProblem]:
        """All problems that `status` would report."""
        return problems(self.overview, self.limits)

    @cached_property
    def user(self) -> str:
        """The name of the database user."""
        return self.server.user

    @cached_property
    def rights(self) -> UserRights:
        """What the database user may do."""
        return UserRights(*self.rows("doctor_rights")[0])

    @cached_property
    def server(self) -> ServerFacts:
        """Version, state, user and database of the connection."""
        return ServerFacts(*self.rows("doctor_server")[0])


@dataclass(frozen=True, slots=True)
class Check:
    """A named check; `fine` is its finding if it finds no problem."""

    name: str
    fine: str
    look: Callable[[CheckContext], Iterator[CheckProblem]]
