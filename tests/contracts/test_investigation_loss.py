"""Nothing lost and nothing twice: writers commit out of order, servers are killed, connections are cut at every event.

Pollers and streams of different page sizes and filters read one investigation to its end. What they have seen is
compared with the log itself, line by line.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import Any, TypeGuard
from uuid import uuid4

import httpx
import psycopg
import pytest

from aftercommit.access.token_keys import TokenKeys
from aftercommit.access.tokens import mint
from aftercommit.client.sse_decoder import SseDecoder, SseMessage, SsePlace
from aftercommit.testing.postgres import PostgresServerForTests
from systems.investigations.events import LEVELS, SOURCES, LogRecorded, outbox
from tests.support.investigations import KEY_SET, PATIENCE, ROOT, eventually, prepare, serving
from tests.support.programs import REPOSITORY, running, server_processes

pytestmark = [pytest.mark.contract("L3", "L5", "L6", "L11"), pytest.mark.newest]

BEGINNING = "1970-01-01T00:00:00.000Z#000"
END = "the end"
LONGEST = 3 * PATIENCE
Line = tuple[int, str]


class Fleet:
    """The server processes of the moment. Where they are is asked anew each time: they come and go."""

    def __init__(self, dsn: str) -> None:
        """None yet."""
        self.dsn = dsn
        self.url = ""
        self._serving = serving(dsn)

    def start(self) -> None:
        """Two processes behind one address, once they answer."""
        self._serving = serving(self.dsn)
        self._server, self.url = self._serving.__enter__()

    def kill_one(self) -> None:
        """One process dies as it stands; its sibling goes on, and it is replaced."""
        os.kill(eventually(lambda: server_processes(self._server.process.pid) or None)[0], signal.SIGKILL)

    def kill(self) -> None:
        """All of them die as they stand."""
        children = server_processes(self._server.process.pid)
        for process in (self._server.process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._serving.__exit__(None, None, None)

    def stop(self) -> None:
        """End them."""
        self._serving.__exit__(None, None, None)


class Readers:
    """Those who read one investigation to its end, each in a thread, and what each of them has seen."""

    def __init__(self, fleet: Fleet, case: str) -> None:
        """Nobody reads yet."""
        self._fleet, self._case = fleet, case
        self._deadline = time.monotonic() + LONGEST

    def poll(self, limit: int, filters: dict[str, str], waits: bool) -> list[Line]:
        """Page by page with the tag of whatever came last, on a new connection each time."""
        seen: list[Line] = []
        cursor, tag = BEGINNING, ""
        while not is_over(seen):
            answer = self._ask({"afterCursor": cursor, "limit": str(limit), **filters}, tag, waits)
            if answer is None or answer.status_code == 304:
                continue
            assert answer.status_code == 200, answer.text
            tag = answer.headers["ETag"]
            seen += [(log["seq"], log["message"]) for log in answer.json()["logs"]]
            cursor = answer.json()["pagination"]["nextCursor"] or cursor
        return seen

    def follow(self, cut_after: int, filters: dict[str, str]) -> list[Line]:
        """By streams that are cut after so many events; each goes on from the last id, of an event or a place."""
        seen: list[Line] = []
        cursor = BEGINNING
        while not is_over(seen):
            assert time.monotonic() < self._deadline, f"{filters}: {len(seen)} lines so far, from {cursor}"
            with suppress(httpx.TransportError), self._stream(cursor, filters) as told:
                for each in islice(told, cut_after):
                    cursor = each.id
                    if isinstance(each, SseMessage):
                        log = json.loads(each.data)
                        seen.append((log["seq"], log["message"]))
                        if is_over(seen):
                            break
        return seen

    def _headers(self) -> dict[str, str]:
        # Everybody is somebody new each time: the limits per user are another test's.
        return bearer(f"investigation:{self._case}:read")

    def _ask(self, parameters: dict[str, str], tag: str, waits: bool) -> httpx.Response | None:
        assert time.monotonic() < self._deadline, parameters
        headers = {**self._headers(), "If-None-Match": tag, **({"Prefer": "wait=5"} if waits else {})}
        try:
            answer = httpx.get(
                f"{self._fleet.url}{ROOT}/{self._case}/logs", params=parameters, headers=headers, timeout=PATIENCE
            )
        except httpx.TransportError:
            answer = None
        if answer is None or answer.status_code in (429, 503):
            time.sleep(0.2)
            return None
        if not waits:
            time.sleep(0.3)
        return answer

    @contextmanager
    def _stream(self, cursor: str, filters: dict[str, str]) -> Iterator[Iterator[SseMessage | SsePlace]]:
        headers = {**self._headers(), "Last-Event-ID": cursor}
        url = f"{self._fleet.url}{ROOT}/{self._case}/logs/stream"
        with httpx.stream("GET", url, headers=headers, params=filters, timeout=PATIENCE) as answer:
            if answer.status_code in (429, 503):
                time.sleep(0.2)
                yield iter(())
                return
            assert answer.status_code == 200, answer.read()
            decoder = SseDecoder()
            parts = (each for piece in answer.iter_bytes() for each in decoder.decode(piece))
            yield (each for each in parts if isinstance(each, SsePlace) or is_line(each))


def is_line(told: object) -> TypeGuard[SseMessage]:
    """What a server says when it goes is none."""
    return isinstance(told, SseMessage) and told.event == "log"


def bearer(*permissions: str) -> dict[str, str]:
    """Somebody new with these permissions."""
    token = mint(TokenKeys.from_text(KEY_SET), f"reader-{uuid4()}", permissions, timedelta(hours=1))
    return {"Authorization": f"Bearer {token}"}


def is_over(seen: list[Line]) -> bool:
    return bool(seen) and seen[-1][1] == END


def write(dsn: str, case: str, transactions: int, seed: int) -> None:
    """Several transactions at once, committed in another order than they wrote; some are undone."""
    chance, begun = random.Random(seed), 0
    open_ones: list[psycopg.Connection[Any]] = []
    while begun < transactions or open_ones:
        if begun < transactions and len(open_ones) < 5 and chance.random() < 0.6:
            begun += 1
            connection: psycopg.Connection[Any] = psycopg.connect(dsn)
            for number in range(chance.randint(1, 3)):
                level, source = chance.choice(LEVELS), chance.choice(SOURCES)
                line = LogRecorded(case, uuid4(), source, "shop", level, f"{seed} {begun} {number}")
                outbox.publish(connection, line)
            open_ones.append(connection)
        elif open_ones:
            with open_ones.pop(chance.randrange(len(open_ones))) as connection:
                if chance.random() < 0.1:
                    connection.rollback()


def truth(dsn: str, case: str) -> list[tuple[int, str, str, str]]:
    """What the log has: number, text, level and source of every line."""
    query = """
        select stream_seq, payload->>'message', payload->>'level', payload->>'source'
        from investigation_events.log where aggregate_id = %s and event_type = 'log.recorded' order by position
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query, (case,)).fetchall()


