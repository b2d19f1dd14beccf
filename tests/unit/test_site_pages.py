"""Who is handed the tokens of sample users, and what people get at addresses of programs and at none at all."""

from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from aftercommit.http.accept import prefers_html
from aftercommit.http.asgi import Message, Receive, Scope, Send
from systems.host.browser_pages import PagesForPeople
from systems.host.pages import is_local
from systems.site import SYSTEMS


@pytest.mark.parametrize(
    ("client", "host", "local"),
    [
        (("127.0.0.1", 5), "127.0.0.1:8090", True),
        (("::1", 5), "[::1]:8090", True),
        (("127.0.0.1", 5), "example.org", False),
        (("192.0.2.7", 5), "localhost", False),
        (("testclient", 5), "localhost", False),
        (("/run/site.socket", None), "localhost", False),
        (("", 0), "localhost", False),
        (None, "localhost", False),
    ],
)
def test_only_a_loopback_address_and_name_are_this_machine(
    client: tuple[str, int | None] | None, host: str, local: bool
) -> None:
    request = Request({"type": "http", "client": client, "headers": [(b"host", host.encode())]})
    assert is_local(request) is local


CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
SAFARI = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        (CHROMIUM, True),
        (SAFARI, True),
        ("text/html", True),
        ("Text/HTML;Q=0.5, application/json;q=0.4", True),
        ("text/*", True),
        ("text/html;level=1, */*;q=0.1", True),
        ("text/html;q=0.5, text/html", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html;q=0.9", False),
        ("application/json, text/plain, */*", False),
        ("text/html, application/json", False),
        ("text/html, */*", False),
        ("text/html;q=0", False),
        ("text/html;q=0, */*;q=0.5", False),
        ("text/html;q=2", False),
        ("text/html;q=", False),
        ("text/event-stream", False),
        ("text/*;q=0.4, application/*;q=0.5", False),
    ],
)
def test_a_page_is_for_those_who_would_rather_have_html_than_json(accept: str, page: bool) -> None:
    assert prefers_html(accept) is page


@given(st.text(max_size=60), st.sampled_from(["", "text/html;q=", "text/html,"]))
def test_whatever_an_accept_header_says_there_is_an_answer(text: str, before: str) -> None:
    assert prefers_html(before + text) in (True, False)


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/tasks", "/tasks/board"),
        ("/tasks/", "/tasks/board"),
        ("/tasks/17", "/tasks/board/17"),
        ("/investigations", "/"),
        ("/api/v1/investigations", "/"),
        ("/api/v1/investigations/INV 1", "/investigations/INV%201"),
        ("/api/v1/investigations/INV-1/", "/investigations/INV-1"),
    ],
)
async def test_people_who_type_an_address_of_programs_are_led_to_the_page_that_they_mean(path: str, page: str) -> None:
    for prefix, root in (("", ""), ("/a b", "/a%20b")):
        for method in ("GET", "HEAD"):
            led = await _asked(prefix, method, {"accept": CHROMIUM}, path)
            assert (led.status_code, led.headers["location"]) == (303, root + page)
            assert (led.headers["vary"], led.headers["cache-control"]) == ("Accept", "no-store")
        for accept in ("*/*", "application/json", ""):
            told = await _asked(prefix, "GET", {"accept": accept}, path)
            assert (told.status_code, told.text) == (404, "gone, for programs")
            assert told.headers["vary"] == "X-User-Id, Accept", "a cache must not hand one the answer of the other"
    posted = await _asked("", "POST", {"accept": CHROMIUM}, path)
    assert (posted.text, posted.headers["vary"]) == ("gone, for programs", "X-User-Id")


@pytest.mark.parametrize(
    "path", ["/tasks/me", "/tasks/board", "/tasks/board/17", "/tasks/me/events", "/investigations/INV-1", "/docs", "/"]
)
async def test_no_other_address_leads_elsewhere(path: str) -> None:
    assert (await _asked("", "GET", {"accept": CHROMIUM}, path)).status_code == 404
    assert (await _asked("", "GET", {"accept": "*/*"}, path)).headers["vary"] == "X-User-Id"


async def test_who_is_led_to_nothing_gets_a_page_that_leads_to_the_root_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "missing.html").write_text('<a href="{root}">home</a><a href="{root}docs">API</a>')
    monkeypatch.setattr("systems.host.browser_pages.WEB", tmp_path)
    browser = {"accept": "text/html,application/xhtml+xml"}
    for prefix, root in (("", "/"), ("/a b", "/a%20b/")):
        answer = await _asked(prefix, "GET", browser)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert answer.headers["vary"] == "Accept"
        assert answer.text == f'<a href="{root}">home</a><a href="{root}docs">API</a>'
    assert (await _asked("", "HEAD", browser)).text == ""
    for method, headers in (("GET", {"accept": "*/*"}), ("GET", {}), ("POST", browser)):
        assert (await _asked("", method, headers)).text == "gone, for programs"


async def test_who_is_led_to_an_address_that_asks_for_a_token_gets_a_page_that_leads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "programs.html").write_text('<a href="{root}">home</a>')
    monkeypatch.setattr("systems.host.browser_pages.WEB", tmp_path)
    page = await _asked("", "GET", {"accept": CHROMIUM}, "/tasks/me", status=401)
    assert (page.status_code, page.text, page.headers["vary"]) == (401, '<a href="/">home</a>', "Accept")
    assert page.headers["www-authenticate"] == "Bearer"
    program = await _asked("", "GET", {"accept": "*/*"}, "/tasks/me", status=401)
    assert (program.status_code, program.text) == (401, "gone, for programs")
    assert (await _asked("", "GET", {"accept": CHROMIUM}, "/tasks/me", status=403)).text == "gone, for programs"


async def test_without_built_pages_the_error_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systems.host.browser_pages.WEB", tmp_path)
    assert (await _asked("", "GET", {"accept": "text/html"})).text == "gone, for programs"


async def test_an_answer_without_any_headers_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def bare(scope: Scope, receive: Receive, send: Send) -> None:
        # A server takes them to be none.
        await send({"type": "http.response.start", "status": 401})
        await send({"type": "http.response.body", "body": b"who?"})

    (tmp_path / "programs.html").write_text("home")
    monkeypatch.setattr("systems.host.browser_pages.WEB", tmp_path)
    for path, accept, text in (("/tasks/me", CHROMIUM, "home"), ("/tasks", "*/*", "who?")):
        sent: list[Message] = []

        async def take(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"accept", accept.encode())]}
        await PagesForPeople(bare, {"/tasks": "/tasks/board"})(scope, _nothing, take)
        assert (b"vary", b"Accept") in sent[0]["headers"]
        assert b"".join(message.get("body", b"") for message in sent).decode() == text


async def _nothing() -> Message:
    raise AssertionError("nobody asks for the body of a GET")


async def _asked(
    prefix: str, method: str, headers: dict[str, str], path: str = "/nowhere", status: int = 404
) -> httpx.Response:
    own = {"Vary": "X-User-Id", "WWW-Authenticate": "Bearer"}
    told = PlainTextResponse("gone, for programs", status_code=status, headers=own)
    browser_redirects = {path: page for system in SYSTEMS for path, page in system.browser_redirects.items()}
    transport = httpx.ASGITransport(PagesForPeople(told, browser_redirects), root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, prefix + path, headers={"accept": "", **headers})
