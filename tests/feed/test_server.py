"""The server around the feeds: clients that dawdle or send too much, several processes, and the end of one."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aftercommit.errors import BadParameter
from aftercommit.feed import LogEvent
from aftercommit.feed.app.service import service
from aftercommit.server.http_server import AddressTaken, HttpServer, listen
from aftercommit.server.protocol import Guards
from tests.feed.journal import Followed, Journal, LineWritten, journal_feed, numbered, until
from tests.feed.servers import SECONDS, all_workers, client, connected, program, rest_of, workers_of
from tests.support.programs import REPOSITORY


async def test_headers_that_come_too_slowly_are_cut_off(journal: Journal):
    async with journal.served(guards=Guards(header_seconds=0.3)) as reading, connected(reading) as (reader, writer):
        writer.write(b"GET /books/b-1/lines HTTP/1.1\r\nHost: x\r\n")
        answer = asyncio.create_task(rest_of(reader))
        # A byte now and then, which a timeout for idleness would not see.
        while not answer.done():
            writer.write(b"X")
            await asyncio.sleep(0.05)
        assert (await answer).startswith(b"HTTP/1.1 408 ")
        assert b'"error":"request_timeout"' in answer.result()


async def test_a_connection_that_says_nothing_is_dropped(journal: Journal):
    async with journal.served(guards=Guards(header_seconds=0.3)) as reading, connected(reading) as (reader, _):
        assert await rest_of(reader) == b""


async def test_a_second_request_on_a_connection_is_timed_too(journal: Journal):
    for seconds in (0.3, 3.0, 30.0):
        guards = Guards(header_seconds=seconds)
        async with journal.served(guards=guards) as reading, connected(reading) as (reader, writer):
            writer.write(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                first = await asyncio.wait_for(reader.readuntil(b'address"}'), SECONDS)
            except asyncio.IncompleteReadError:
                # The first one was too slow already.
                continue
            assert b"404" in first
            writer.write(b"GET /nowhere HTTP/1.1\r\nHost:")
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 408 ")
            return
    raise AssertionError("nothing was answered in time")


async def test_who_reads_with_a_slash_too_many_is_sent_to_the_address_without_it_and_to_no_other_host(journal: Journal):
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    app = journal.app()
    own = [Route("/echo", echo, methods=["POST"]), Route("/ä b/{name}", echo)]
    async with journal.served(app, service(app, own)) as reading:
        for method in ("GET", "HEAD"):
            for asked, meant in (
                ("/docs/", "/docs"),
                ("/healthz/", "/healthz"),
                ("/metrics///", "/metrics"),
                ("/books/b-1/lines/?limit=2&x=%2F", "/books/b-1/lines?limit=2&x=%2F"),
                ("/%C3%A4%20b/%5Cexample.org/", "/%C3%A4%20b/%5Cexample.org"),
            ):
                answer = await reading.client.request(method, asked, headers={"Host": "example.org"})
                assert (answer.status_code, answer.headers["location"]) == (308, meant)
        for method, asked in (
            ("GET", "/nowhere/"),
            ("GET", "//"),
            ("GET", "//docs/"),
            ("GET", "/echo/"),
            ("POST", "/docs/"),
            ("POST", "/echo/"),
        ):
            refused = await reading.client.request(method, f"{reading.server.url}{asked}")
            assert (refused.status_code, refused.json()["error"]) == (404, "not_found"), (method, asked)


async def test_headers_without_end_are_431(journal: Journal):
    async with journal.served(guards=Guards(header_bytes=4096)) as reading:
        async with connected(reading) as (reader, writer):
            writer.write(b"GET /books/b-1/lines HTTP/1.1\r\nX-Much: " + b"x" * 10_000)
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 431 ")
        answer = await reading.poll(headers={"X-Much": "x" * 10_000})
        assert (answer.status_code, answer.json()["error"]) == (431, "headers_too_large")


async def test_a_body_that_does_not_come_is_not_waited_for(journal: Journal):
    async with journal.served(guards=Guards(body_seconds=0.3)) as reading, connected(reading) as (reader, writer):
        bearer = journal.bearer()["Authorization"]
        writer.write(
            f"GET /books/b-1/lines/stream HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\n"
            "Content-Length: 100\r\n\r\nx".encode()
        )
        await rest_of(reader)
        await until(lambda: len(reading.app.streams) == 0)


async def test_a_body_above_the_limit_is_413(journal: Journal):
    app = journal.app()
    async with journal.served(app, service(app, most_body=1000)) as reading:
        announced = await reading.client.request("GET", "/books/b-1/lines", content=b"x" * 2000)
        assert (announced.status_code, announced.json()["error"]) == (413, "payload_too_large")

        async def pieces():
            for _ in range(10):
                yield b"x" * 500

        # Nothing is read of a body that nobody asked for, so the answer does not depend on it.
        assert (await reading.client.request("GET", "/books/b-1/lines", content=pieces())).status_code in (200, 413)


async def test_beyond_the_connections_that_a_process_may_have_it_is_503(journal: Journal):
    async with journal.served(guards=Guards(connections=2)) as reading:
        async with connected(reading), connected(reading):
            answer = await reading.poll()
            assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0

        async def is_served() -> bool:
            return (await reading.poll()).status_code == 200

        await until(is_served)


async def test_a_request_in_pieces_is_read_like_any_other(journal: Journal):
    async with journal.served() as reading, connected(reading) as (reader, writer):
        for byte in b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 404 ")


def test_an_address_that_is_taken_is_named():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressTaken, match=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port)


async def test_health_readiness_and_figures(journal: Journal):
    def unmade(event: LogEvent[LineWritten]) -> dict[str, str]:
        raise RuntimeError(event.payload.text)

    app = journal.app(feed=journal_feed(journal.outbox, item=unmade))
    await journal.write(*numbered(3))
    async with journal.served(app, service(app, metrics=lambda: "mine 1\n")) as reading:
        assert (await reading.client.get("/healthz")).json() == {"status": "ok"}

        async def is_ready() -> bool:
            return (await reading.client.get("/readyz")).status_code == 200

        await until(is_ready)
        async with reading.stream() as stream:
            await stream.block()
            figures = (await reading.client.get("/metrics")).text
            assert "feed_streams_open 1\n" in figures
            assert 'feed_items_withheld_total{feed="lines"} 3\n' in figures
            assert "mine 1\n" in figures
        # A counter that is rounded stands still, and leaps.
        app.streams.opened = 123_456_789
        assert "feed_streams_opened_total 123456789\n" in (await reading.client.get("/metrics")).text
        app.drain()
        draining = await reading.client.get("/readyz")
        assert (draining.status_code, draining.json()["error"]) == (503, "unavailable")
        assert (await reading.client.get("/healthz")).status_code == 200


async def test_what_starlette_refuses_has_the_same_body(journal: Journal):
    async def broken(request: Request) -> Response:
        raise RuntimeError("the password is hunter2")

    async def picky(request: Request) -> Response:
        raise BadParameter("page", "last", "must be a number")

    app = journal.app()
    async with journal.served(app, service(app, [Route("/broken", broken), Route("/picky", picky)])) as reading:
        for path, method, status, code in (
            ("/nowhere", "GET", 404, "not_found"),
            ("/books/b-1/lines/", "POST", 404, "not_found"),
            ("/books/b-1/lines", "POST", 405, "method_not_allowed"),
            ("/broken", "POST", 405, "method_not_allowed"),
            ("/broken", "GET", 500, "internal_error"),
        ):
            answer = await reading.client.request(method, path)
            assert (answer.status_code, answer.json()["error"]) == (status, code), path
            assert "hunter2" not in answer.text
        refused = await reading.client.get("/picky")
        assert (refused.status_code, refused.json()) == (
            400,
            {"error": "bad_request", "message": "page='last': must be a number"},
        )


@pytest.mark.contract("L11")
async def test_sigterm_drains_although_streams_are_open(journal: Journal):
    with program(journal, workers=1) as (process, url):
        async with client(journal, url) as reader, reader.stream("GET", "/books/b-1/lines/stream") as answer:
            stream = Followed(answer)
            await stream.block()
            process.send_signal(signal.SIGTERM)
            assert (await stream.named("bye"))["item"]["reason"] == "shutdown"
            assert await stream.block() is None
        assert await asyncio.to_thread(process.wait, SECONDS) == 0


STOPPED_AT_ONCE = """
import os, signal, sys
from aftercommit.server.http_server import serve
def stop(url): os.kill(os.getpid(), signal.SIGTERM)
workers, options = int(sys.argv[1]), {"factory": True}
serve("starlette.applications:Starlette", port=0, workers=workers, options=options, on_listening=stop)
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_that_comes_while_the_server_starts_ends_it(workers: str):
    ended = subprocess.run([sys.executable, "-c", STOPPED_AT_ONCE, workers], timeout=SECONDS, cwd=REPOSITORY)
    assert ended.returncode == 0


