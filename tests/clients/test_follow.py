"""Following a feed over a real connection, on good days and bad ones."""

import asyncio
import json
import logging
from contextlib import aclosing

import pytest

from aftercommit.client import FeedEvent, Gap, MemoryBookmark, Pace, State, Wire, follow
from aftercommit.client.follow import Follower
from aftercommit.errors import BookmarkError, DeclarationError, FeedRefused
from tests.clients.scripted_feed import (
    PATIENCE,
    Act,
    Reply,
    answer_with,
    cursor_of,
    drop,
    fall_silent,
    frame,
    never_answer,
    only_headers,
    refuse,
    scripted_feed,
    stop_beating,
    stream_then,
)

# The proportions of the protocol at a hundredth of its times; how long a silence lasts is no proportion.
QUICK = Pace(
    backoff=0.01, poll=0.05, idle_longest=0.3, limited_longest=0.6, probe=0.6, bye=0.02, bye_shortest=0.01, longest=1.0
)
# Never back to the stream while the test runs.
POLLING = Pace(**{**{name: getattr(QUICK, name) for name in QUICK.__struct_fields__}, "probe": 3600.0})


async def take(follower: Follower, count: int) -> list[FeedEvent]:
    """So many events, and then no more."""
    taken: list[FeedEvent] = []
    async with asyncio.timeout(PATIENCE), aclosing(aiter(follower)) as events:
        async for event in events:
            taken.append(event)
            if len(taken) == count:
                break
    return taken


def numbers(events: list[FeedEvent]) -> list[int | None]:
    return [event.number for event in events]


async def test_events_come_through_the_stream_as_they_are_published():
    async with scripted_feed(events=2) as feed:
        follower = follow(feed.url, pace=QUICK, token="secret")
        seen = []
        async with asyncio.timeout(PATIENCE), aclosing(aiter(follower)) as events:
            async for event in events:
                seen.append(event)
                if len(seen) == 2:
                    assert follower.state is State.STREAMING
                    feed.publish(2)
                if len(seen) == 4:
                    break

        assert [event.data["message"] for event in seen] == ["line 1", "line 2", "line 3", "line 4"]
        assert follower.cursor == seen[-1].cursor == cursor_of(feed.events[3])
        assert follower.state is State.STOPPED
        (request,) = feed.requests
        assert request.headers["authorization"] == "Bearer secret"
        assert request.headers["accept"] == "text/event-stream"
        assert "last-event-id" not in request.headers


@pytest.mark.contract("L13")
async def test_a_connection_cut_at_every_event_loses_and_repeats_nothing():
    acts = [stream_then(events=1) for _ in range(12)]
    async with scripted_feed(events=13, streams=acts) as feed:
        events = await take(follow(feed.url, pace=QUICK), 13)

        assert numbers(events) == list(range(1, 14))
        places = [request.headers.get("last-event-id") for request in feed.requests]
        assert places == [None, *(cursor_of(event) for event in feed.events[:12])]


@pytest.mark.contract("L13")
async def test_a_frame_that_was_cut_in_half_is_not_an_event():
    half = frame({"event_id": "e2", "ts": "2025-11-12T10:30:00.000Z", "seq": 2})[:-1]
    async with scripted_feed(events=2, streams=[stream_then(half, events=1)]) as feed:
        assert numbers(await take(follow(feed.url, pace=QUICK), 2)) == [1, 2]


@pytest.mark.contract("L13")
async def test_repeated_events_are_handed_over_once():
    again = b"".join(
        frame({"event_id": f"e{n}", "ts": "2025-11-12T10:30:00.000Z", "seq": n, "message": ""}) for n in (1, 2, 1)
    )
    async with scripted_feed(events=3, streams=[stream_then(again, events=2)]) as feed:
        assert numbers(await take(follow(feed.url, pace=QUICK), 3)) == [1, 2, 3]


