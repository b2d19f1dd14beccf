"""Pages before a cursor and from a time on: what they hold, what their tags cover, what is refused."""

import psycopg
import pytest

from tests.feed.journal import Journal, numbered
from tests.feed.test_polling import cursor_of, until_head


@pytest.mark.contract("L3", "L5")
async def test_back_from_a_cursor_come_the_lines_right_before_it(journal: Journal):
    await journal.write(*numbered(7))
    async with journal.served() as reading:
        newest = (await reading.poll(limit=7)).json()["lines"]
        last, third = cursor_of(newest[-1]), cursor_of(newest[2])
        page = (await reading.poll(limit=4, beforeCursor=last)).json()
        assert [line["seq"] for line in page["lines"]] == [3, 4, 5, 6]
        assert page["pagination"] == {
            "afterCursor": None,
            "nextCursor": None,
            "beforeCursor": last,
            "previousCursor": third,
            "hasMore": True,
            "limit": 4,
            "returned": 4,
        }
        answer = await reading.poll(limit=4, beforeCursor=third)
        assert [line["seq"] for line in answer.json()["lines"]] == [1, 2]
        assert (answer.json()["pagination"]["previousCursor"], answer.headers["x-has-more"]) == (None, "false")
        first = await reading.poll(limit=4, beforeCursor="1970-01-01T00:00:00.000Z#000")
        assert (first.json()["lines"], first.json()["pagination"]["previousCursor"]) == ([], None)


@pytest.mark.contract("L6")
@pytest.mark.thorough
async def test_a_page_that_was_read_back_is_the_same_whatever_comes_and_its_tag_says_so(journal: Journal):
    await journal.write(*numbered(6))
    async with journal.served() as reading:
        lines = (await reading.poll(limit=6)).json()["lines"]
        fifth = cursor_of(lines[4])
        full = await reading.poll(limit=4, beforeCursor=fifth)
        assert full.headers["cache-control"] == "private, max-age=31536000, immutable"
        assert full.headers["vary"] == "Authorization, X-User-Id"
        short = await reading.poll(limit=5, beforeCursor=fifth)
        assert short.headers["cache-control"] == "private, no-cache"
        await journal.write("new")
        await until_head(reading, 7)
        questions = reading.app.hub.questions
        for limit, page in ((4, full), (5, short)):
            held = {"If-None-Match": page.headers["etag"]}
            answer = await reading.poll(limit=limit, beforeCursor=fifth, headers=held)
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", page.headers["etag"])
        assert reading.app.hub.questions == questions
        # No other page is hidden by it: not the one after the same cursor, nor that of somebody else.
        held = {"If-None-Match": full.headers["etag"]}
        assert (await reading.poll(limit=4, afterCursor=fifth, headers=held)).status_code == 200
        assert (await reading.poll(limit=5, beforeCursor=fifth, headers=held)).status_code == 200
        assert (await reading.poll(limit=4, minLevel="WARN", beforeCursor=fifth, headers=held)).status_code == 200
        assert (await reading.poll(limit=4, beforeCursor=cursor_of(lines[5]), headers=held)).status_code == 200
        grace = journal.bearer("grace", ["book:b-1:read"])
        assert (await reading.poll(limit=4, beforeCursor=fifth, headers={**held, **grace})).status_code == 200
        stranger = journal.bearer("eve", ["book:b-2:read"])
        assert (await reading.poll(limit=4, beforeCursor=fifth, headers={**held, **stranger})).status_code == 403


async def test_a_cursor_of_another_life_is_gone_backwards_too(journal: Journal):
    await journal.write(*numbered(3))
    async with journal.served() as reading:
        for foreign in ("2001-01-01T00:00:00.000Z#002", "2125-01-01T00:00:00.000Z#900"):
            answer = await reading.poll(beforeCursor=foreign)
            assert (answer.status_code, answer.json()["details"]["reason"]) == (410, "epoch")