@pytest.mark.thorough
@pytest.mark.contract("L11")
async def test_the_end_of_one_process_loses_no_reader(journal: Journal):
    """Readers of two processes; the one that serves them is killed again and again, and lines go on coming."""
    with program(journal, workers=1) as (first, one), program(journal, workers=1) as (second, other):
        async with client(journal, one) as at_one, client(journal, other) as at_other:
            servers, seen, last = [at_one, at_other], [], "1970-01-01T00:00:00.000Z#000"
            await journal.write(*numbered(20))
            for reader in servers:
                async with reader.stream("GET", "/books/b-1/lines/stream", headers={"Last-Event-ID": last}) as answer:
                    stream = Followed(answer)
                    for event in await stream.events(10):
                        seen.append(event["item"]["text"])
                        last = event["id"]
                    if reader is at_one:
                        first.kill()
            assert seen == list(numbered(20))
        second.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(second.wait, SECONDS) == 0


@pytest.mark.thorough
async def test_several_workers_share_an_address_and_stop_together(journal: Journal):
    await journal.write(*numbered(3))
    with program(journal, workers=2) as (process, url):
        async with client(journal, url) as reader:
            answers = await asyncio.gather(*(reader.get("/books/b-1/lines") for _ in range(20)))
            assert {len(answer.json()["lines"]) for answer in answers} == {3}
            async with reader.stream("GET", "/books/b-1/lines/stream") as answer:
                stream = Followed(answer)
                assert await stream.texts(3) == list(numbered(3))
                process.send_signal(signal.SIGTERM)
                assert (await stream.named("bye"))["item"]["reason"] == "shutdown"
        assert await asyncio.to_thread(process.wait, SECONDS) == 0