@pytest.mark.contract("L13")
async def test_three_failures_lead_to_polling_and_later_back_to_the_stream():
    async with scripted_feed(events=1, streams=[drop, drop, drop]) as feed:
        follower = follow(feed.url, pace=QUICK)
        states: list[State] = []
        follower.listen(states.append)
        follower.listen(lambda state: feed.publish() if state is State.STREAMING else None)

        assert numbers(await take(follower, 2)) == [1, 2]
        assert states == [
            State.CONNECTING,
            State.WAITING,
            State.CONNECTING,
            State.WAITING,
            State.CONNECTING,
            State.POLLING,
            State.STREAMING,
            State.STOPPED,
        ]
        kinds = [request.path for request in feed.requests]
        assert kinds[:4] == ["/logs/stream", "/logs/stream", "/logs/stream", "/logs"]
        assert kinds[-1] == "/logs/stream"


@pytest.mark.contract("L13")
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(fall_silent, id="silent"),
        pytest.param(only_headers, id="only headers"),
        pytest.param(never_answer, id="no answer"),
        pytest.param(stream_then(b"data: {not json}\n\n"), id="no json"),
        pytest.param(stream_then(b'data: {"message": "nobody"}\n\n'), id="no identity"),
        pytest.param(stream_then(b"data: " + b"x" * (2 << 20)), id="endless line"),
        pytest.param(answer_with(b"<html>", content_type="text/html"), id="a page of a hotel"),
        pytest.param(refuse(500), id="server error"),
        pytest.param(refuse(503, retry_after=0), id="unavailable"),
    ],
)
@pytest.mark.thorough
async def test_a_stream_that_does_not_work_is_given_up_for_polling(broken: Act):
    pace = Pace(backoff=0.01, poll=0.05, first_bytes=0.5, silence=0.5)
    async with scripted_feed(events=3, streams=[broken] * 3) as feed:
        assert numbers(await take(follow(feed.url, pace=pace), 3)) == [1, 2, 3]
        assert feed.requests[-1].path == "/logs"


@pytest.mark.thorough
@pytest.mark.contract("E7")
async def test_a_stream_that_stops_beating_is_lost_as_soon_as_its_server_said():
    patient = Pace(backoff=0.01, poll=0.05, silence=3600.0)
    async with scripted_feed(events=1, streams=[stop_beating]) as feed:
        follower = follow(feed.url, pace=patient)
        assert follower.heard is None
        assert numbers(await take(follower, 1)) == [1]
        assert [request.path for request in feed.requests] == ["/logs/stream", "/logs/stream"]
        assert follower.heard is not None
        assert follower.heard < PATIENCE


@pytest.mark.thorough
async def test_headers_without_a_body_are_no_stream():
    patient = Pace(backoff=0.01, poll=0.05, first_bytes=0.5, silence=3600.0)
    async with scripted_feed(events=1, streams=[only_headers] * 3) as feed:
        follower = follow(feed.url, pace=patient)
        states: list[State] = []
        follower.listen(states.append)
        assert numbers(await take(follower, 1)) == [1]
        assert State.STREAMING not in states


@pytest.mark.thorough
@pytest.mark.contract("L13")
async def test_polling_asks_with_an_encoded_cursor_and_the_last_tag_and_goes_on_after_trouble():
    polls = [drop, refuse(500), answer_with(b'{"logs": ['), answer_with(b"[]"), refuse(429, retry_after=0)]
    async with scripted_feed(events=2, polls=polls) as feed:
        follower = follow(feed.url, pace=POLLING, stream=False, limit=10, filters={"minLevel": "INFO"})

        async def publish_when_idle() -> None:
            await feed.until(lambda: len(feed.requests) >= 8)
            feed.publish(1)

        idle = asyncio.ensure_future(publish_when_idle())
        assert numbers(await take(follower, 3)) == [1, 2, 3]
        await idle

        first, tagged = feed.requests[0], [request for request in feed.requests if "if-none-match" in request.headers]
        assert first.query == {"limit": "10", "minLevel": "INFO"}
        assert tagged
        # A tag goes back only to the address that gave it.
        after = cursor_of(feed.events[1])
        assert {request.query["afterCursor"] for request in tagged} == {after}
        assert {request.headers["if-none-match"] for request in tagged} == {f'W/"{after}-2"'}


