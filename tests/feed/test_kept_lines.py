"""Lines that a server keeps, in pages, rings and history: new rules, an erasure and lost permissions reach them."""

from typing import Any

import psycopg
import pytest

from aftercommit.feed.strands.hub import HubSettings
from tests.feed.journal import SCHEMA, Journal, Reading, journal_feed, numbered

FROM_HISTORY = HubSettings(ring_bytes=1)
IN_MEMORY = HubSettings()


class Rules:
    """Redaction whose rules change while the server runs."""

    def __init__(self) -> None:
        self.hidden = ""

    @property
    def version(self) -> str:
        return self.hidden

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return value
        hidden = self.hidden and self.hidden in value["text"]
        return {**value, "text": "[redacted]" if hidden else value["text"]}


async def everything(reading: Reading) -> list[str]:
    """All lines, by cursors from the first one on."""
    return await reading.texts(afterCursor="1970-01-01T00:00:00.000Z#000", limit=10)


@pytest.mark.contract("L6", "L10")
@pytest.mark.parametrize("hub", [FROM_HISTORY, IN_MEMORY], ids=["from history", "in memory"])
async def test_new_rules_reach_old_lines_and_their_tag_at_once(journal: Journal, hub: HubSettings):
    rules = Rules()
    await journal.write(*numbered(3))
    app = journal.app(feed=journal_feed(journal.outbox, redactor=rules), hub=hub)
    async with journal.served(app) as reading:
        before = await reading.poll()
        for _ in range(2):
            assert await everything(reading) == ["line 1", "line 2", "line 3"]
        assert (await reading.poll(headers={"If-None-Match": before.headers["etag"]})).status_code == 304

        rules.hidden = "line 2"

        after = await reading.poll(headers={"If-None-Match": before.headers["etag"]})
        assert after.status_code == 200
        assert after.headers["etag"] != before.headers["etag"]
        assert [line["text"] for line in after.json()["lines"]] == ["line 1", "[redacted]", "line 3"]
        assert await everything(reading) == ["line 1", "[redacted]", "line 3"]


@pytest.mark.contract("L10")
async def test_a_line_that_was_erased_is_in_no_page_of_history(journal: Journal):
    await journal.write(*numbered(3))
    async with journal.served(journal.app(hub=FROM_HISTORY)) as reading:
        assert await everything(reading) == ["line 1", "line 2", "line 3"]
        with psycopg.connect(journal.dsn, autocommit=True) as connection:
            # An operator blanks one text and deletes another line.
            connection.execute(
                f"""update {SCHEMA}.log set payload = '{{"book_id": "b-1", "text": "erased"}}' where stream_seq = 1"""
            )
            connection.execute(f"delete from {SCHEMA}.log where stream_seq = 2")
        # Another limit, because the page itself stays the same for its tag.
        assert await reading.texts(afterCursor="1970-01-01T00:00:00.000Z#000", limit=9) == ["erased", "line 3"]


@pytest.mark.contract("L7")
@pytest.mark.parametrize("hub", [FROM_HISTORY, IN_MEMORY], ids=["from history", "in memory"])
async def test_a_kept_page_is_for_nobody_without_its_permission(journal: Journal, hub: HubSettings):
    await journal.write(*numbered(3))
    async with journal.served(journal.app(hub=hub)) as reading:
        tag = (await reading.poll()).headers["etag"]
        assert await everything(reading) == ["line 1", "line 2", "line 3"]

        stranger = journal.bearer("ada", ["book:b-2:read"])
        for headers in (stranger, {**stranger, "If-None-Match": tag}):
            refused = await reading.poll(headers=headers)
            assert refused.status_code == 403
            assert "line 1" not in refused.text
        fewer = journal.bearer("ada", ["book:b-1:read"])
        assert (await reading.poll(headers={**fewer, "If-None-Match": tag})).status_code == 200
