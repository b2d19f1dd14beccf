"""OpenAPI from the declarations, and the page that shows it."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aftercommit.errors import DeclarationError
from aftercommit.feed import Feed
from aftercommit.feed.app import pages
from aftercommit.feed.app.openapi import document
from aftercommit.feed.app.service import service
from systems.investigations.feeds import logs
from systems.tasks.feeds import events as task_events
from tests.feed.journal import PATH, Journal, numbered
from tools import web


async def test_every_parameter_and_answer_of_a_feed_is_described(journal: Journal):
    described = journal.app().openapi(title="Journal")
    assert described["openapi"] == "3.1.0"
    assert set(described["paths"]) == {PATH, f"{PATH}/stream"}
    poll, stream = (described["paths"][path]["get"] for path in (PATH, f"{PATH}/stream"))
    names = {(each["in"], each["name"]) for each in poll["parameters"]}
    assert names >= {
        ("path", "book_id"),
        ("query", "afterCursor"),
        ("query", "limit"),
        ("query", "minLevel"),
        ("query", "author"),
        ("header", "If-None-Match"),
        ("header", "Prefer"),
    }
    assert ("header", "Last-Event-ID") in {(each["in"], each["name"]) for each in stream["parameters"]}
    assert set(poll["responses"]) == {"200", "304", "400", "401", "403", "404", "410", "429", "503"}
    assert set(stream["responses"]) == {"200", "400", "401", "403", "404", "429", "503"}


async def test_answers_are_as_they_are_described(journal: Journal):
    await journal.write(*numbered(3))
    async with journal.served() as reading:
        described = (await reading.client.get("/openapi.json")).json()
        answers = described["paths"][PATH]["get"]["responses"]
        schema = answers["200"]["content"]["application/json"]["schema"]
        headers = {name.lower() for name in answers["200"]["headers"]}
        met: set[str] = set()
        for parameters in ({}, {"limit": 1}, {"minLevel": "ERROR"}):
            answer = await reading.poll(headers={"Prefer": "wait=1", "If-None-Match": '"another"'}, **parameters)
            jsonschema.validate(answer.json(), schema)
            ours = {name for name in answer.headers if name.startswith(("x-", "etag", "ratelimit", "preference"))}
            assert ours <= headers
            met |= ours
        # In the body of a page, and so in no header of this feed; and what only a log that was restored has.
        assert headers - met == {"x-previous-cursor", "x-never-given"}
        refused = await reading.poll(limit="x")
        jsonschema.validate(refused.json(), described["components"]["schemas"]["Error"])


async def test_the_page_and_its_parts_are_served_from_here(journal: Journal):
    web.build()
    app = journal.app()
    for outer in (None, service(journal.app())):
        async with journal.served(app if outer is None else journal.app(), outer) as reading:
            reading.client.headers.pop("Authorization")
            page = await reading.client.get("/docs")
            assert page.headers["content-type"].startswith("text/html")
            policy = page.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
            assert {part.partition("?")[0] for part in parts} == {
                "docs-theme.js",
                "docs.css",
                "docs.js",
                "favicon.ico",
                "openapi.json",
            }
            for part in parts:
                answer = await reading.client.get(f"/{part}")
                assert answer.status_code == 200
                assert ("immutable" in answer.headers["cache-control"]) == ("?" in part)


async def test_a_page_that_is_not_built_says_what_to_do(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pages, "files", lambda package: tmp_path)
    async with journal.served() as reading:
        page = await reading.client.get("/docs")
        assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
        assert "run <code>make web</code>" in page.text
        assert "<a href=openapi.json>" in page.text
        assert (await reading.client.get("/openapi.json")).status_code == 200


def test_other_paths_stand_beside_the_feeds(journal_dsn: str):
    journal = Journal(journal_dsn)
    more = {PATH: {"post": {"summary": "write"}}, "/x": {"get": {"summary": "x"}}}
    described = document({PATH: journal.feed}, title="Journal", more=more, server="https://example.com/api")
    assert set(described["paths"][PATH]) == {"get", "post"}
    assert "/x" in described["paths"]
    assert described["servers"] == [{"url": "https://example.com/api"}]


@pytest.mark.parametrize("path", ["", "books", "/books/{a}/{b}", "/books/{}", "/bo oks", "/books/", "/{a:path}"])
def test_a_path_that_cannot_be_served_is_refused(journal_dsn: str, path: str):
    with pytest.raises(DeclarationError, match="not a valid path for a feed"):
        Journal(journal_dsn).app(path=path)


def test_a_cursor_that_is_a_number_is_described_as_one() -> None:
    described = parameters_of(task_events, "/tasks/me/events")
    assert described["after_id"]["schema"] == {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    assert described["after_id"]["example"] == 42
    either = described["before_id"]["schema"]["oneOf"]
    assert either == [described["after_id"]["schema"], {"type": "string", "const": "end"}]
    # An array has no pagination.
    assert "previousCursor" not in described["before_id"]["description"]
    assert "X-Previous-Cursor" in described["before_id"]["description"]
    assert "before_id" in described["after_id"]["description"]


def test_a_cursor_that_is_a_text_is_described_by_its_pattern() -> None:
    described = parameters_of(logs, "/investigations/{investigation_id}/logs")
    assert described["afterCursor"]["schema"]["type"] == "string"
    assert "previousCursor" in described["beforeCursor"]["description"]


def parameters_of(feed: Feed, path: str) -> dict[str, Any]:
    operation = document({path: feed}, title="x")["paths"][path]["get"]
    return {each["name"]: each for each in operation["parameters"]}
