"""What a check found, and what checks look at."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

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
    """What one check found, and the remedy where something is not as it should be."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class CheckProblem:
    """Something that a check found wrong."""

    level: Literal["warning", "problem"]
    found: str
    remedy: str


def warning(found: str, remedy: str) -> CheckProblem:
    """It works, and somebody should know."""
    return CheckProblem("warning", found, remedy)


def problem(found: str, remedy: str) -> CheckProblem:
    """It does not work, or may lose something."""
    return CheckProblem("problem", found, remedy)


class CheckContext:
    """The outbox that is looked over, through one connection; what several checks need is read once."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        database: Database,
        shape: Shape,
        declared: Collection[str] | None,
        now: Callable[[], datetime],
        limits: HealthLimits,
        users_by_header: bool = False,
    ) -> None:
        """`declared` are the consumers that the application declares, where it is known. `users_by_header` says that
        its readers are named by `X-User-Id`.
        """
        self.connection = connection
        self.database = database
        self.shape = shape
        self.declared = declared
        self.now = now
        self.limits = limits
        self.users_by_header = users_by_header
        self.statements = Statements(shape)

    def rows(self, query: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        """The rows of a query of ours."""
        return asking(self.connection)(self.statements.render(query), {"schema": self.shape.schema, **parameters})

    def settings(self, *names: str) -> dict[str, str]:
        """Settings of the server as they hold for this user in this database."""
        return {str(name): str(value) for name, value in self.rows("doctor_settings", names=list(names))}

    @property
    def overview(self) -> Overview:
        """How the outbox is doing."""
        if isinstance(self._overview, Exception):
            raise self._overview
        return self._overview

    @cached_property
    def _overview(self) -> Overview | AftercommitError | psycopg.Error:
        # What kept us from looking is remembered too: the next check would only wait for the same lock again.
        try:
            return overview(self.connection, self.shape)
        except (AftercommitError, psycopg.Error) as error:
            return error

    def problems(self, about: Subject, consumer: str | None = None) -> Iterator[CheckProblem]:
        """What is beyond a limit, in the words of `status`; where it is that of a consumer, of this one."""
        for each in self.beyond_limits:
            if (each.about, each.consumer) == (about, consumer):
                yield problem(each.found, each.remedy)

    @cached_property
    def beyond_limits(self) -> list[HealthProblem]:
        """Everything about which `status` would call for a person."""
        return problems(self.overview, self.limits)

    @cached_property
    def user(self) -> str:
        """Who we are to the database."""
        _number, _version, _in_recovery, user, _database = self.rows("doctor_server")[0]
        return str(user)


@dataclass(frozen=True, slots=True)
class Check:
    """A named look; `fine` is what it says when it finds nothing."""

    name: str
    fine: str
    look: Callable[[CheckContext], Iterator[CheckProblem]]