async def test_a_long_way_back_is_walked_page_by_page_without_waiting():
    patient = Pace(poll=3600.0)
    async with scripted_feed(events=95) as feed:
        events = await take(follow(feed.url, pace=patient, stream=False, limit=10), 95)
        assert numbers(events) == list(range(1, 96))
        assert len(feed.requests) == 10


async def test_a_feed_that_is_empty_at_first_is_read_from_its_beginning():
    async with scripted_feed() as feed:

        async def publish_when_asked() -> None:
            await feed.until(lambda: len(feed.requests) >= 2)
            feed.publish(25)

        publishing = asyncio.ensure_future(publish_when_asked())
        events = await take(follow(feed.url, pace=POLLING, stream=False, limit=10), 25)
        await publishing
        assert numbers(events) == list(range(1, 26))
        assert feed.requests[1].query["afterCursor"] == "1970-01-01T00:00:00.000Z#000"


async def test_the_server_says_goodbye_and_the_follower_comes_back():
    bye = b'event: bye\nretry: 20\ndata: {"reason": "shutdown"}\n\n'
    async with scripted_feed(events=2, streams=[stream_then(bye, events=1)]) as feed:
        follower = follow(feed.url, pace=QUICK)
        states: list[State] = []
        follower.listen(states.append)
        assert numbers(await take(follower, 2)) == [1, 2]
        assert states[:4] == [State.CONNECTING, State.STREAMING, State.WAITING, State.CONNECTING]


async def test_after_a_goodbye_the_connection_is_closed_even_if_the_server_leaves_it_open():
    async def say_bye_and_stay(reply: Reply) -> None:
        await stream_then(b"event: bye\nretry: 10\ndata: {}\n\n", events=1)(reply)
        await asyncio.Event().wait()

    streams = [say_bye_and_stay]
    async with (
        scripted_feed(events=2, streams=streams) as feed,
        aclosing(aiter(follow(feed.url, pace=QUICK))) as events,
    ):
        async with asyncio.timeout(PATIENCE):
            assert [(await anext(events)).number, (await anext(events)).number] == [1, 2]
        await feed.until(lambda: feed.open_connections == 1)


async def test_a_place_without_an_event_is_where_reading_goes_on():
    place = b"id: 2025-11-12T10:30:00.000Z#004\n\n"
    async with scripted_feed(events=5, streams=[stream_then(place)]) as feed:
        assert numbers(await take(follow(feed.url, pace=QUICK), 1)) == [5]


@pytest.mark.contract("L13")
async def test_a_reset_on_the_stream_is_reported_as_a_gap_and_reading_goes_on():
    restart = "2025-11-12T10:30:00.000Z#003"
    told = json.dumps({"reason": "retention", "message": "too old", "restart": restart})
    reset = f"id: {restart}\nevent: reset\ndata: {told}\n\n".encode()
    async with scripted_feed(events=4, streams=[stream_then(reset)]) as feed:
        follower = follow(feed.url, pace=QUICK, start="2025-11-12T10:30:00.000Z#001")
        async with asyncio.timeout(PATIENCE), aclosing(follower.with_gaps()) as items:
            gap, event = await anext(items), await anext(items)

        assert gap == Gap("retention", "2025-11-12T10:30:00.000Z#001", restart, "too old")
        assert isinstance(event, FeedEvent)
        assert event.number == 4
        assert feed.requests[1].headers["last-event-id"] == restart


@pytest.mark.contract("L13")
async def test_a_cursor_that_is_gone_is_reported_as_a_gap_when_polling():
    gaps: list[Gap] = []
    gone = refuse(410, reason="epoch", restart="2025-11-12T10:30:00.000Z#001")
    async with scripted_feed(events=2, polls=[gone]) as feed:
        follower = follow(
            feed.url, pace=POLLING, stream=False, start="2024-01-01T00:00:00.000Z#900", on_gap=gaps.append
        )
        assert numbers(await take(follower, 1)) == [2]
        assert [(gap.reason, gap.restart) for gap in gaps] == [("epoch", "2025-11-12T10:30:00.000Z#001")]


