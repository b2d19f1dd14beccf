"""The investigations system as its users meet it: a database, a relay, several server processes at one address."""

import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import psycopg

from aftercommit.access import service_tokens
from aftercommit.access.token_keys import TOKEN_KEYS_VARIABLE, TokenKeys
from aftercommit.access.tokens import mint
from aftercommit.testing.postgres import PostgresServerForTests
from systems.host.site import ANSWERS_WITHIN
from systems.site import SYSTEMS
from systems.tasks.system import tasks
from tests.support.programs import REPOSITORY, Program, running

Found = TypeVar("Found")
PATIENCE = 60.0
# Several interpreters begin at once, and there may be more of them than cores.
STARTING = 90.0
HOUR = timedelta(hours=1)
ROOT = "/api/v1/investigations"
WORKERS = 2
# Tests look at the figures to see what server processes know.
PRODUCTION, DEVELOPMENT = "--open-metrics", "--development"
SECRET = {"kid": "test", "kty": "oct", "alg": "HS256", "k": "dGVzdC1zZWNyZXQtdGVzdC1zZWNyZXQtdGVzdC1zZWNyZXQ"}
KEY_SET = json.dumps({"issuer": "tests", "audience": "aftercommit", "keys": [SECRET]})

# What is asked here is plain HTTP; by default httpx reads all certificate authorities there are for every client.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_numbers = count(1)


def prepare(dsn: str) -> None:
    """The tables of all systems: the site serves them together."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for system in SYSTEMS:
            system.outbox.migrate(connection)
            system.create_tables(connection)


def line(message: str = "hello", **fields: Any) -> dict[str, Any]:
    """A log as a producer writes it."""
    return {"source": "backend", "service": "shop", "level": "INFO", "message": message, **fields}


def cursor_parameter(cursor: str) -> str:
    """A cursor as it stands in a URL."""
    return quote(cursor, safe="")


def eventually(look: Callable[[], Found | None], timeout: float = PATIENCE) -> Found:
    """What the look finds, once it is there: for the work of other processes, which no signal tells."""
    deadline = time.monotonic() + timeout
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"{look} found nothing within {timeout} s"
        time.sleep(0.02)
    return found


@dataclass
class Service:
    """A running system. Every reader that it hands out is a user of their own: the limits count per user."""

    url: str
    dsn: str
    server: Program
    relay: Program
    clients: list[httpx.Client] = field(default_factory=list)

    def token(self, *permissions: str, user: str | None = None, lifetime: float = 3600.0) -> str:
        """A token with these permissions."""
        name = user or f"user-{next(_numbers)}"
        return mint(TokenKeys.from_text(KEY_SET), name, permissions, timedelta(seconds=lifetime))

    def client(self, *permissions: str, user: str | None = None) -> httpx.Client:
        """Somebody with these permissions; without any, with all that the system knows."""
        granted = permissions or ("investigation:create", "investigation:*:read", "investigation:*:write")
        return self.with_token(self.token(*granted, user=user))

    def with_token(self, token: str | None) -> httpx.Client:
        """Somebody who shows this token."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, verify=TLS)
        self.clients.append(client)
        return client

    def open(self, title: str = "a case") -> str:
        """A new investigation; its id."""
        answer = self.client().post(ROOT, json={"title": title})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["investigation_id"])

    def write(self, investigation: str, *logs: Mapping[str, Any]) -> None:
        """Store these lines, and wait until all server processes show them."""
        before = self.rows("select count(*) from investigations.stored_log where investigation_id = %s", investigation)
        for start in range(0, len(logs), 1000):
            answer = self.client().post(f"{ROOT}/{investigation}/logs", json=list(logs[start : start + 1000]))
            assert answer.status_code == 201, answer.text
        self.shows(investigation, before[0][0] + len(logs))

    def shows(self, investigation: str, total: int) -> None:
        """Until every server process shows so many lines."""
        count = "select count(*), max(position) from investigation_events.log where aggregate_id = %s"

        def look() -> bool | None:
            [(lines, position)] = eyes.execute(count, [investigation]).fetchall()
            if lines < total:
                return None
            read = figures_of(self.url, r'feed_position\{.*"investigation_events"\}')
            return True if len(read) == WORKERS and min(read) >= position else None

        with psycopg.connect(self.dsn, autocommit=True) as eyes:
            # Thousands of long lines are numbered, read and redacted in every process before this is so.
            eventually(look, timeout=2 * PATIENCE)

    def logs(self, investigation: str, **parameters: Any) -> httpx.Response:
        """A page, asked for by somebody new."""
        answer = self.client(f"investigation:{investigation}:read").get(
            f"{ROOT}/{investigation}/logs", params={name: str(value) for name, value in parameters.items()}
        )
        assert answer.status_code == 200, answer.text
        return answer

    def part(self) -> None:
        """Close what was opened for readers."""
        for client in self.clients:
            client.close()
        self.clients.clear()

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """A look into the tables."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()


def make_service_token(dsn: str) -> str:
    """A token that may name users of the tasks: without one, the site is not served outside development."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return service_tokens.create(connection, tasks.outbox.shape, "tests", ["act-as-user"]).token