@pytest.mark.thorough
async def test_the_figures_are_those_of_all_workers(journal: Journal):
    with program(journal, workers=2) as (_, url):
        async with client(journal, url) as reader:
            told: list[str] = []

            async def both_tell() -> bool:
                told.append((await reader.get("/metrics")).text)
                return len(re.findall(r"^feed_worker_answers\{.*\} 1$", told[-1], re.MULTILINE)) == 2

            await until(both_tell)
            # More than one connection, so that more than one process has something to count.
            for _ in range(20):
                async with client(journal, url) as another:
                    assert (await another.get("/books/b-1/lines")).status_code == 200
            await until(both_tell)
            pages = re.findall(r"^feed_pages_total\{worker=.*\} (\d+)$", told[-1], re.MULTILINE)
            assert sum(map(int, pages)) == 20


@pytest.mark.thorough
async def test_a_worker_that_is_killed_is_replaced(journal: Journal):
    with program(journal, workers=2) as (process, url):
        async with client(journal, url) as reader:
            assert (await reader.get("/healthz")).status_code == 200
        before = await all_workers(process)
        os.kill(min(before), signal.SIGKILL)

        async def is_replaced() -> bool:
            return len(workers_of(process) - {min(before)}) == 2

        await until(is_replaced, timeout=60)
        async with client(journal, url) as reader:
            assert (await reader.get("/healthz")).status_code == 200


