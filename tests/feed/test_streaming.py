"""Streams over HTTP: from a cursor to what is live, with filters, and every way in which they end."""

import asyncio
import json
import re
import socket
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import psycopg
import pytest

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.reader import Reader
from aftercommit.access.revocation import revoke
from aftercommit.access.tokens import TokenVerifier
from aftercommit.errors import DeclarationError
from aftercommit.feed.app import FeedApp
from aftercommit.feed.app.service import service
from aftercommit.feed.live.streams import StreamCaps, StreamTimes
from aftercommit.http.asgi import Asgi, Message, Receive, Scope, Send
from aftercommit.postgres.listen import Listener
from tests.feed.journal import TIMES, Journal, Reading, numbered, until
from tests.feed.test_polling import cursor_of


@pytest.mark.contract("L11")
async def test_the_first_bytes_come_at_once_and_then_what_is_new(journal: Journal):
    async with journal.served() as reading, reading.stream() as stream:
        assert stream.answer.headers["content-type"].startswith("text/event-stream")
        assert stream.answer.headers["cache-control"] == "private, no-cache, no-transform"
        assert stream.answer.headers["x-accel-buffering"] == "no"
        first = await stream.block()
        assert first is not None
        assert int(first["retry"]) > 0
        await journal.write("one", "two")
        one, two = await stream.events(2)
        assert (one["event"], one["item"]["text"]) == ("line", "one")
        assert one["id"] == cursor_of(one["item"])
        assert two["id"].endswith("#002")


@pytest.mark.contract("L11")
async def test_without_a_cursor_the_most_recent_lines_come_first(journal: Journal):
    await journal.write(*numbered(5))
    async with journal.served() as reading, reading.stream(limit=2) as stream:
        assert await stream.texts(2) == ["line 4", "line 5"]
        await journal.write("line 6")
        assert await stream.texts(1) == ["line 6"]


@pytest.mark.contract("L11")
@pytest.mark.thorough
async def test_a_reader_that_comes_back_goes_on_where_it_was_on_any_server(journal: Journal):
    """Cut after every single event, and connected to the other of two servers each time."""
    async with journal.served() as one, journal.served(journal.app()) as other:
        await journal.write(*numbered(12))
        seen, last = [], "1970-01-01T00:00:00.000Z#000"
        for turn in range(12):
            reading = (one, other)[turn % 2]
            async with reading.stream(headers={"Last-Event-ID": last}) as stream:
                event = (await stream.events(1))[0]
                seen.append(event["item"]["text"])
                last = event["id"]
        assert seen == list(numbered(12))


@pytest.mark.contract("L11")
async def test_the_last_event_id_counts_before_the_query(journal: Journal):
    await journal.write(*numbered(4))
    async with journal.served() as reading:
        lines = (await reading.poll()).json()["lines"]
        early, late = cursor_of(lines[0]), cursor_of(lines[2])
        async with reading.stream(afterCursor=early, headers={"Last-Event-ID": late}) as stream:
            assert await stream.texts(1) == ["line 4"]
        answer = await reading.client.get("/books/b-1/lines/stream", headers={"Last-Event-ID": "nonsense"})
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


async def test_a_last_event_id_that_was_encoded_is_to_be_sent_as_it_stands(journal: Journal):
    async with journal.served() as reading:
        for wrong in ("2025-11-12T10%3A30%3A05.123Z%23042", "2025-11-12T10:30:05.123Z"):
            answer = await reading.client.get("/books/b-1/lines/stream", headers={"Last-Event-ID": wrong})
            assert answer.status_code == 400
            assert answer.json()["message"] == (
                "Invalid cursor format: expected 'timestamp#seq', and in Last-Event-ID "
                "not percent-encoded: 2025-11-12T10:30:05.123Z#042"
            )


@pytest.mark.thorough
async def test_from_history_through_the_ring_to_live_nothing_is_missing(journal: Journal):
    """The strand keeps the newest hundred in memory; a reader from the beginning comes through all three."""
    await journal.write(*numbered(450))
    async with journal.served() as reading:
        async with reading.stream(afterCursor="1970-01-01T00:00:00.000Z#000", limit=10) as stream:
            await journal.write(*numbered(50, 451))
            assert await stream.texts(500) == list(numbered(500))
        assert reading.app.hub.questions > 1