@pytest.mark.contract("L13")
async def test_a_jump_in_a_gapless_feed_is_reported(caplog: pytest.LogCaptureFixture):
    skipped = frame({"event_id": "e4", "ts": "2025-11-12T10:30:00.000Z", "seq": 4})
    async with scripted_feed(events=5, streams=[stream_then(skipped, events=2)]) as feed:
        with caplog.at_level(logging.WARNING, "aftercommit.client"):
            assert numbers(await take(follow(feed.url, pace=QUICK, gapless=True), 4)) == [1, 2, 4, 5]
        (record,) = [record for record in caplog.records if record.message == "feed_gap"]
        told = vars(record)["gap"]
        assert (told["reason"], told["expected"], told["got"]) == ("jump", 3, 4)


async def test_a_refused_token_is_renewed_once():
    tokens = iter(["stale", "fresh"])

    async def get_token() -> str:
        return next(tokens)

    async with scripted_feed(events=1, streams=[refuse(401)]) as feed:
        await take(follow(feed.url, pace=QUICK, token=get_token), 1)
        assert [request.headers["authorization"] for request in feed.requests] == ["Bearer stale", "Bearer fresh"]


async def test_a_follower_that_was_refused_asks_for_a_token_again_when_it_is_used_again():
    tokens = iter(["stale", "stale too", "fresh"])
    async with scripted_feed(events=1, streams=[refuse(401)] * 3) as feed:
        follower = follow(feed.url, pace=QUICK, token=lambda: next(tokens))
        with pytest.raises(FeedRefused):
            await take(follower, 1)
        assert numbers(await take(follower, 1)) == [1]
        assert feed.requests[-1].headers["authorization"] == "Bearer fresh"


async def test_a_token_function_may_be_an_ordinary_one_and_is_not_asked_for_every_request():
    asked: list[str] = []

    def get_token() -> str:
        asked.append("")
        return "secret"

    async with scripted_feed(events=3, streams=[stream_then(events=1)] * 2) as feed:
        await take(follow(feed.url, pace=QUICK, token=get_token), 3)
        assert len(asked) == 1


@pytest.mark.parametrize(("status", "token"), [(401, "secret"), (403, "secret"), (400, None)])
async def test_a_refusal_for_good_is_raised_with_what_the_server_says(status: int, token: str | None):
    async with scripted_feed(streams=[refuse(status, hint="ask anna")]) as feed:
        follower = follow(feed.url, pace=QUICK, token=token)
        with pytest.raises(FeedRefused, match=f"{status} code_{status}: told {status}") as caught:
            await take(follower, 1)
        assert (caught.value.status, caught.value.details) == (status, {"hint": "ask anna"})
        assert follower.state is State.STOPPED


async def test_a_redirection_is_told_and_not_followed():
    async def redirect(reply: Reply) -> None:
        await reply.answer(307, location="https://elsewhere/logs")

    async with scripted_feed(streams=[redirect]) as feed:
        with pytest.raises(FeedRefused, match="https://elsewhere/logs"):
            await take(follow(feed.url, pace=QUICK), 1)


async def test_what_is_not_there_at_all_is_raised_after_one_poll():
    async with scripted_feed(streams=[refuse(404)], polls=[refuse(404)]) as feed:
        with pytest.raises(FeedRefused, match="404"):
            await take(follow(feed.url, pace=QUICK), 1)
        assert len(feed.requests) == 2


async def test_a_bookmark_is_behind_the_event_that_is_being_worked_on():
    bookmark = MemoryBookmark()
    async with scripted_feed(events=3) as feed:
        async with (
            asyncio.timeout(PATIENCE),
            aclosing(aiter(follow(feed.url, bookmark=bookmark, save_every_seconds=0))) as events,
        ):
            first = await anext(events)
            before = bookmark.cursor
            second = await anext(events)
            between = bookmark.cursor

        assert before is None
        assert between == first.cursor
        assert bookmark.cursor == first.cursor
        assert second.number == 2