# What is asked for, and which lines that is.
FILTERS: list[tuple[dict[str, str], Callable[[str, str], bool]]] = [
    ({}, lambda level, source: True),
    ({"minLevel": "WARN"}, lambda level, source: level in ("WARN", "ERROR")),
    ({"source": "frontend"}, lambda level, source: source == "frontend"),
    ({"minLevel": "ERROR", "source": "frontend"}, lambda level, source: (level, source) == ("ERROR", "frontend")),
]


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_repeated_while_writers_commit_out_of_order_and_servers_are_killed(
    postgres_server: PostgresServerForTests,
) -> None:
    dsn = postgres_server.clone(postgres_server.template("investigations", prepare))
    told = {"DATABASE_URL": dsn, "AFTERCOMMIT_APP": "systems.investigations:outbox"}
    fleet = Fleet(dsn)
    try:
        with running("relay", folder=REPOSITORY, **told):
            fleet.start()
            opened = httpx.post(
                f"{fleet.url}{ROOT}", json={"title": "x"}, headers=bearer("investigation:create"), timeout=PATIENCE
            )
            case = opened.json()["investigation_id"]
            with ThreadPoolExecutor(12) as pool:
                reading = begin_to_read(pool, Readers(fleet, case))
                for seed, disaster in enumerate((fleet.kill_one, fleet.kill, fleet.kill)):
                    go_through(pool, fleet, case, disaster, seed)
                with psycopg.connect(dsn) as connection:
                    outbox.publish(connection, LogRecorded(case, uuid4(), "frontend", "shop", "ERROR", END))
                found = [(kind, wanted, reader.result(LONGEST)) for kind, wanted, reader in reading]
            log = truth(dsn, case)
    finally:
        fleet.stop()
        postgres_server.drop(dsn)
    assert [number for number, *_ in log] == list(range(1, len(log) + 1))
    for kind, wanted, seen in found:
        assert seen == [(number, text) for number, text, level, source in log if wanted(level, source)], kind


Reading = tuple[str, Callable[[str, str], bool], "Future[list[Line]]"]


def begin_to_read(pool: ThreadPoolExecutor, readers: Readers) -> list[Reading]:
    """Pollers with small and large pages, waiting and not; streams that are cut at every event, or seldom."""
    everything, warnings, frontend, rare = FILTERS
    polls = [(10, everything, True), (37, warnings, True), (1000, frontend, False), (10, rare, True)]
    streams = [(1, everything), (1, rare), (3, warnings), (1000, frontend)]
    return [
        (f"poll {limit} {asked}", wanted, pool.submit(readers.poll, limit, asked, waits))
        for limit, (asked, wanted), waits in polls
    ] + [
        (f"stream cut after {cut} {asked}", wanted, pool.submit(readers.follow, cut, asked))
        for cut, (asked, wanted) in streams
    ]


def go_through(pool: ThreadPoolExecutor, fleet: Fleet, case: str, disaster: Callable[[], None], seed: int) -> None:
    """Lines are written, and in the midst of them something dies. Those who write do not stop for it."""
    before = len(truth(fleet.dsn, case))
    writers = [pool.submit(write, fleet.dsn, case, 12, 10 * seed + own) for own in range(2)]
    eventually(lambda: len(truth(fleet.dsn, case)) > before + 5 or None, timeout=LONGEST)
    disaster()
    for writer in writers:
        writer.result(LONGEST)
    if disaster == fleet.kill:
        fleet.start()
