"""Pages over HTTP: what they hold, when they are 304, what they cost, what is refused."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest

from aftercommit.access.key_count import Rate
from aftercommit.feed import POSITION, BareArray, Everything, Limits, Wire
from aftercommit.postgres.database import Database
from aftercommit.testing.fault_proxy import FaultProxy
from tests.feed.journal import Journal, LineWritten, Reading, journal_feed, numbered, until


@pytest.mark.contract("L3")
async def test_without_a_cursor_the_most_recent_lines_come_in_ascending_order(journal: Journal):
    await journal.write(*numbered(5))
    async with journal.served() as reading:
        assert await reading.texts(limit=3) == ["line 3", "line 4", "line 5"]


@pytest.mark.contract("L3", "L5")
async def test_a_walk_by_next_cursor_sees_every_line_once_and_ends_with_null(journal: Journal):
    await journal.write(*numbered(7))
    async with journal.served() as reading:
        first = (await reading.poll(limit=7)).json()["lines"][0]
        cursor, seen = f"{first['ts']}#{first['seq']:03d}", ["line 1"]
        while (page := (await reading.poll(limit=2, afterCursor=cursor)).json())["lines"]:
            seen += [line["text"] for line in page["lines"]]
            cursor = page["pagination"]["nextCursor"]
        assert seen == list(numbered(7))
        assert page["pagination"] == {
            "afterCursor": cursor,
            "nextCursor": None,
            "hasMore": False,
            "limit": 2,
            "returned": 0,
        }


@pytest.mark.thorough
@pytest.mark.contract("L6", "L7")
async def test_a_304_costs_no_query_and_has_no_body(journal: Journal):
    await journal.write(*numbered(3))
    async with journal.served() as reading:
        tag = (await reading.poll()).headers["etag"]
        questions = reading.app.hub.questions
        for _ in range(20):
            answer = await reading.poll(headers={"If-None-Match": tag})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
            assert answer.headers["cache-control"] == "private, no-cache"
            assert answer.headers["vary"] == "Authorization, X-User-Id"
        assert reading.app.hub.questions == questions


@pytest.mark.contract("L6")
async def test_a_new_line_is_never_hidden_by_a_304(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        first = await reading.poll()
        await journal.write("two")
        await until_head(reading, 2)
        second = await reading.poll(headers={"If-None-Match": first.headers["etag"]})
        assert second.status_code == 200
        assert [line["text"] for line in second.json()["lines"]] == ["one", "two"]


@pytest.mark.contract("L6")
async def test_a_line_that_comes_between_the_page_and_its_tag_is_not_covered_by_the_tag(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
):
    await journal.write("one")
    app = journal.app()
    page_of = app.hub.page

    async def page_and_then_a_line(strand: Any, *asked: Any) -> Any:
        page = await page_of(strand, *asked)
        await journal.write("late")
        await until(lambda: strand.head > page.head)
        return page

    async with journal.served(app) as reading:
        with monkeypatch.context() as patch:
            patch.setattr(app.hub, "page", page_and_then_a_line)
            first = await reading.poll()
        assert [line["text"] for line in first.json()["lines"]] == ["one"]
        second = await reading.poll(headers={"If-None-Match": first.headers["etag"]})
        assert second.status_code == 200
        assert [line["text"] for line in second.json()["lines"]] == ["one", "late"]
        # Nor does the page that was kept for the next who asks.
        assert await reading.texts() == ["one", "late"]


@pytest.mark.contract("L6")
async def test_the_tag_of_one_request_is_not_believed_for_another(journal: Journal):
    await journal.write(*numbered(5))
    async with journal.served() as reading:
        newest = await reading.poll(limit=5)
        after_first = cursor_of(newest.json()["lines"][0])
        for other in ({"limit": 4}, {"minLevel": "WARN"}, {"afterCursor": after_first}, {"author": "nobody"}):
            asked: dict[str, Any] = {"limit": 5, **other}
            answer = await reading.poll(headers={"If-None-Match": newest.headers["etag"]}, **asked)
            assert answer.status_code == 200, other
        other_user = journal.bearer("grace", ["book:b-1:read"])
        answer = await reading.poll(headers={"If-None-Match": newest.headers["etag"], **other_user}, limit=5)
        assert answer.status_code == 200


@pytest.mark.contract("L6")
@pytest.mark.parametrize(
    "form",
    ["{tag}", '"other", {tag}', "*", "{strong}", '"W/\\"{opaque}\\""', '"W/"x"",W/"y" , {tag}'],
    ids=["as sent", "in a list", "any", "strong", "quoted twice", "in a strange list"],
)
@pytest.mark.thorough
async def test_if_none_match_is_understood_in_every_form(journal: Journal, form: str):
    await journal.write("one")
    async with journal.served() as reading:
        tag = (await reading.poll()).headers["etag"]
        strong = tag.removeprefix("W/")
        header = form.format(tag=tag, strong=strong, opaque=strong.strip('"'))
        assert (await reading.poll(headers={"If-None-Match": header})).status_code == 304


@pytest.mark.thorough
async def test_other_tags_and_garbage_in_if_none_match_are_answered_200(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        for header in ("", '"abc"', 'W/"', "W/", '""', '"*"', "x" * 4000):
            assert (await reading.poll(headers={"If-None-Match": header})).status_code == 200


@pytest.mark.contract("L8")
@pytest.mark.thorough
async def test_who_may_not_read_gets_no_304_either(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        tag = (await reading.poll()).headers["etag"]
        for bearer, status, code in (
            ({"Authorization": ""}, 401, "unauthorized"),
            ({"Authorization": "Bearer forged.token.here"}, 401, "unauthorized"),
            (journal.bearer("grace", ["book:b-2:read"]), 403, "forbidden"),
        ):
            answer = await reading.poll(headers={**bearer, "If-None-Match": tag})
            assert (answer.status_code, answer.json()["error"]) == (status, code)
            assert answer.headers["cache-control"] == "no-store"
            assert status == 401 or answer.json()["message"] == "Insufficient permissions for book:b-1:read"


@pytest.mark.contract("L1")
@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=%2B5", "limit"),
        ("limit=", "limit"),
        ("minLevel=info", "minLevel"),
        ("minLevel=", "minLevel"),
        ("afterCursor=", "cursor"),
        ("afterCursor=2025-11-12T10:30:00.123Z", "cursor"),
        ("afterCursor=2025-13-12T10:30:00.123Z%23001", "cursor"),
        ("author=" + "a" * 300, "author"),
        ("author=a%00b", "parameter"),
        ("author=%ff%fe", "parameter"),
        ("a%00b=c", "parameter"),
        ("limit=5&limit=6", "parameter"),
        ("minlevel=ERROR", "parameter"),
        ("token=abc", "parameter"),
        ("x=" + "y" * 5000, "length"),
    ],
)
@pytest.mark.thorough
async def test_what_cannot_be_answered_is_400_and_named(journal: Journal, query: str, named: str):
    async with journal.served() as reading:
        for path in ("/books/b-1/lines", "/books/b-1/lines/stream"):
            answer = await reading.client.get(f"{path}?{query}")
            assert (answer.status_code, answer.json()["error"]) == (400, "bad_request"), answer.text
            assert named in answer.json()["details"]


@pytest.mark.contract("L5")
async def test_a_cursor_cut_off_at_its_number_sign_is_told_how_to_encode_it(journal: Journal):
    async with journal.served() as reading:
        answer = await reading.poll(afterCursor="2025-11-12T10:30:00.123Z")
        assert "%23" in answer.json()["message"]


@pytest.mark.contract("L8")
@pytest.mark.thorough
async def test_what_does_not_exist_is_404_after_the_permission_was_checked(journal: Journal):
    asked: list[str] = []

    async def exists(feed: Any, key: str) -> bool:
        asked.append(key)
        return key == "b-1"

    async with journal.served(journal.app(exists=exists)) as reading:
        assert (await reading.poll("b-1")).status_code == 200
        assert (await reading.poll("b-1")).status_code == 200
        answer = await reading.poll("b-2")
        assert (answer.status_code, answer.json()) == (404, {"error": "not_found", "message": "Book b-2 not found"})
        assert (await reading.poll("b-3", headers=journal.bearer("x", ["book:b-1:read"]))).status_code == 403
        for strange in ("%00", "b%0A1", "x" * 300, "%ED%A0%80"):
            assert (await reading.poll(strange)).status_code in (404, 400)
        assert asked[:2] == ["b-1", "b-2"], "what exists is not asked for again, and what cannot exist never"


@pytest.mark.contract("L9")
async def test_beyond_a_limit_it_is_429_and_says_when_to_come_back(journal: Journal):
    feed = journal_feed(journal.outbox, rates=(Rate("user", 3, 60), Rate("resource", 5, 60)))
    async with journal.served(journal.app(feed=feed)) as reading:
        for left in (2, 1, 0):
            answer = await reading.poll()
            assert answer.status_code == 200
            assert answer.headers["ratelimit"].startswith(f'"user";r={left};t=')
            assert answer.headers["ratelimit-policy"] == '"user";q=3;w=60, "resource";q=5;w=60'
        answer = await reading.poll(headers={"If-None-Match": answer.headers["etag"]})
        body = answer.json()
        assert (answer.status_code, body["error"]) == (429, "rate_limit_exceeded")
        assert body["message"] == "Too many requests. Limit: 3 per minute per user"
        assert body["retry_after"] == int(answer.headers["retry-after"]) > 0
        others = [(await reading.poll(headers=journal.bearer(f"user-{n}"))) for n in range(3)]
        assert [other.status_code for other in others] == [200, 200, 429]
        assert others[-1].json()["message"] == "Too many requests. Limit: 5 per minute per book"


async def test_a_feed_called_user_does_not_count_a_book_as_a_user(journal: Journal):
    feed = journal_feed(journal.outbox, name="user", rates=(Rate("user", 2, 60), Rate("resource", 2, 60)))
    async with journal.served(journal.app(feed=feed)) as reading:
        same_name = [await reading.poll("ada", headers=journal.bearer("ada")) for _ in range(3)]
        assert [answer.status_code for answer in same_name] == [200, 200, 429]


async def test_head_options_and_other_methods(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        got = await reading.poll()
        head = await reading.client.head("/books/b-1/lines")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
        assert head.headers["etag"] == got.headers["etag"]
        options = await reading.client.options("/books/b-1/lines")
        assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
        refused = await reading.client.delete("/books/b-1/lines")
        assert (refused.status_code, refused.json()["error"]) == (405, "method_not_allowed")
        nowhere = await reading.client.get("/books")
        assert (nowhere.status_code, nowhere.json()["error"]) == (404, "not_found")


async def test_a_full_page_behind_the_head_may_be_kept_for_ever(journal: Journal):
    await journal.write(*numbered(6))
    async with journal.served() as reading:
        page = await reading.poll(limit=6)
        assert page.headers["cache-control"] == "private, no-cache"
        first = cursor_of(page.json()["lines"][0])
        closed = await reading.poll(limit=2, afterCursor=first)
        assert closed.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert (closed.headers["vary"], closed.headers["x-has-more"]) == ("Authorization, X-User-Id", "true")
        assert closed.headers["x-total-count"] == "6"
        oldest = await reading.poll(limit=2, afterCursor="1970-01-01T00:00:00.000Z#000")
        assert oldest.headers["cache-control"] == "private, no-cache", "retention moves what is the oldest"
        last = await reading.poll(limit=5, afterCursor=first)
        assert (last.headers["cache-control"], last.headers["x-has-more"]) == ("private, no-cache", "false")


async def test_an_error_of_ours_is_500_and_tells_nothing_of_it(journal: Journal):
    async def exists(feed: Any, key: str) -> bool:
        raise RuntimeError("the password is hunter2")

    async with journal.served(journal.app(exists=exists)) as reading:
        for path in ("/books/b-1/lines", "/books/b-1/lines/stream"):
            answer = await reading.client.get(path)
            assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
            assert "hunter2" not in answer.text


async def test_a_long_poll_is_answered_when_a_line_comes(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        page = (await reading.poll()).json()
        waiting = asyncio.create_task(
            reading.poll(afterCursor=page["pagination"]["nextCursor"], headers={"Prefer": "wait=60"})
        )
        await until_waiting(reading, 1)
        await journal.write("two")
        answer = await waiting
        assert [line["text"] for line in answer.json()["lines"]] == ["two"]
        assert answer.headers["preference-applied"] == "wait=60"
        assert reading.app.streams.waiting == 0


async def test_a_request_without_cursor_and_tag_does_not_wait_and_does_not_say_so(journal: Journal):
    async with journal.served() as reading:
        asked = reading.poll(headers={"Prefer": "wait=60"})
        answer = await asyncio.wait_for(asked, 30)
        assert answer.status_code == 200
        assert "preference-applied" not in answer.headers


async def test_a_long_poll_with_a_tag_waits_for_what_matches_its_filters(journal: Journal):
    await journal.write("one", level="ERROR")
    async with journal.served() as reading:
        tag = (await reading.poll(minLevel="ERROR")).headers["etag"]
        waiting = asyncio.create_task(
            reading.poll(minLevel="ERROR", headers={"If-None-Match": tag, "Prefer": "wait=60"})
        )
        await until_waiting(reading, 1)
        await journal.write("chatter", level="DEBUG")
        await until_head(reading, 2)
        assert not waiting.done()
        await journal.write("two", level="ERROR")
        answer = await waiting
        assert [line["text"] for line in answer.json()["lines"]] == ["one", "two"]


@pytest.mark.thorough
async def test_a_long_poll_that_nothing_comes_for_is_304(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        tag = (await reading.poll()).headers["etag"]
        answer = await reading.poll(headers={"If-None-Match": tag, "Prefer": "wait=1"})
        assert (answer.status_code, answer.headers["preference-applied"]) == (304, "wait=1")


@pytest.mark.thorough
async def test_a_long_poll_that_only_others_came_for_says_how_far_was_looked(journal: Journal):
    await journal.write("one", level="ERROR")
    async with journal.served() as reading:
        cursor = (await reading.poll()).json()["pagination"]["nextCursor"]
        for number, seconds in ((2, 1), (3, 8), (4, 60)):
            asked = reading.poll(minLevel="ERROR", afterCursor=cursor, headers={"Prefer": f"wait={seconds}"})
            waiting = asyncio.create_task(asked)
            await until_waiting(reading, 1)
            await journal.write("chatter", level="DEBUG")
            await until_head(reading, number)
            # Otherwise it came too late, and to one that waits longer it may come in time.
            came_in_time = reading.app.streams.waiting == 1
            answer = await waiting
            assert answer.json()["lines"] == []
            assert answer.json()["pagination"]["nextCursor"] is None
            if came_in_time:
                assert answer.headers["x-next-cursor"].endswith(f"#{number:03d}")
                return
    raise AssertionError("nothing came in time")


@pytest.mark.thorough
async def test_many_long_polls_are_woken_together_and_cost_no_query(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        cursor = (await reading.poll()).json()["pagination"]["nextCursor"]
        questions = reading.app.hub.questions
        waiting = [
            asyncio.create_task(reading.poll(afterCursor=cursor, headers={"Prefer": "wait=60"})) for _ in range(30)
        ]
        await until_waiting(reading, 30)
        await journal.write("two")
        answers = await asyncio.gather(*waiting)
        assert {answer.json()["lines"][0]["text"] for answer in answers} == {"two"}
        assert reading.app.hub.questions == questions


async def test_a_shutdown_answers_long_polls_at_once(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        tag = (await reading.poll()).headers["etag"]
        waiting = asyncio.create_task(reading.poll(headers={"If-None-Match": tag, "Prefer": "wait=60"}))
        await until_waiting(reading, 1)
        reading.app.drain()
        assert (await waiting).status_code == 304


async def test_a_client_that_leaves_does_not_go_on_waiting(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        tag = (await reading.poll()).headers["etag"]
        waiting = asyncio.create_task(reading.poll(headers={"If-None-Match": tag, "Prefer": "wait=60"}))
        await until_waiting(reading, 1)
        waiting.cancel()
        await until_waiting(reading, 0)


async def test_a_feed_of_arrays_tells_its_cursor_in_a_header(journal: Journal):
    feed = journal_feed(
        journal.outbox,
        select=Everything(),
        cursor=POSITION,
        facets={},
        filters=(),
        permission=None,
        limits=Limits(default=2, least=1, most=10),
        wire=Wire(cursor="after_id", before="before_id", body=BareArray()),
    )
    await journal.write(*numbered(5))
    async with journal.served(journal.app(feed=feed, path="/all")) as reading:
        cursors, seen = ["0"], []
        while True:
            answer = await reading.client.get("/all", params={"after_id": cursors[-1]})
            seen += [line["text"] for line in answer.json()]
            if "x-next-cursor" not in answer.headers:
                break
            cursors.append(answer.headers["x-next-cursor"])
        assert seen == list(numbered(5))
        assert cursors == ["0", "2", "4", "5"]
        back, seen = ["5"], []
        while True:
            answer = await reading.client.get("/all", params={"before_id": back[-1]})
            seen = [line["text"] for line in answer.json()] + seen
            if "x-previous-cursor" not in answer.headers:
                break
            back.append(answer.headers["x-previous-cursor"])
        assert seen == list(numbered(4))
        assert back == ["5", "3"]


@pytest.mark.thorough
async def test_while_lines_are_written_no_walk_misses_or_repeats_one(journal: Journal):
    """Walks with tags and without, of different sizes, through two servers in turn."""
    total = 200

    async def write() -> None:
        for begin in range(1, total, 10):
            journal.publish(*(LineWritten("b-1", text) for text in numbered(10, begin)))
            await asyncio.sleep(0)

    async def walk(readings: list[Reading], limit: int) -> list[int]:
        cursor, tag, turn = "1970-01-01T00:00:00.000Z#000", "", 0
        seen: list[int] = []
        async with asyncio.timeout(240):
            while len(seen) < total:
                turn += 1
                answer = await readings[turn % 2].poll(
                    limit=limit, afterCursor=cursor, headers={"If-None-Match": tag} if tag else {}
                )
                assert answer.status_code in (200, 304), answer.text
                if answer.status_code == 200:
                    tag = answer.headers["etag"]
                    seen += [line["seq"] for line in answer.json()["lines"]]
                    cursor = answer.json()["pagination"]["nextCursor"] or cursor
        return seen

    async with journal.served() as one, journal.served(journal.app()) as other:
        _, *walks = await asyncio.gather(write(), *(walk([one, other], limit) for limit in (1, 7, 100)))
    for seen in walks:
        assert seen == list(range(1, total + 1))
        assert all(later == earlier + 1 for earlier, later in pairwise(seen))


def cursor_of(line: dict[str, Any]) -> str:
    return f"{line['ts']}#{line['seq']:03d}"


async def until_head(reading: Reading, number: int) -> None:
    """Until the server has seen the line of this number."""
    strand = await reading.app.hub.strand(reading.app.hub.feeds[0], "b-1")
    await until(lambda: strand.head >= number)


async def until_waiting(reading: Reading, count: int) -> None:
    """Until so many polls wait."""
    await until(lambda: reading.app.streams.waiting == count)


async def test_while_the_database_is_away_it_is_503_and_what_is_known_is_served(journal: Journal):
    async with AsyncExitStack() as network:
        proxy = await network.enter_async_context(FaultProxy(journal.dsn))
        reading = await network.enter_async_context(journal.served(journal.app(database=Database(proxy.dsn))))
        tag = (await reading.poll()).headers["etag"]
        await proxy.__aexit__(None, None, None)
        assert (await reading.poll(headers={"If-None-Match": tag})).status_code == 304
        answer = await reading.poll("b-2")
        assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert "postgres" not in answer.text.lower()
