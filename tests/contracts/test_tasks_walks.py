"""Ten people read what they hear of while others work: everybody's walk is complete, in order, without repetition, and
has nothing in it of tasks that are none of their business. Meanwhile transactions commit out of order, relays and
servers are killed, and one loses a role.

Everything that anybody is answered is kept, byte by byte, and searched for what they may not see.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from threading import Event

import httpx
import pytest

from aftercommit.client.sse_decoder import SseDecoder, SseMessage
from aftercommit.testing.postgres import PostgresServerForTests
from tests.contracts.test_investigation_loss import Fleet
from tests.support.investigations import PATIENCE, TLS, eventually
from tests.support.office import (
    CANARY,
    EVERYBODY,
    OUTSIDER,
    TEAMS,
    USERS,
    Told,
    Worker,
    canaries,
    people,
    truth,
    work_over_http,
)
from tests.support.programs import Program
from tests.support.tasks import ADA, EVENTS, ROOT, Service, prepared, relaying, signed

# Servers and relays begin several times in it, beside twenty threads.
pytestmark = [pytest.mark.contract("T3", "T4", "T5"), pytest.mark.newest, pytest.mark.timeout(400)]

END = "the end of the day"
LONGEST = 3 * PATIENCE
Seen = list[tuple[int, str, int]]
SIZES = dict(zip(USERS, (1, 2, 3, 5, 7, 10, 25, 50, 100, 1000), strict=True))


class Readers:
    """Those who read, each in a thread: what each has seen in order, and every byte that each was sent."""

    def __init__(self, fleet: Fleet, credential: str) -> None:
        self._fleet, self._credential = fleet, credential
        self._deadline = time.monotonic() + LONGEST
        # One for all, because making one costs more than asking; a connection is made for each request.
        self._client = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), timeout=PATIENCE, verify=TLS)
        self.received: dict[int, list[bytes]] = defaultdict(list)

    def close(self) -> None:
        """When nobody reads any more."""
        self._client.close()

    def headers(self, user: int) -> dict[str, str]:
        """Every second one asks through a program that asks for others too, the rest by a token of their own."""
        if user % 2:
            return {"Authorization": f"Bearer {signed(user)}"}
        return {"Authorization": f"Bearer {self._credential}", "X-User-Id": str(user)}

    def read(self, user: int) -> Seen:
        """To the end of the day: by streams, by polls that wait, or by polls with a tag."""
        if user % 3 == 0:
            return self._follow(user, cut_after=SIZES[user])
        return self._poll(user, waits=user % 3 == 1)

    def look_around(self, user: int, done: Event) -> None:
        """At every other address, again and again."""
        while not done.is_set():
            self._get(user, f"{ROOT}?limit=200")
            self._get(user, f"{ROOT}?limit=200&state=reported")
            for path in (
                f"{ROOT}/me",
                f"{ROOT}/users",
                f"{ROOT}/roles",
                f"{ROOT}/machine",
                "/metrics",
                "/openapi.json",
            ):
                self._get(user, path)
            for number in (1, 2, 3, *range(10, 200, 21)):
                self._get(user, f"{ROOT}/{number}")
                self._get(user, f"{ROOT}/{number}/history")
                self._get(user, f"{EVENTS}?before_id={number}")
            self._get(user, f"{EVENTS}?from_time=2020-01-01T00:00:00Z")
            # Others have their turn.
            done.wait(1.0)

    def _poll(self, user: int, *, waits: bool) -> Seen:
        seen: Seen = []
        tag = ""
        while not is_over(seen):
            assert time.monotonic() < self._deadline, f"user {user}: {len(seen)} so far"
            after = f"&after_id={seen[-1][0]}" if seen else ""
            more = {"If-None-Match": tag, **({"Prefer": "wait=3"} if waits else {})}
            answer = self._get(user, f"{EVENTS}?limit={SIZES[user]}{after}", more)
            if answer is None or answer.status_code == 304:
                # Nothing, or nobody there.
                time.sleep(0.1)
                continue
            assert answer.status_code == 200, answer.text
            tag = answer.headers["ETag"]
            seen += [item_of(item) for item in answer.json()]
        return seen

    def _follow(self, user: int, cut_after: int) -> Seen:
        seen: Seen = []
        while not is_over(seen):
            assert time.monotonic() < self._deadline, f"user {user}: {len(seen)} so far"
            with suppress(httpx.TransportError), self._stream(user, seen[-1][0] if seen else None) as told:
                for message in islice(told, cut_after):
                    seen.append(item_of(json.loads(message.data)))
                    if is_over(seen):
                        break
        return seen

    @contextmanager
    def _stream(self, user: int, place: int | None) -> Iterator[Iterator[SseMessage]]:
        headers = {**self.headers(user), **({"Last-Event-ID": str(place)} if place is not None else {})}
        url = f"{self._fleet.url}{EVENTS}/stream"
        with self._client.stream("GET", url, headers=headers) as answer:
            if answer.status_code == 503:
                time.sleep(0.1)
                yield iter(())
                return
            assert answer.status_code == 200, answer.read()
            decoder = SseDecoder()
            parts = (each for piece in self._kept(user, answer) for each in decoder.decode(piece))
            yield (each for each in parts if isinstance(each, SseMessage) and each.event == "task_event")

    def _kept(self, user: int, answer: httpx.Response) -> Iterator[bytes]:
        for piece in answer.iter_bytes():
            self.received[user].append(piece)
            yield piece

    def _get(self, user: int, path: str, more: dict[str, str] | None = None) -> httpx.Response | None:
        headers = {**self.headers(user), **(more or {})}
        try:
            answer = self._client.get(f"{self._fleet.url}{path}", headers=headers)
        except httpx.TransportError:
            return None
        self.received[user].append(answer.content + str(answer.headers).encode())
        return answer if answer.status_code != 503 else None


def item_of(item: dict[str, object]) -> tuple[int, str, int]:
    """Place, kind, task; the end has a kind of its own."""
    payload = item["payload"]
    assert isinstance(payload, dict)
    kind = END if payload["title"] == END else item["event_type"]
    return item["event_id"], str(kind), item["task_id"]  # type: ignore[return-value]


def is_over(seen: Seen) -> bool:
    return bool(seen) and seen[-1][1] == END


class Relays:
    """One relay, and then another when it was killed."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self._stack = dsn, ExitStack()
        self._current: Program | None = None

    def replace(self) -> None:
        """The one that works dies as it stands, and the next begins."""
        if self._current is not None:
            self._current.process.kill()
        self._current = self._stack.enter_context(relaying(self._dsn))

    def stop(self) -> None:
        self._stack.close()