@pytest.mark.thorough
async def test_workers_end_when_the_supervisor_is_killed(journal: Journal):
    """Otherwise they would hold the address, and nobody would be there to end them."""
    with program(journal, workers=2) as (process, url):
        async with client(journal, url) as reader:
            assert (await reader.get("/healthz")).status_code == 200
        workers = await all_workers(process)
        process.kill()
        await until(lambda: all(map(is_gone, workers)), timeout=60)


def is_gone(process: int) -> bool:
    """Whether it has ended, also if nobody has asked yet how."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() == b""
    except OSError:
        return True


@pytest.mark.thorough
@pytest.mark.contract("L11")
async def test_sighup_replaces_workers_while_readers_are_served(journal: Journal):
    await journal.write(*numbered(3))
    with program(journal, workers=2) as (process, url):
        async with client(journal, url) as reader:
            assert (await reader.get("/healthz")).status_code == 200
            before = await all_workers(process)
            process.send_signal(signal.SIGHUP)
            while not workers_of(process).isdisjoint(before):
                async with client(journal, url) as somebody:
                    assert len((await somebody.get("/books/b-1/lines")).json()["lines"]) == 3
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, SECONDS) == 0


async def test_sighup_ends_a_server_without_a_supervisor_in_order(journal: Journal):
    with program(journal, workers=1) as (process, url):
        async with client(journal, url) as reader:
            assert (await reader.get("/healthz")).status_code == 200
        process.send_signal(signal.SIGHUP)
        assert await asyncio.to_thread(process.wait, SECONDS) == 0


@pytest.mark.thorough
@pytest.mark.contract("L11")
async def test_a_stop_of_several_workers_is_bounded_also_for_readers_that_do_not_read(journal: Journal):
    """One worker is frozen altogether; the others have readers with full sockets."""
    await journal.write(*(f"{number} " + "x" * 8000 for number in range(600)))
    with program(journal, workers=2) as (process, url):
        async with client(journal, url) as reader:
            assert (await reader.get("/healthz")).status_code == 200
        address, bearer = urlsplit(url), journal.bearer()["Authorization"]
        writers = []
        for _ in range(8):
            _, writer = await asyncio.open_connection(address.hostname, address.port, limit=1024)
            writer.write(
                f"GET /books/b-1/lines/stream HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\n"
                "Last-Event-ID: 1970-01-01T00:00:00.000Z#000\r\n\r\n".encode()
            )
            writers.append(writer)
        os.kill(min(await all_workers(process)), signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        # Drain, the margin for what is no stream, and the supervisor's own patience; generous for a busy machine.
        assert await asyncio.to_thread(process.wait, 60) == 0
        for writer in writers:
            writer.close()


@pytest.mark.thorough
async def test_several_workers_whose_application_cannot_start_end_with_an_error(database: str):
    command = [sys.executable, "-c", BROKEN]
    ended = await asyncio.to_thread(
        subprocess.run, command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 1
    assert "the application could not start" in ended.stderr


BROKEN = """
import sys
from aftercommit.errors import AftercommitError
from aftercommit.server.http_server import serve

if __name__ == "__main__":
    try:
        serve("tests.feed.nothing_here:app", port=0, workers=2)
    except AftercommitError as problem:
        sys.exit(str(problem))
"""


async def test_an_application_that_cannot_start_says_so(journal: Journal):
    async def broken(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    server = HttpServer(broken)
    await server.start()
    with pytest.raises(Exception, match="could not start"):
        await server.wait()
