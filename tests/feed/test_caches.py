"""Nothing that was answered to one reader reaches another: tags, caches of browsers and proxies, cookies."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from aftercommit.access import Permissions, Reader
from aftercommit.errors import DeclarationError, Unauthorized
from aftercommit.feed import POSITION, PagedBody, Wire, service
from aftercommit.feed.app import FeedApp
from tests.feed.journal import Journal, journal_feed, numbered, until
from tests.feed.test_examples import block

pytestmark = pytest.mark.contract("E3")

CLOSED = {"afterCursor": 1, "limit": 2}
FOR_GOOD = "private, max-age=31536000, immutable"
SESSIONS = {"s-ada": "ada", "s-bob": "bob"}


def cookie_access() -> Any:
    """The one that the guide shows."""
    namespace: dict[str, Any] = {}
    exec(compile(block("docs/guides/security.md", "class Sessions"), "security.md", "exec"), namespace)  # noqa: S102 - our own page
    namespace["user_of_session"] = lambda session: SESSIONS.get(session)
    return namespace["Sessions"]()


class Silent:
    """An access that does not say by what it knows readers: here by a header that nobody would think of."""

    async def reader(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        if "x-badge" not in headers:
            raise Unauthorized("no badge")
        return Reader(headers["x-badge"], Permissions())

    def still_valid(self, reader: Reader) -> bool:
        return True


def own_lines(journal: Journal, access: Any) -> FeedApp:
    """Everybody reads the book that has their name, all at the same address."""
    wire = Wire(body=PagedBody("lines"), event_name="line")
    feed = journal_feed(journal.outbox, cursor=POSITION, permission=None, wire=wire)
    return journal.app(access, feed, path="/mine")


async def two_books(journal: Journal) -> None:
    await journal.write(*(f"ada {number}" for number in range(1, 6)), book="ada")
    await journal.write(*(f"bob {number}" for number in range(1, 6)), book="bob")


def texts(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [line["text"] for line in answer.json()["lines"]]


@pytest.mark.thorough
async def test_a_tag_of_one_reader_is_never_answered_304_to_another(journal: Journal):
    await two_books(journal)
    await journal.write(*numbered(5), book="shared")
    shared = journal_feed(journal.outbox, cursor=POSITION, permission=None, name="shared", wire=Wire())
    for access, header, values in (
        (cookie_access(), "Cookie", ("session=s-ada", "session=s-bob")),
        (Silent(), "X-Badge", ("ada", "bob")),
    ):
        for app in (own_lines(journal, access), journal.app(access, shared, path="/books/{book}")):
            path = next(iter(app.feeds)).replace("{book}", "shared")
            async with journal.served(app) as reading:
                ada, bob = ({header: value, "Authorization": ""} for value in values)
                for asked in (CLOSED, {}, {"beforeCursor": 5, "limit": 2}):
                    tag = (await reading.client.get(path, params=asked, headers=ada)).headers["etag"]
                    again = await reading.client.get(path, params=asked, headers={**ada, "If-None-Match": tag})
                    other = await reading.client.get(path, params=asked, headers={**bob, "If-None-Match": tag})
                    assert (again.status_code, other.status_code) == (304, 200)


@pytest.mark.thorough
async def test_an_answer_to_a_cookie_is_asked_for_again_each_time(journal: Journal):
    await two_books(journal)
    async with journal.served(own_lines(journal, cookie_access())) as reading:
        # Also beside a bearer token, which this access does not look at.
        for more in ({"Authorization": ""}, {}):
            answer = await reading.client.get("/mine", params=CLOSED, headers={"Cookie": "session=s-ada", **more})
            assert texts(answer) == ["ada 2", "ada 3"]
            assert (answer.headers["cache-control"], answer.headers["vary"]) == ("private, no-cache", "Cookie")
        async with reading.client.stream("GET", "/mine/stream", headers={"Cookie": "session=s-ada"}) as stream:
            assert stream.headers["cache-control"] == "private, no-cache, no-transform"
            assert stream.headers["vary"] == "Cookie"
        refused = await reading.client.get("/mine", headers={"Cookie": "session=nobody"})
        assert (refused.status_code, refused.headers["cache-control"]) == (401, "no-store")


async def test_metrics_are_for_readers_of_any_access(journal: Journal):
    """Also for one that does not go by the Authorization header."""
    app = journal.app()
    async with journal.served(app, service(app, metrics_for=[cookie_access()])) as reading:
        answers = [
            await reading.client.get("/metrics", headers={"Cookie": f"session={session}"})
            for session in ("s-ada", "nobody")
        ]
    # The reader is known, and may not read metrics; the other one is not known.
    assert [answer.status_code for answer in answers] == [403, 401]


async def test_nothing_is_stored_of_an_access_that_does_not_say_by_what_it_knows_readers(journal: Journal):
    await two_books(journal)
    async with journal.served(own_lines(journal, Silent())) as reading:
        ada = {"X-Badge": "ada"}
        for asked in (CLOSED, {}, {"beforeCursor": 5, "limit": 2}):
            page = await reading.client.get("/mine", params=asked, headers=ada)
            unchanged = await reading.client.get(
                "/mine", params=asked, headers={**ada, "If-None-Match": page.headers["etag"]}
            )
            for answer, status in ((page, 200), (unchanged, 304)):
                assert answer.status_code == status
                assert (answer.headers["cache-control"], answer.headers["vary"]) == ("private, no-store", "*")
        async with reading.client.stream("GET", "/mine/stream", headers=ada) as stream:
            assert stream.headers["cache-control"] == "private, no-store, no-transform"


async def test_a_bearer_token_may_keep_a_page_that_never_changes(journal: Journal):
    await two_books(journal)
    async with journal.served(own_lines(journal, None)) as reading:
        closed = await reading.client.get("/mine", params=CLOSED)
        assert texts(closed) == ["ada 2", "ada 3"]
        assert (closed.headers["cache-control"], closed.headers["vary"]) == (FOR_GOOD, "Authorization, X-User-Id")


@pytest.mark.parametrize("vary", ["Cookie", ("Coo kie",), ("X\r\nY",), (1, 2)])
async def test_what_is_no_list_of_headers_is_refused_when_the_application_is_made(journal: Journal, vary: Any):
    access = Silent()
    access.vary = vary  # type: ignore[attr-defined]
    with pytest.raises(DeclarationError, match="must list header names"):
        own_lines(journal, access)


@asynccontextmanager
async def caching_proxy(folder: Path, server: str, port: int) -> AsyncIterator[str]:
    """An nginx that keeps also what is private, and says whether it had it. It still obeys `Vary`."""
    (folder / "nginx.conf").write_text(
        f"""daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
        events {{}}
        http {{
          proxy_cache_path {folder}/cache keys_zone=all:1m;
          access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
          uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
          server {{ listen 127.0.0.1:{port}; location / {{
            proxy_pass {server}; proxy_cache all; proxy_cache_valid 200 1h; proxy_ignore_headers Cache-Control;
            add_header X-Cache $upstream_cache_status always;
          }} }}
        }}"""
    )
    command = ["/usr/sbin/nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    process = await asyncio.to_thread(subprocess.Popen, command)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url) as asking:

            async def listens() -> bool:
                try:
                    return (await asking.get("/mine")).status_code == 401
                except httpx.TransportError:
                    return False

            await until(listens)
        yield url
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


@pytest.mark.needs("nginx")
async def test_a_caching_proxy_hands_nobody_the_page_of_another(journal: Journal, tmp_path: Path, unused_tcp_port: int):
    await two_books(journal)
    badges = [journal.bearer(user)["Authorization"] for user in ("ada", "bob")]
    for number, (access, header, values, kept) in enumerate(
        (
            (None, "Authorization", badges, "HIT"),
            (cookie_access(), "Cookie", ["session=s-ada", "session=s-bob"], "HIT"),
            (Silent(), "X-Badge", ["ada", "bob"], "MISS"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with (
            journal.served(own_lines(journal, access)) as reading,
            caching_proxy(folder, reading.server.url, unused_tcp_port) as proxy,
            httpx.AsyncClient(base_url=proxy) as client,
        ):
            had = []
            for name, value in zip(("ada", "bob", "ada"), (*values, values[0]), strict=True):
                answer = await client.get("/mine", params=CLOSED, headers={header: value})
                assert {text.split()[0] for text in texts(answer)} == {name}
                had.append(answer.headers["x-cache"])
            assert had == ["MISS", "MISS", kept]