@pytest.mark.contract("L11")
async def test_filters_hold_on_a_stream_and_the_place_moves_on(journal: Journal):
    async with journal.served() as reading, reading.stream(minLevel="ERROR") as stream:
        await stream.block()
        await journal.write("chatter", "more chatter", level="DEBUG")
        place = await stream.block()
        while place is not None and not place.get("id", "").endswith("#002"):
            assert "data" not in place
            place = await stream.block()
        assert place is not None
        assert list(place) == ["id"]
        await journal.write("trouble", level="ERROR")
        assert await stream.texts(1) == ["trouble"]
        # And this place is good to go on from.
        async with reading.stream(minLevel="ERROR", headers={"Last-Event-ID": place["id"]}) as again:
            assert await again.texts(1) == ["trouble"]


@pytest.mark.contract("L11")
@pytest.mark.parametrize("filters", [{}, {"minLevel": "ERROR"}])
@pytest.mark.thorough
async def test_a_reader_that_is_cut_before_its_first_event_comes_back_without_loss(
    journal: Journal, filters: dict[str, Any]
):
    """It had no cursor, and there was nothing for it: all it has is the place that it was told at the start."""
    if filters:
        await journal.write("chatter")
    async with journal.served() as reading:
        async with reading.stream(**filters) as stream:
            await stream.block()
            place = await stream.block()
            assert place is not None
            assert list(place) == ["id"]
        await journal.write(*numbered(150), level="ERROR")
        async with reading.stream(**filters, headers={"Last-Event-ID": place["id"]}) as again:
            assert await again.texts(150) == list(numbered(150))