async def test_a_new_follower_goes_on_after_the_bookmark():
    bookmark = MemoryBookmark()
    async with scripted_feed(events=4) as feed:
        await take(follow(feed.url, bookmark=bookmark), 3)
        again = await take(follow(feed.url, bookmark=bookmark), 2)
        # The third was handed over, but nobody asked for more: it may not have been done.
        assert numbers(again) == [3, 4]


class Recording(MemoryBookmark):
    """Remembers everything that was saved."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []

    def save(self, cursor: str) -> None:
        super().save(cursor)
        self.saved.append(cursor)


async def test_a_page_is_kept_event_by_event():
    bookmark = Recording()
    async with scripted_feed(events=4) as feed:
        await take(follow(feed.url, bookmark=bookmark, stream=False, pace=POLLING, save_every_seconds=0), 3)
        assert bookmark.saved == [cursor_of(event) for event in feed.events[:2]]


async def test_a_bookmark_is_not_saved_for_every_event_of_a_burst():
    bookmark = Recording()
    async with scripted_feed(events=50) as feed:
        await take(follow(feed.url, bookmark=bookmark, save_every_seconds=3600.0), 50)
        # The first, and the last at the end.
        assert bookmark.saved == [cursor_of(feed.events[0]), cursor_of(feed.events[48])]


async def test_a_bookmark_that_cannot_be_written_stops_nobody_and_is_told_at_the_end():
    class Broken(MemoryBookmark):
        def save(self, cursor: str) -> None:
            raise BookmarkError("the disk is full")

    async with scripted_feed(events=3) as feed:
        events = aiter(follow(feed.url, bookmark=Broken()))
        async with asyncio.timeout(PATIENCE):
            assert numbers([await anext(events) for _ in range(3)]) == [1, 2, 3]
        with pytest.raises(BookmarkError, match="the disk is full"):
            await events.aclose()


@pytest.mark.parametrize("streams", [[fall_silent], [never_answer], [drop]])
async def test_cancellation_closes_the_connection(streams: list[Act]):
    async with scripted_feed(streams=streams) as feed:
        following = asyncio.ensure_future(take(follow(feed.url), 1))
        await feed.until(lambda: len(feed.requests) == 1)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        await feed.until(lambda: feed.open_connections == 0)


async def test_a_loop_that_is_left_closes_the_connection_and_another_goes_on_behind_it():
    async with scripted_feed(events=4) as feed:
        follower = follow(feed.url, pace=QUICK)
        async with asyncio.timeout(PATIENCE), follower:
            async for event in follower:
                assert event.number == 1
                break
            async for event in follower:
                assert event.number == 2
                break
        await feed.until(lambda: feed.open_connections == 0)


async def test_another_dialect_has_its_own_names_and_takes_bare_arrays():
    tasks = Wire(cursor="after_id", body="array", beginning="0")

    async def page(reply: Reply) -> None:
        after = int(reply.request.query.get("after_id", "0"))
        items = [{"event_id": number, "payload": {}} for number in range(after + 1, min(after + 3, 6))]
        await reply.answer(200, json.dumps(items).encode(), x_has_more="true" if after < 3 else "false")

    async with scripted_feed(polls=[page] * 3) as feed:
        follower = follow(feed.url, wire=tasks, stream=False, headers={"X-User-Id": "17"}, pace=POLLING)
        events = await take(follower, 5)
        assert [(event.id, event.cursor) for event in events] == [(str(n), str(n)) for n in range(1, 6)]
        assert {request.headers["x-user-id"] for request in feed.requests} == {"17"}


@pytest.mark.parametrize("url", ["logs", "ftp://h/logs", "http:///logs", "http://h:x/logs", "http://h:99999/logs", ""])
def test_an_address_that_cannot_be_asked_is_refused_at_once(url: str):
    with pytest.raises(DeclarationError, match="is not the address of a feed"):
        follow(url)


async def test_a_token_that_cannot_be_sent_is_refused_without_being_shown():
    with pytest.raises(DeclarationError, match="token cannot be sent") as caught:
        await take(follow("http://127.0.0.1:9/logs", token="se\ncret"), 1)
    assert "cret" not in str(caught.value)
