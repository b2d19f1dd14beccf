"""The tasks system as its users meet it: a database with the sample people, a relay, server processes at one address.

with service(postgres) as tasks:
    task = tasks.create(ADA, "count the chairs", assignee_user_id=EDSGER, supervisor_role_ids=[LEADS])
    tasks.act(EDSGER, task["task_id"], "submit-report", report="eleven")
    tasks.events(ADA)
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import psycopg

from aftercommit.access import service_tokens
from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import mint
from aftercommit.testing.postgres import PostgresServerForTests
from systems.tasks import outbox
from systems.tasks.sample.sample_script import ADA, BARBARA, EDSGER, GRACE, MALLORY
from systems.tasks.service.people import add_people
from tests.support.investigations import (
    KEY_SET,
    PATIENCE,
    PRODUCTION,
    TLS,
    eventually,
    figures_of,
    is_let_in_everywhere,
    prepare,
    serving,
)
from tests.support.programs import REPOSITORY, Program, running

__all__ = ["ADA", "BARBARA", "EDSGER", "GRACE", "MALLORY", "Service", "prepare", "service"]

ROOT = "/tasks"
EVENTS = "/tasks/me/events"
ADMINISTRATORS, LEADS, ENGINEERS = 1, 2, 3
# Nobody that the system knows.
STRANGER = 77


def signed(user: int | str, **options: Any) -> str:
    """A JWT of this user, as the site believes it."""
    lifetime = timedelta(seconds=options.pop("lifetime", 3600.0))
    return mint(TokenKeys.from_text(KEY_SET), str(user), options.pop("permissions", ()), lifetime, **options)


@dataclass
class Service:
    """A running system. Requests are made by the user itself (a JWT), unless `credential` says otherwise."""

    url: str
    dsn: str
    server: Program | None = None
    relay: Program | None = None
    workers: int = 2
    clients: dict[int, httpx.Client] = field(default_factory=dict)
    _making: threading.Lock = field(default_factory=threading.Lock)
    _connection: psycopg.Connection[Any] | None = None

    @property
    def feed(self) -> str:
        """The address of the events."""
        return f"{self.url}{EVENTS}"

    def as_user(self, user: int) -> httpx.Client:
        """Somebody, by a token of their own. Threads that ask at once get the same client, so that all get closed."""
        with self._making:
            if user not in self.clients:
                self.clients[user] = self.client(Authorization=f"Bearer {signed(user)}")
            return self.clients[user]

    def client(self, **headers: str) -> httpx.Client:
        """Whoever sends these headers (`X_User_Id="1"`); close it."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Client(base_url=self.url, headers=named, timeout=PATIENCE, verify=TLS)

    def credential(self, name: str = "bot", *permissions: str) -> str:
        """A new service token, once every server process knows it."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            made = service_tokens.create(connection, outbox.shape, name, permissions or ("act-as-user",))
        if "act-as-user" in (permissions or ("act-as-user",)):
            headers = {"Authorization": f"Bearer {made.token}", "X-User-Id": str(ADA)}
            is_let_in_everywhere(self.url, EVENTS, headers, self.workers)
        return made.token

    def revoke(self, token: str) -> None:
        """End a service token; servers hear of it in a moment."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            service_tokens.revoke(connection, outbox.shape, service_tokens.id_of(token) or "")

    def trusts_neighbours(self) -> None:
        """Until no server process of a development server knows of a service token any more."""
        is_let_in_everywhere(self.url, EVENTS, {"X-User-Id": str(ADA)}, self.workers)

    def create(self, user: int, title: str = "a task", **fields: Any) -> dict[str, Any]:
        """A new task of this user."""
        answer = self.as_user(user).post(ROOT, json={"title": title, **fields})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def act(self, user: int, task_id: int, verb: str, **body: Any) -> dict[str, Any]:
        """Do something with a task that can be done: `act(3, 7, "submit-report", report="done")`."""
        answer = self.try_to(user, task_id, verb, **body)
        assert answer.status_code == 200, answer.text
        changed: dict[str, Any] = answer.json()
        return changed

    def try_to(self, user: int, task_id: int, verb: str, **body: Any) -> httpx.Response:
        """The answer to what somebody wants to do with a task."""
        return self.as_user(user).post(f"{ROOT}/{task_id}/{verb}", json=body)

    def page(self, user: int, **parameters: Any) -> list[dict[str, Any]]:
        """A page of what a user hears of."""
        answer = self.as_user(user).get(EVENTS, params=parameters)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    def walk(self, user: int, after_id: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """All that a user has heard of since, page by page."""
        seen: list[dict[str, Any]] = []
        while page := self.page(user, after_id=after_id, limit=limit):
            seen += page
            after_id = page[-1]["event_id"]
        return seen

    def hears(self, user: int, *types: str, task_id: int, after_id: int = 0) -> list[dict[str, Any]]:
        """The events of a task that a user hears of, once they are these."""

        def look() -> list[dict[str, Any]] | None:
            found = [event for event in self.walk(user, after_id) if event["task_id"] == task_id]
            return found if [event["event_type"] for event in found] == list(types) else None

        return eventually(look)

    def settled(self) -> int:
        """Until everything that was committed is in the log; the last position."""

        def look() -> int | None:
            [(waiting, position)] = self.rows(
                "select (select count(*) from tasks_events.outbox), (select position from tasks_events.head)"
            )
            return int(position) if waiting == 0 else None

        return eventually(look)

    def shown(self) -> int:
        """Until every server process shows everything that was committed; the last position."""
        position = self.settled()

        def look() -> bool | None:
            read = figures_of(self.url, r'feed_position\{.*"tasks_events"\}')
            return True if len(read) == self.workers and min(read) >= position else None

        eventually(look)
        return position

    def people(self, roles: dict[int, str], users: dict[int, tuple[str, Sequence[int]]]) -> None:
        """Further roles, and users with their roles."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            add_people(connection, roles, users)

    def connection(self) -> psycopg.Connection[Any]:
        """A connection that is kept: to look and to prepare."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.dsn, autocommit=True)
        return self._connection

    def new_connection(self) -> psycopg.Connection[Any]:
        """One of the caller's own, for another thread."""
        return psycopg.connect(self.dsn, autocommit=True)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """A look into the tables."""
        return self.connection().execute(query.encode(), parameters or None).fetchall()

    def close(self) -> None:
        """Close what was opened for users."""
        for client in self.clients.values():
            client.close()
        self.clients.clear()
        if self._connection is not None:
            self._connection.close()


@contextmanager
def relaying(dsn: str) -> Iterator[Program]:
    """A relay for the events of tasks."""
    told = {"DATABASE_URL": dsn, "AFTERCOMMIT_APP": "systems.tasks:outbox"}
    with running("relay", folder=REPOSITORY, **told) as relay:
        yield relay


@contextmanager
def prepared(postgres: PostgresServerForTests) -> Iterator[str]:
    """A database of one's own with the tables of all systems and the sample people."""
    dsn = postgres.clone(postgres.template("investigations", prepare))
    try:
        yield dsn
    finally:
        postgres.drop(dsn)


@contextmanager
def service(
    postgres: PostgresServerForTests, *, workers: int = 2, kind: str = PRODUCTION, **environment: str
) -> Iterator[Service]:
    """The whole system on a database of its own, without traffic. Of the `kind` DEVELOPMENT it believes a header."""
    with (
        prepared(postgres) as dsn,
        relaying(dsn) as relay,
        serving(dsn, workers=workers, kind=kind, **environment) as (server, url),
    ):
        found = Service(url, dsn, server, relay, workers)
        try:
            yield found
        finally:
            found.close()


def problem_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, which has the common body and nothing else."""
    told = json.loads(answer.text)
    assert set(told) <= {"error", "message", "details", "retry_after"}, told
    assert {"error", "message"} <= set(told), told
    return answer.status_code, told["error"]