@pytest.mark.thorough
@pytest.mark.contract("L11")
async def test_readers_that_come_in_the_middle_of_a_bulk_miss_nothing_from_where_they_began(journal: Journal):
    """Without a cursor that is the most recent hundred at that moment; with one it is the cursor, however late."""
    begun: list[str] = []
    seen: dict[int, list[int]] = {}
    last = 600

    async def read(reading: Reading, number: int) -> None:
        cursor: dict[str, Any] = {"afterCursor": "1970-01-01T00:00:00.000Z#000"} if number % 3 == 0 else {}
        numbers = seen[number] = []
        async with reading.stream(**cursor) as stream:
            begun.append("")
            while not numbers or numbers[-1] < last:
                numbers.append((await stream.events(1))[0]["item"]["seq"])

    async with journal.served(journal.app(caps=StreamCaps(max_streams_per_user=100))) as reading:
        readers: list[asyncio.Task[None]] = []

        def all_have_begun() -> bool:
            return len(begun) == len(readers)

        for batch in range(12):
            readers.extend([asyncio.create_task(read(reading, 3 * batch + each)) for each in range(3)])
            await until(all_have_begun)
            await journal.write(*numbered(last // 12, batch * (last // 12) + 1))
        await asyncio.gather(*readers)
    for number, numbers in seen.items():
        assert numbers == list(range(numbers[0], last + 1)), f"reader {number}"
    assert all(numbers[0] == 1 for number, numbers in seen.items() if number % 3 == 0)
    # Those who came last and did not say from where had all but the last batch before them, and got a hundred of it.
    assert all(numbers[0] <= last - last // 12 - 99 for number, numbers in seen.items() if number >= 33)


async def test_what_does_not_fit_into_one_write_reaches_all_who_wait(journal: Journal):
    async with journal.served() as reading, reading.stream() as one, reading.stream() as other:
        await one.block()
        await other.block()
        texts = [f"{number} " + "x" * 3000 for number in range(100)]
        await journal.write(*texts)
        assert await one.texts(100) == texts
        assert await other.texts(100) == texts


async def test_a_reader_at_the_end_is_written_to_without_a_task(journal: Journal):
    """Also as a part of a whole service, whose wrappers are known to pass pieces on as they are."""
    app = journal.app(cors=["https://pages.example"])
    async with journal.served(app, service(app)) as reading, reading.stream() as stream:
        await stream.block()
        await stream.block()
        await until(lambda: the_stream(reading)._sleep._group is not None)
        begun: list[object] = []
        reading.app.streams.run_task = begun.append  # type: ignore[assignment, method-assign]
        await journal.write("one", "two")
        assert await stream.texts(2) == ["one", "two"]
        assert begun == []
        assert the_stream(reading)._sleep._sleeper is None
        del reading.app.streams.run_task


async def test_a_connection_goes_on_after_a_stream_that_had_no_task(journal: Journal):
    """Also with a request that the client has sent before the stream was over."""
    async with journal.served() as reading:
        with connected(reading, journal) as reader:
            await until(lambda: len(reading.app.streams) == 1 and the_stream(reading)._sleep._group is not None)
            reader.sendall(b"GET /books/b-1/lines HTTP/1.1\r\nHost: x\r\n\r\n")
            await journal.write("one")
            came = await read_until(reader, b'"text":"one"')
            assert b"401" not in came
            the_stream(reading).end("rotation")
            came += await read_until(reader, b"unauthorized")
            stream, _, rest = came.partition(b"\r\n0\r\n\r\n")
            assert b"event: bye" in stream
            assert rest.startswith(b"HTTP/1.1 401")
            await until_open(reading, 0)
            assert reading.app.streams.ended == {"rotation": 1}
            reader.sendall(b"GET /books/b-1/lines HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await read_until(reader, b"unauthorized")).startswith(b"HTTP/1.1 401")


async def test_what_a_stream_without_a_task_costs_a_user_is_given_back_when_it_ends(journal: Journal):
    app = journal.app(caps=StreamCaps(max_streams_per_user=1))
    async with journal.served(app) as reading:
        async with reading.stream():
            await until(lambda: len(app.streams) == 1 and the_stream(reading)._sleep._group is not None)
            refused = await reading.client.get("/books/b-1/lines/stream", headers=journal.bearer())
            assert refused.status_code == 429
        await until_open(reading, 0)
        async with reading.stream() as again:
            assert again.answer.status_code == 200


@pytest.mark.contract("L8")
async def test_who_is_being_ended_gets_nothing_that_comes_at_the_same_moment(journal: Journal):
    """Its task was woken to say goodbye and has not had its turn yet."""
    async with journal.served() as reading, reading.stream() as stream:
        await stream.block()
        await stream.block()
        task = the_stream(reading)
        await until(lambda: task._sleep._group is not None)
        group = task._sleep._group
        task.end("unauthorized")
        group.write(b"id: 1\nevent: line\ndata: {}\n\n")
        block = await stream.block()
        assert block is not None
        assert (block["event"], json.loads(block["data"])["reason"]) == ("bye", "unauthorized")
        assert await stream.block() is None


async def test_nothing_passes_by_a_middleware_that_may_change_what_is_sent(journal: Journal):
    app = journal.app()
    async with journal.served(app, censored(app)) as reading, reading.stream() as stream:
        await stream.block()
        await stream.block()
        await until(lambda: the_stream(reading)._sleep._sleeper is not None)
        await journal.write("the password is secret", "nothing")
        assert await stream.texts(2) == ["the password is ******", "nothing"]


async def test_a_quiet_stream_has_heartbeats(journal: Journal):
    times = StreamTimes(tick_seconds=0.02, heartbeat_seconds=0.1)
    async with journal.served(journal.app(times=times)) as reading, reading.stream() as stream:
        assert stream.answer.headers["x-heartbeat-interval"] == "0.1"
        blocks = [await stream.block() for _ in range(5)]
        assert list(blocks[1] or {}) == ["id"]
        assert blocks[2:] == [{"": "hb"}] * 3


async def test_a_stream_is_rotated_with_a_goodbye(journal: Journal):
    times = StreamTimes(tick_seconds=0.02, rotate_min_seconds=0.1, rotate_max_seconds=0.2)
    async with journal.served(journal.app(times=times)) as reading, reading.stream() as stream:
        bye = await stream.named("bye")
        assert bye["item"]["reason"] == "rotation"
        assert int(bye["retry"]) > 0
        assert await stream.block() is None
        await until_open(reading, 0)
        assert reading.app.streams.ended["rotation"] == 1


@pytest.mark.thorough
@pytest.mark.contract("L8")
async def test_an_expired_token_ends_its_stream(journal: Journal):
    access = BearerAccess(TokenVerifier(journal.keys, leeway_seconds=0))
    async with journal.served(journal.app(access)) as reading:
        for seconds in (2, 10, 50):
            end = time.time() + seconds
            async with reading.stream(headers=journal.bearer(seconds=seconds)) as stream:
                if stream.answer.status_code == 401 and time.time() > end - 1:
                    # It has ended before it was shown: one that lasts longer.
                    continue
                assert (await stream.named("bye"))["item"]["reason"] == "unauthorized"
                assert await stream.block() is None
                return
    raise AssertionError("no token lasted until its stream was open")


@pytest.mark.thorough
@pytest.mark.contract("L8")
async def test_a_revoked_token_ends_its_stream_and_its_long_poll(journal: Journal):
    listener = Listener(journal.database)
    access = BearerAccess(TokenVerifier(journal.keys), journal.database, journal.outbox, listener=listener)
    app = journal.app(access, listener=listener, services=[access])
    async with journal.served(app) as reading, listener:
        for user, seconds in (("grace", 3), ("mary", 12), ("eve", 60)):
            bearer = journal.bearer(user)
            tag = (await reading.poll(headers=bearer)).headers["etag"]
            waiting = asyncio.create_task(
                reading.poll(headers={**bearer, "If-None-Match": tag, "Prefer": f"wait={seconds}"}),
            )
            await until(lambda: reading.app.streams.waiting == 1)
            async with reading.stream(headers=bearer) as stream:
                await stream.block()
                with psycopg.connect(journal.dsn, autocommit=True) as connection:
                    revoke(connection, journal.outbox.shape, "user", user)
                assert (await stream.named("bye"))["item"]["reason"] == "unauthorized"
            # Otherwise its time was up before, and one that waits longer is still there.
            still_waits = reading.app.streams.waiting == 1
            answer = await waiting
            assert (await reading.poll(headers=bearer)).status_code == 401
            if still_waits:
                assert answer.status_code == 401
                return
    raise AssertionError("no poll waited for long enough")


@pytest.mark.contract("L8")
async def test_once_a_revocation_is_in_force_its_streams_get_nothing_more(journal: Journal):
    listener = Listener(journal.database)
    access = BearerAccess(TokenVerifier(journal.keys), journal.database, journal.outbox, listener=listener)
    # The timer would only notice after the test.
    app = journal.app(access, listener=listener, services=[access], times=StreamTimes(tick_seconds=60.0))
    async with journal.served(app) as reading, listener:
        bearer = journal.bearer("grace")
        async with reading.stream(headers=bearer) as stream:
            await stream.block()
            with psycopg.connect(journal.dsn, autocommit=True) as connection:
                revoke(connection, journal.outbox.shape, "user", "grace")
            while (await reading.poll(headers=bearer)).status_code != 401:
                pass
            await journal.write("too late")
            rest = []
            while (block := await stream.block()) is not None:
                rest.append(block)
    assert [block.get("event") for block in rest if "event" in block] == ["bye"]
    assert "too late" not in str(rest)


async def test_too_many_streams_of_a_user_are_429_and_too_many_in_all_503(journal: Journal):
    app = journal.app(caps=StreamCaps(max_streams=3, max_streams_per_user=2))
    async with journal.served(app) as reading:
        async with reading.stream(), reading.stream() as second:
            await second.block()
            async with reading.stream() as third:
                assert third.answer.status_code == 429
                assert int(third.answer.headers["retry-after"]) >= 1
            async with reading.stream(headers=journal.bearer("grace")) as other:
                await other.block()
                async with reading.stream(headers=journal.bearer("mary")) as refused:
                    assert refused.answer.status_code == 503
                    assert int(refused.answer.headers["retry-after"]) >= 1
        await until_open(reading, 0)
        async with reading.stream() as again:
            assert again.answer.status_code == 200


async def test_the_cap_holds_while_many_open_at_the_same_moment(journal: Journal):
    """All of them wait for the strand to be loaded, and none is open yet when the last is let in."""
    hold = journal.signals.hold("feed.loading")
    async with journal.served(journal.app(caps=StreamCaps(max_streams=2), probe=journal.signals)) as reading:

        async def status() -> int:
            async with reading.stream() as stream:
                if stream.answer.status_code == 200:
                    await stream.block()
                    await until(lambda: len(refused) == 3)
                else:
                    refused.append(stream.answer.status_code)
                return stream.answer.status_code

        refused: list[int] = []
        opening = [asyncio.create_task(status()) for _ in range(5)]
        await hold.wait()
        await until(lambda: len(refused) == 3)
        hold.release()
        assert sorted(await asyncio.gather(*opening)) == [200, 200, 503, 503, 503]


@pytest.mark.parametrize(
    "wrong", [{"tick_seconds": 0}, {"stall_seconds": -1}, {"rotate_min_seconds": 10, "rotate_max_seconds": 5}]
)
def test_times_that_could_not_work_are_refused(wrong: dict[str, float]):
    with pytest.raises(DeclarationError, match="tick"):
        StreamTimes(**wrong)


async def test_a_reader_that_leaves_is_noticed_while_nothing_happens(journal: Journal):
    async with journal.served() as reading:
        async with reading.stream() as stream:
            await stream.block()
            assert len(reading.app.streams) == 1
        await until_open(reading, 0)
        assert reading.app.streams.ended == {"left": 1}


@pytest.mark.thorough
async def test_an_idle_stream_takes_no_task(journal: Journal):
    # The relay has begun its tasks when something has come through; the first stream of all loads the strand.
    await journal.write("one")
    async with journal.served() as reading, reading.stream() as first:
        await first.block()
        # Until the listener works it has tasks of its own.
        await until(lambda: reading.app.listener.working)
        before = asyncio.all_tasks()
        async with reading.stream(), reading.stream(), reading.stream() as third:
            await third.block()
            # What asks the database meanwhile may have a task for a moment.
            await until(lambda: not asyncio.all_tasks() - before)


async def test_a_cursor_that_is_gone_is_a_reset_with_the_place_to_go_on(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        other_life = "2001-01-01T00:00:00.000Z#001"
        assert (await reading.poll(afterCursor=other_life)).status_code == 410
        async with reading.stream(headers={"Last-Event-ID": other_life}) as stream:
            reset = await stream.named("reset")
            assert reset["item"]["reason"] == "epoch"
            assert reset["id"] == (reset["item"]["restart"] or "")
            assert await stream.block() is None
        gone = (await reading.poll(afterCursor=other_life)).json()
        assert (gone["error"], gone["details"]["reason"]) == ("gone", "epoch")
        restarted = {"afterCursor": gone["details"]["restart"]} if gone["details"]["restart"] else {}
        assert await reading.texts(**restarted) == ["one"]


async def test_a_head_request_opens_nothing(journal: Journal):
    async with journal.served() as reading:
        answer = await reading.client.head("/books/b-1/lines/stream")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert (len(reading.app.streams), reading.app.streams.opened) == (0, 0)


async def test_a_server_that_tells_by_an_error_that_the_reader_has_left_is_believed(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    app = journal.app()
    async with journal.served(app, fails_to_send(app, b"one")) as reading, reading.stream() as stream:
        await stream.block()
        await journal.write("one")
        await until(lambda: app.streams.ended["left"] == 1)
        assert (len(app.streams), app.streams.opened) == (0, 1)
    said = [record.message for record in caplog.records]
    assert "stream_failed" not in said
    assert "request_failed" not in said


async def test_a_drain_says_goodbye_and_admits_nobody(journal: Journal):
    async with journal.served() as reading, reading.stream() as stream:
        await stream.block()
        reading.app.drain()
        async with reading.stream() as late:
            assert (late.answer.status_code, json.loads(await late.answer.aread())["error"]) == (503, "unavailable")
        assert (await stream.named("bye"))["item"]["reason"] == "shutdown"
        assert await stream.block() is None


async def test_a_reader_that_does_not_read_is_cut(journal: Journal):
    times = StreamTimes(tick_seconds=0.02, stall_seconds=0.3)
    async with journal.served(journal.app(times=times)) as reading:
        with slow_reader(reading, journal) as reader:
            await until_open(reading, 1)
            await write_much(journal)
            await until_open(reading, 0)
            assert reading.app.streams.ended == {"stalled": 1}
            await closed(reader)


async def test_readers_beside_one_that_does_not_read_get_everything_at_once_and_it_gets_everything_later(
    journal: Journal,
):
    """And one that disconnects in the middle costs nobody anything."""
    times = StreamTimes(tick_seconds=0.02, stall_seconds=60, slow_seconds=60)
    async with journal.served(journal.app(times=times)) as reading:
        with slow_reader(reading, journal) as slow, connected(reading, journal) as leaving:
            async with reading.stream() as quick:
                await until_open(reading, 3)
                await until(lambda: all(stream._sleep._group for stream in open_streams(reading)))
                assert len({stream._sleep._group for stream in open_streams(reading)}) == 1
                texts = [f"{number} " + "x" * 20_000 for number in range(40)]
                for text in texts[:20]:
                    await journal.write(text)
                    assert await quick.texts(1) == [text]
                assert any(stream._response.sending_since is not None for stream in open_streams(reading))
                leaving.close()
                for text in texts[20:]:
                    await journal.write(text)
                    assert await quick.texts(1) == [text]
                await until_open(reading, 2)
                came = await read_until(slow, b'"text":"39 ')
                found = [int(each) for each in re.findall(rb'"text":"(\d+) x', came)]
                assert found == list(range(40))
                # It has joined the others again.
                await until(lambda: all(stream._sleep._group for stream in open_streams(reading)))
                await journal.write("last")
                assert await quick.texts(1) == ["last"]
                await read_until(slow, b'"text":"last"')


@pytest.mark.parametrize("filtered", [False, True])
async def test_a_stream_knows_what_the_crowd_has_written_to_it(journal: Journal, filtered: bool):
    """The crowd keeps it once for all. The timer needs it, and the stream when it is dropped out of the crowd."""
    app = journal.app(times=StreamTimes(tick_seconds=60))
    level = "ERROR" if filtered else "DEBUG"
    async with journal.served(app) as reading, reading.stream(minLevel=level) as stream:
        await stream.block()
        await stream.block()
        task = the_stream(reading)
        await until(lambda: task._sleep._group is not None)
        before, strand = task._response._sent, task.position.strand
        await journal.write("one", "two")
        await until(lambda: task._sleep._group.place.number == 2)
        reading.app.hub._kept.forget(strand)
        assert (task.position.place.number, task.position.is_untold) == (2, filtered)
        await until(lambda: task.position.strand is not strand and task._sleep._group is not None)
        await journal.write("three")
        await until(lambda: task._sleep._group.place.number == 3)
        task.look(reading.app.streams.now)
        sent = task._response._sent - before
        assert (task.position.place.number, task.position.is_untold, sent > 0) == (3, filtered, not filtered)
        task.look(reading.app.streams.now)
        assert task._response._sent - before == sent
        if not filtered:
            assert await stream.texts(3) == ["one", "two", "three"]


@pytest.mark.thorough
async def test_a_reader_that_trickles_is_cut(journal: Journal):
    times = StreamTimes(tick_seconds=0.02, stall_seconds=30, min_bytes_per_second=50_000, slow_seconds=0.5)
    async with journal.served(journal.app(times=times)) as reading:
        with slow_reader(reading, journal) as reader:
            reader.setblocking(False)
            await until_open(reading, 1)
            await write_much(journal)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(60):
                while len(reading.app.streams):
                    await asyncio.wait_for(loop.sock_recv(reader, 100), 60)
                    await asyncio.sleep(0.02)
            assert reading.app.streams.ended == {"slow": 1}


async def test_a_reader_that_lags_gets_many_events_in_one_write(journal: Journal):
    """Written while the reader looks away: they come in far fewer pieces than there are events."""
    async with journal.served() as reading, reading.stream() as stream:
        await stream.block()
        await journal.write(*numbered(300))
        sizes = []
        seen = b""
        async with asyncio.timeout(60):
            while seen.count(b"event: line") < 300:
                piece = await anext(stream._bytes)  # type: ignore[arg-type]
                sizes.append(len(piece))
                seen += piece
        assert len(sizes) < 60


@pytest.mark.thorough
async def test_streams_and_long_polls_do_not_hold_up_a_stop(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        tag = (await reading.poll()).headers["etag"]
        waiting = asyncio.create_task(reading.poll(headers={"If-None-Match": tag, "Prefer": "wait=60"}))
        with slow_reader(reading, journal):
            async with reading.stream() as stream:
                await stream.texts(1)
                await write_much(journal)
                # The window is a second; uvicorn would have waited for the slow reader for ever.
                await asyncio.wait_for(reading.server.stop(), 60)
        await asyncio.gather(waiting, return_exceptions=True)


def the_stream(reading: Reading) -> Any:
    """The one that is open."""
    (stream,) = open_streams(reading)
    return stream


def open_streams(reading: Reading) -> list[Any]:
    return list(reading.app.streams._open)


def censored(app: FeedApp) -> Asgi:
    """An application around the feed that takes a word out of whatever leaves it, and lets the rest pass."""

    async def around(scope: Scope, receive: Receive, send: Send) -> None:
        async def censoring(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = message["body"].replace(b"secret", b"******")
            await send(message)

        await app(scope, receive, censoring)

    return around


def fails_to_send(app: FeedApp, word: bytes) -> Asgi:
    """An application around the feed whose way to the reader breaks when this word is to be sent."""

    async def around(scope: Scope, receive: Receive, send: Send) -> None:
        async def failing(message: Message) -> None:
            if word in message.get("body", b""):
                raise BrokenPipeError
            await send(message)

        await app(scope, receive, failing)

    return around


def slow_reader(reading: Reading, journal: Journal) -> socket.socket:
    """A connection that has asked for a stream, with small buffers on both sides, and reads nothing by itself."""
    reading.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return connected(reading, journal, 4096)


async def read_until(reader: socket.socket, text: bytes) -> bytes:
    """What comes, up to a piece with this text."""
    reader.setblocking(False)
    came = b""
    async with asyncio.timeout(60):
        while text not in came:
            piece = await asyncio.get_running_loop().sock_recv(reader, 65_536)
            assert piece, came
            came += piece
    return came


def connected(reading: Reading, journal: Journal, buffer: int | None = None) -> socket.socket:
    """A connection that has asked for a stream, with a receive buffer of this size."""
    address = urlsplit(reading.server.url)
    reader = socket.socket()
    if buffer is not None:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    reader.connect((address.hostname, address.port))
    bearer = journal.bearer()["Authorization"]
    request = f"GET /books/b-1/lines/stream HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\n\r\n"
    reader.sendall(request.encode())
    return reader


async def write_much(journal: Journal) -> None:
    for _ in range(4):
        await journal.write(*("x" * 40_000 for _ in range(10)))


async def closed(reader: socket.socket) -> None:
    """Until the other side has dropped the connection, behind what it had sent before."""
    reader.setblocking(False)
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(reader, 65_536):
                pass


async def until_open(reading: Reading, count: int) -> None:
    """Until so many streams are open."""
    await until(lambda: len(reading.app.streams) == count)


async def test_an_access_that_fails_costs_its_own_stream_and_no_other(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    class Moody(BearerAccess):
        def still_valid(self, reader: Reader) -> bool:
            if reader.user == "grace" and angry.is_set():
                raise RuntimeError("the list of guests is lost")
            return super().still_valid(reader)

    angry = asyncio.Event()
    app = journal.app(Moody(TokenVerifier(journal.keys)), times=msgspec.structs.replace(TIMES, heartbeat_seconds=0.05))
    async with (
        journal.served(app) as reading,
        reading.stream() as other,
        reading.stream(headers=journal.bearer("grace")) as unlucky,
    ):
        await until_open(reading, 2)
        angry.set()
        with suppress(httpx.RemoteProtocolError):
            while await unlucky.block() is not None:
                pass
        await until_open(reading, 1)
        # The timer goes on: there is a heartbeat still.
        while (block := await other.block()) is None or "hb" not in block.get("", ""):
            assert block is not None
        assert (reading.app.streams.ended["failed"], reading.app.failed) == (1, None)
        assert [record.getMessage() for record in caplog.records].count("stream_failed") == 1