@pytest.mark.thorough
def test_everybody_hears_of_everything_that_is_theirs_once_and_in_order_and_of_nothing_else(
    postgres_server: PostgresServerForTests,
):
    with prepared(postgres_server) as dsn, ExitStack() as stack:
        fleet, relays, tasks = Fleet(dsn), Relays(dsn), Service("", dsn)
        people(tasks)
        relays.replace()
        stack.callback(relays.stop)
        fleet.start()
        stack.callback(lambda: fleet.stop())
        stack.callback(tasks.close)
        tasks.url = fleet.url
        readers, done = Readers(fleet, tasks.credential()), Event()
        stack.callback(readers.close)
        pool = stack.enter_context(ThreadPoolExecutor(20))
        stack.callback(done.set)
        walks = {user: pool.submit(readers.read, user) for user in USERS}
        snoopers = [pool.submit(readers.look_around, user, done) for user in (OUTSIDER, 107)]
        dismissed = a_day(pool, tasks, fleet, relays)
        found = {user: walk.result(LONGEST) for user, walk in walks.items()}
        done.set()
        for snooper in snoopers:
            snooper.result(LONGEST)
        log = truth(tasks, dismissed)
        check_walks(found, log)
        check_canaries(tasks, readers, log)


def a_day(pool: ThreadPoolExecutor, tasks: Service, fleet: Fleet, relays: Relays) -> dict[tuple[int, int], int]:
    """Work, disasters, a dismissal, more work, and the end. Returns from where on who is dismissed."""
    go_through(pool, tasks, fleet, relays.replace, seed=1)
    go_through(pool, tasks, fleet, fleet.kill_one, seed=2)
    tasks.url = fleet.url
    boundary = tasks.settled()
    [team] = [team for team, members in TEAMS.items() if 105 in members]
    eventually(lambda: dismiss(tasks, team, 105))
    go_through(pool, tasks, fleet, fleet.kill, seed=3)
    tasks.url = fleet.url
    tasks.close()
    tasks.settled()
    eventually(lambda: finish(tasks))
    return {(team, 105): boundary}


def dismiss(tasks: Service, team: int, user: int) -> bool | None:
    """Somebody loses a role. A process that has just begun may not know yet whom to believe."""
    with suppress(httpx.TransportError):
        answer = tasks.as_user(ADA).delete(f"{ROOT}/roles/{team}/members/{user}")
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200 or None
    return None


def finish(tasks: Service) -> bool | None:
    """The last task, of which everybody hears."""
    with suppress(httpx.TransportError):
        return bool(tasks.create(ADA, END, supervisor_role_ids=[EVERYBODY]))
    return None


def go_through(pool: ThreadPoolExecutor, tasks: Service, fleet: Fleet, disaster: Callable[[], None], seed: int) -> None:
    """People work, and in the midst of it something dies. They do not stop for it."""
    before = position(tasks)
    workers: list[Future[None]] = [pool.submit(Worker(tasks.dsn, 10 * seed + own).work, 20) for own in range(4)]
    workers.append(pool.submit(work_over_http, lambda: fleet.url, seed, 10))
    eventually(lambda: position(tasks) > before + 10 or None, timeout=LONGEST)
    disaster()
    for worker in workers:
        worker.result(LONGEST)
    if disaster == fleet.kill:
        fleet.start()


def position(tasks: Service) -> int:
    with tasks.new_connection() as connection:
        return int(connection.execute("select position from tasks_events.head").fetchall()[0][0])


def check_walks(found: dict[int, Seen], log: list[Told]) -> None:
    """Everybody against the log, event by event."""
    assert len(log) > 100, "too little happened to show anything"
    assert len({len(seen) for seen in found.values()}) > 3, "everybody heard the same"
    for user, seen in found.items():
        expected = [told.position for told in log if user in told.hearers]
        assert [place for place, _, _ in seen] == expected, f"user {user}"


def check_canaries(tasks: Service, readers: Readers, log: list[Told]) -> None:
    """Nothing of a task in any byte for those who never heard of it."""
    assert set(readers.received) == {*USERS, OUTSIDER}
    for user, pieces in readers.received.items():
        theirs = canaries(tasks, {told.task_id for told in log if user in told.hearers})
        found = set(CANARY.findall(b"".join(pieces).decode("utf-8", "replace")))
        assert found <= theirs, f"user {user} was shown {len(found - theirs)} tasks of others"
        assert found or user == OUTSIDER