@pytest.mark.contract("L3", "L5")
async def test_from_a_time_on_come_the_lines_of_then_and_reading_goes_on_from_there(journal: Journal):
    await journal.write(*numbered(5))
    with psycopg.connect(journal.dsn) as connection:
        # Each a millisecond of its own, which is as fine as a client can ask.
        connection.execute("update journal.log set ts = ts + stream_seq * interval '1 millisecond'")
    async with journal.served() as reading:
        lines = (await reading.poll()).json()["lines"]
        assert len({line["ts"] for line in lines}) == 5
        page = (await reading.poll(limit=2, fromTime=lines[2]["ts"])).json()
        assert [line["seq"] for line in page["lines"]] == [3, 4]
        assert page["pagination"]["afterCursor"] == cursor_of(lines[1])
        assert page["pagination"]["nextCursor"] == cursor_of(lines[3])
        assert await reading.texts(afterCursor=page["pagination"]["nextCursor"]) == ["line 5"]
        assert await reading.texts(fromTime="2001-01-01T00:00:00+01:00") == list(numbered(5))
        assert await reading.texts(fromTime=lines[2]["ts"], minLevel="WARN") == []
        future = await reading.poll(fromTime="2125-01-01T00:00Z", headers={"Prefer": "wait=20"})
        assert future.json()["lines"] == []
        assert future.json()["pagination"]["afterCursor"] == cursor_of(lines[4])
        assert "preference-applied" not in future.headers
        full = await reading.poll(limit=2, fromTime=lines[1]["ts"])
        assert full.headers["cache-control"] == "private, max-age=31536000, immutable"


@pytest.mark.contract("L6")
async def test_a_304_for_a_time_hides_no_line_that_came_since(journal: Journal):
    await journal.write("one")
    async with journal.served() as reading:
        tag = (await reading.poll(fromTime="2001-01-01T00:00:00Z")).headers["etag"]
        held = {"If-None-Match": tag}
        assert (await reading.poll(fromTime="2001-01-01T00:00:00Z", headers=held)).status_code == 304
        await journal.write("two")
        await until_head(reading, 2)
        answer = await reading.poll(fromTime="2001-01-01T00:00:00Z", headers=held)
        assert [line["text"] for line in answer.json()["lines"]] == ["one", "two"]


@pytest.mark.contract("L1")
@pytest.mark.parametrize(
    ("query", "named", "said"),
    [
        ("beforeCursor=", "cursor", "expected 'timestamp#seq'"),
        ("beforeCursor=2025-11-12T10:30:00.123Z", "cursor", "%23"),
        ("fromTime=yesterday", "fromTime", "2025-11-12T10:30:05.123Z"),
        ("fromTime=2025-11-12T10:30:00", "fromTime", "with Z or an offset"),
        ("fromTime=2025-11-12T10:30:00+01:00", "fromTime", "%2B"),
        ("fromTime=2025-13-12T10:30:00Z", "fromTime", "is not a valid time"),
        ("fromTime=0001-01-01T00:00:00%2B10:00", "fromTime", "is not a valid time"),
        ("fromTime=2025-11-12", "fromTime", "must be a time"),
        ("beforeCursor=x&afterCursor=y", "parameter", "give one of afterCursor, beforeCursor, fromTime"),
        ("fromTime=2025-11-12T10:30:00Z&beforeCursor=y", "parameter", "cannot be combined"),
        ("fromTime=2025-11-12T10:30:00Z&afterCursor=y", "parameter", "cannot be combined"),
    ],
)
@pytest.mark.thorough
async def test_what_cannot_be_read_back_is_400_and_named(journal: Journal, query: str, named: str, said: str):
    async with journal.served() as reading:
        answer = await reading.client.get(f"/books/b-1/lines?{query}")
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request"), answer.text
        assert named in answer.json()["details"]
        assert said in answer.json()["message"]


async def test_a_stream_goes_on_only(journal: Journal):
    async with journal.served() as reading:
        for query in ("beforeCursor=1970-01-01T00:00:00.000Z%23000", "fromTime=2025-11-12T10:30:00Z"):
            answer = await reading.client.get(f"/books/b-1/lines/stream?{query}")
            assert (answer.status_code, answer.json()["details"]) == (400, {"parameter": query.partition("=")[0]})
