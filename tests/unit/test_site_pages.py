"""Who is handed the tokens of sample users, and what people get at an address that leads nowhere."""

from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from systems.missing import PageForPeople
from systems.pages import is_local


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


async def test_who_is_led_to_nothing_gets_a_page_that_leads_to_the_root_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "missing.html").write_text('<a href="{root}">home</a><a href="{root}docs">API</a>')
    monkeypatch.setattr("systems.missing.WEB", tmp_path)
    browser = {"accept": "text/html,application/xhtml+xml"}
    for prefix, root in (("", "/"), ("/a b", "/a%20b/")):
        answer = await _asked(prefix, "GET", browser)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert answer.text == f'<a href="{root}">home</a><a href="{root}docs">API</a>'
    assert (await _asked("", "HEAD", browser)).text == ""
    for method, headers in (("GET", {"accept": "*/*"}), ("GET", {}), ("POST", browser)):
        assert (await _asked("", method, headers)).text == "gone, for programs"


async def test_without_built_pages_the_error_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systems.missing.WEB", tmp_path)
    assert (await _asked("", "GET", {"accept": "text/html"})).text == "gone, for programs"


async def _asked(prefix: str, method: str, headers: dict[str, str]) -> httpx.Response:
    app = PageForPeople(PlainTextResponse("gone, for programs", status_code=404))
    transport = httpx.ASGITransport(app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, "/nowhere", headers={"accept": "", **headers})