@contextmanager
def serving(
    dsn: str, *, workers: int = WORKERS, host: str = "127.0.0.1", kind: str = PRODUCTION, **environment: str
) -> Iterator[tuple[Program, str]]:
    """Server processes on a database, and their address. Of the `kind` DEVELOPMENT they believe a header alone."""
    place = ("--host", host, "--port", "0", "--workers", str(workers))
    arguments = ("serve", "--app", "systems.site:application", kind, *place)
    if kind == PRODUCTION:
        make_service_token(dsn)
    told = {
        "DATABASE_URL": dsn,
        TOKEN_KEYS_VARIABLE: KEY_SET,
        "AFTERCOMMIT_LOG_FORMAT": "json",
        ANSWERS_WITHIN: "60",
        **environment,
    }
    with running(*arguments, folder=REPOSITORY, **told) as server:
        url = json.loads(server.line("server_listening", server.stderr))["url"]
        # All of them: who asks a process that has just begun may be sent away.
        eventually(lambda: figures_of(url, "feed_following.*") == [1] * workers or None, timeout=STARTING)
        yield server, url


def answers(url: str) -> bool | None:
    """Whether somebody answers there."""
    try:
        return httpx.get(f"{url}/readyz", timeout=5.0, verify=TLS).status_code == 200 or None
    except httpx.TransportError:
        return None


def figures_of(url: str, series: str) -> list[float]:
    """What the server processes that answer tell of the series of this pattern; nothing while nobody does."""
    try:
        page = httpx.get(f"{url}/metrics", timeout=PATIENCE, verify=TLS).text
    except httpx.TransportError:
        return []
    return [float(value) for value in re.findall(rf"^{series} (\S+)$", page, re.MULTILINE)]


def is_let_in_everywhere(url: str, path: str, headers: Mapping[str, str], workers: int) -> None:
    """Until every server process has given a page to who sends this: all of them have heard of what it takes.

    Which process answers nobody can choose, so it is asked until each has counted a page more than before.
    """
    before = eventually(lambda: pages_given(url, workers))

    def look() -> bool | None:
        httpx.get(f"{url}{path}", headers=headers, timeout=PATIENCE, verify=TLS)
        now = pages_given(url, workers) or {}
        return sum(pages > before.get(worker, 0) for worker, pages in now.items()) == workers or None

    eventually(look)


def pages_given(url: str, workers: int) -> dict[str, int] | None:
    """How many pages each server process has given; None while one of them does not tell."""
    page = httpx.get(f"{url}/metrics", timeout=PATIENCE, verify=TLS).text
    told = re.findall(r'^feed_following(?:{worker="(\w+)"})? 1$', page, re.MULTILINE)
    series = re.findall(r'^feed_pages_total{(?:worker="(\w+)",)?.*status="200"} (\d+)$', page, re.MULTILINE)
    given = {each: sum(int(pages) for worker, pages in series if worker == each) for each in told}
    return given if len(given) == workers else None


@contextmanager
def service(postgres: PostgresServerForTests) -> Iterator[Service]:
    """The whole system on a database of its own."""
    dsn = postgres.clone(postgres.template("investigations", prepare))
    try:
        told = {"DATABASE_URL": dsn, "AFTERCOMMIT_APP": "systems.investigations:outbox"}
        with running("relay", folder=REPOSITORY, **told) as relay, serving(dsn) as (server, url):
            found = Service(url, dsn, server, relay)
            try:
                yield found
            finally:
                found.part()
    finally:
        postgres.drop(dsn)


def some(count: int, message: str = "line", **fields: Any) -> list[dict[str, Any]]:
    """So many lines, each with a number."""
    return [line(f"{message} {number}", event_id=str(uuid4()), **fields) for number in range(count)]


def messages(answer: httpx.Response) -> Sequence[str]:
    """What the lines of a page say."""
    return [log["message"] for log in answer.json()["logs"]]
