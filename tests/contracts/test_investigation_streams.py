"""Following logs by server-sent events from running server processes: resumed anywhere, without loss or duplicate."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from aftercommit.client.sse_decoder import SseDecoder, SseMessage, SsePlace, SseRetry
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.investigations import PATIENCE, ROOT, Service, eventually, line, service, some
from tests.support.programs import server_processes

pytestmark = [pytest.mark.contract("L11"), pytest.mark.newest]

BEGINNING = "1970-01-01T00:00:00.000Z#000"


class Away(Exception):
    """A server process that has just begun, and cannot answer yet."""


@contextmanager
def stream(
    investigations: Service, case: str, cursor: str | None = BEGINNING, **parameters: str
) -> Iterator[Iterator[SseMessage | SsePlace | SseRetry]]:
    """An open stream on a connection of its own, decoded."""
    headers = {"Authorization": f"Bearer {investigations.token(f'investigation:{case}:read')}"}
    if cursor is not None:
        headers["Last-Event-ID"] = cursor
    url = f"{investigations.url}{ROOT}/{case}/logs/stream"
    with httpx.stream("GET", url, headers=headers, params=parameters, timeout=PATIENCE) as answer:
        if answer.status_code == 503:
            raise Away(answer.read())
        assert answer.status_code == 200, answer.read()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        decoder = SseDecoder()
        yield (each for piece in answer.iter_bytes() for each in decoder.decode(piece))


def logs_of(told: Iterator[SseMessage | SsePlace | SseRetry]) -> Iterator[tuple[dict[str, Any], str]]:
    """The log events and their ids."""
    for each in told:
        if isinstance(each, SseMessage):
            assert each.event == "log", each
            yield json.loads(each.data), each.id


@pytest.mark.thorough
def test_history_and_news_come_as_log_events_with_their_cursor_as_id(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(5))
    with stream(investigations, case) as told:
        assert isinstance(next(told), SseRetry)
        found = logs_of(told)
        history = [next(found) for _ in range(5)]
        investigations.write(case, line("live"))
        live = next(found)
    assert [log["seq"] for log, _ in history] == [1, 2, 3, 4, 5]
    assert live[0]["message"] == "live"
    for log, cursor in (*history, live):
        assert cursor == f"{log['ts']}#{log['seq']:03d}"
    assert {log["event_id"] for log, _ in history} == {
        log["event_id"] for log in investigations.logs(case).json()["logs"][:5]
    }


@pytest.mark.thorough
def test_the_same_filters_hold_and_the_place_moves_on_past_what_they_hide(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(20), line("bad", level="ERROR"), *some(20))
    with stream(investigations, case, minLevel="ERROR") as told:
        log, _ = next(logs_of(told))
        assert log["message"] == "bad"
        place = next(each for each in told if isinstance(each, SsePlace))
    assert place.id.endswith("#041")
    with stream(investigations, case, place.id, minLevel="ERROR") as told:
        investigations.write(case, line("worse", level="ERROR"))
        assert next(logs_of(told))[0]["message"] == "worse"


@pytest.mark.parametrize(
    "text",
    [
        "a\rb",
        "a\nb",
        "a\r\n\r\nb",
        "\n\ndata: forged\nid: 9\nevent: log\n\n",
        "a\u2028b\u2029c\u0085d",
        "\ufeff: x",
        "\x0b\x0c",
    ],
    ids=ascii,
)
def test_no_character_of_a_line_breaks_out_of_its_event(investigations: Service, text: str) -> None:
    case = investigations.open()
    investigations.write(case, line(text, context={text: text}), line("behind"))
    with stream(investigations, case) as told:
        (first, _), (second, cursor) = islice(logs_of(told), 2)
    assert (first["message"], first["context"]) == (text, {text: text})
    assert (second["message"], second["seq"], cursor[-4:]) == ("behind", 2, "#002")
    refused = investigations.client().post(f"{ROOT}/{case}/logs", json=line(f"{text}\0"))
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_request")


def test_last_event_id_goes_before_the_parameter(investigations: Service) -> None:
    case = investigations.open()
    investigations.write(case, *some(6))
    cursors = {log["seq"]: f"{log['ts']}#{log['seq']:03d}" for log in investigations.logs(case).json()["logs"]}
    with stream(investigations, case, cursors[4], afterCursor=cursors[1]) as told:
        assert next(logs_of(told))[0]["seq"] == 5
    with stream(investigations, case, None, afterCursor=cursors[2]) as told:
        assert next(logs_of(told))[0]["seq"] == 3


def test_a_reader_that_is_cut_off_at_every_event_misses_and_repeats_nothing(investigations: Service) -> None:
    case, total = investigations.open(), 40
    lines = some(total)

    def produce(part: list[dict[str, Any]]) -> None:
        producer = investigations.client()
        for each in part:
            assert producer.post(f"{ROOT}/{case}/logs", json=each).status_code == 201

    def follow(cut_after: int) -> list[int]:
        seen: list[int] = []
        cursor = BEGINNING
        while len(seen) < total:
            with stream(investigations, case, cursor) as told:
                for log, place in islice(logs_of(told), min(cut_after, total - len(seen))):
                    seen.append(log["seq"])
                    cursor = place
        return seen

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(follow, cut_after) for cut_after in (1, 2, 7)]
        for writer in [pool.submit(produce, lines[start::3]) for start in range(3)]:
            writer.result()
        for reader in readers:
            assert reader.result(2 * PATIENCE) == list(range(1, total + 1))


@pytest.mark.thorough
def test_a_reader_that_does_not_read_is_cut_off(investigations: Service) -> None:
    case = investigations.open()
    for _ in range(2):
        investigations.write(case, *(line("x" * 8000) for _ in range(900)))
    where = urlsplit(investigations.url)
    token = investigations.token(f"investigation:{case}:read")
    with socket.create_connection((where.hostname, where.port), PATIENCE) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET {ROOT}/{case}/logs/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        reader.sendall(f"{request}Last-Event-ID: {BEGINNING}\r\n\r\n".encode())

        def was_cut() -> bool | None:
            with suppress(ConnectionError):
                # Nothing is read: what shows the cut is that writing to the other end fails.
                reader.sendall(b"x")
                return None
            return True

        assert eventually(was_cut)


@pytest.mark.thorough
@pytest.mark.contract("L3")
def test_readers_go_on_when_server_processes_are_killed(postgres_server: PostgresServerForTests) -> None:
    with service(postgres_server) as investigations:
        case, total = investigations.open(), 90
        lines = some(total)

        def produce() -> None:
            for each in lines:
                eventually(lambda log=each: stored(investigations, case, log))  # type: ignore[misc]

        def follow() -> list[int]:
            seen: list[int] = []
            cursor = BEGINNING
            while len(seen) < total:
                with suppress(httpx.TransportError, Away), stream(investigations, case, cursor) as told:
                    for log, place in islice(logs_of(told), total - len(seen)):
                        seen.append(log["seq"])
                        cursor = place
            return seen

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(follow) for _ in range(2)]
            writer = pool.submit(produce)
            for round_number in range(2):
                eventually(lambda at=30 * (round_number + 1): count_of(investigations, case) >= at or None)  # type: ignore[misc]
                for child in server_processes(investigations.server.process.pid)[:1]:
                    os.kill(child, signal.SIGKILL)
            writer.result(2 * PATIENCE)
            for reader in readers:
                assert reader.result(PATIENCE) == list(range(1, total + 1))


def stored(investigations: Service, case: str, log: dict[str, Any]) -> bool | None:
    """Whether the line was taken; a producer that gets no answer sends the same again."""
    try:
        answer = investigations.client().post(f"{ROOT}/{case}/logs", json=log)
    except httpx.TransportError:
        return None
    return answer.status_code in (200, 201) or None


def count_of(investigations: Service, case: str) -> int:
    query = "select count(*) from investigations.stored_log where investigation_id = %s"
    return int(investigations.rows(query, case)[0][0])


@pytest.mark.thorough
def test_a_stream_says_goodbye_when_the_server_stops_and_the_server_ends_in_time(
    postgres_server: PostgresServerForTests,
) -> None:
    with service(postgres_server) as investigations:
        case = investigations.open()
        investigations.write(case, line("one"))
        with stream(investigations, case) as told:
            assert next(logs_of(told))[0]["message"] == "one"
            investigations.server.send(signal.SIGTERM)
            goodbye = [each for each in told if isinstance(each, SseMessage)]
        assert [each.event for each in goodbye] == ["bye"]
        assert investigations.server.ends() == 0, investigations.server
