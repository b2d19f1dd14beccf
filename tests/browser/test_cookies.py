"""Readers who are known by a cookie, in one browser: nobody gets what the browser kept of somebody else's answers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from aftercommit.testing.postgres import PostgresServerForTests
from tests.feed.conftest import journal_dsn
from tests.feed.journal import Journal
from tests.feed.test_caches import CLOSED, Silent, cookie_access, own_lines, two_books

__all__ = ["journal_dsn"]
pytestmark = [pytest.mark.contract("E3"), pytest.mark.needs("chromium")]

SECONDS = 60.0
# As any page would ask: with the browser's own cache.
ASK = """async ([query, headers]) => {
    const answer = await fetch("/mine?" + query, {headers});
    const body = await answer.json();
    return {status: answer.status, texts: (body.lines ?? []).map((line) => line.text)};
}"""


@contextmanager
def served(dsn: str, access: Any) -> Iterator[str]:
    """A server in a thread of its own: Playwright has the loop of this one."""
    ready: list[str] = []
    there, over = threading.Event(), threading.Event()

    async def serve() -> None:
        journal = Journal(dsn)
        async with journal.relay, journal.served(own_lines(journal, access)) as reading:
            await two_books(journal)
            ready.append(reading.server.url)
            there.set()
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            there.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert there.wait(SECONDS)
        assert ready, "the server did not begin"
        yield ready[0]
    finally:
        over.set()
        thread.join(SECONDS)


def asked(page: Page, query: str, **headers: str) -> tuple[int, list[str]]:
    answer = page.evaluate(ASK, [query, headers])
    return answer["status"], answer["texts"]


@pytest.mark.parametrize("identity", ["cookie", "unsaid"])
def test_whoever_logs_in_next_gets_their_own_page_at_the_same_address(
    chromium: Browser, postgres_server: PostgresServerForTests, journal_dsn: str, identity: str
):
    by_cookie = identity == "cookie"
    closed = "&".join(f"{name}={value}" for name, value in CLOSED.items())
    with ExitStack() as stack:
        url = stack.enter_context(served(journal_dsn, cookie_access() if by_cookie else Silent()))
        context = chromium.new_context()
        stack.callback(context.close)
        page = context.new_page()
        # Any page of this origin will do.
        page.goto(f"{url}/docs")
        for query, last in ((closed, 3), ("limit=2", 5)):
            for user in ("ada", "bob", "ada"):
                context.clear_cookies()
                context.add_cookies([{"name": "session", "value": f"s-{user}", "url": url}] if by_cookie else [])
                headers = {} if by_cookie else {"X-Badge": user}
                assert asked(page, query, **headers) == (200, [f"{user} {last - 1}", f"{user} {last}"])
        # After a logout nothing is left to be shown.
        context.clear_cookies()
        assert asked(page, closed) == (401, [])
