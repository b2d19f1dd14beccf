"""The local Bot API server to people and to tests in other processes: control routes, the page, and its journal."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from aftercommit.contrib.telegram.local_api import BotApiLimits, BotApiServer, Drop
from aftercommit.errors import DeclarationError
from tests.support.programs import PATIENCE, REPOSITORY
from tests.testing.bots import TLS

FILES = REPOSITORY / "src" / "aftercommit" / "contrib" / "telegram" / "local_api" / "files"
NO_LIMITS = BotApiLimits(overall=None, per_chat=None)


@pytest.fixture(scope="module")
def telegram() -> Iterator[BotApiServer]:
    with BotApiServer.in_thread(limits=NO_LIMITS) as server:
        yield server


@pytest.fixture(scope="module")
def people(telegram: BotApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=telegram.url, timeout=PATIENCE, verify=TLS) as client:
        yield client


def opened(people: httpx.Client, **about: Any) -> int:
    answer = people.post("/control/chats", json={"first_name": "Ada", **about})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def send(telegram: BotApiServer, chat: int, text: str, **more: Any) -> httpx.Response:
    asked = {"chat_id": chat, "text": text, **more}
    return httpx.post(f"{telegram.url}/bot{telegram.token}/sendMessage", json=asked, timeout=PATIENCE, verify=TLS)


def updates_of(telegram: BotApiServer, **asked: int) -> Any:
    address = f"{telegram.url}/bot{telegram.token}/getUpdates"
    return httpx.get(address, params=asked, timeout=PATIENCE, verify=TLS).json()["result"]


def test_a_person_writes_blocks_and_deletes(telegram: BotApiServer, people: httpx.Client):
    chat = opened(people, language_code="de", username="somebody")
    written = people.post(f"/control/chats/{chat}/messages", json={"text": "/start"})
    assert (written.status_code, written.json()["from_bot"]) == (201, False)
    assert people.put(f"/control/chats/{chat}/blocked", json={"blocked": True}).json()["blocked"] is True
    assert people.post(f"/control/chats/{chat}/messages", json={"text": "x"}).status_code == 400
    assert people.put(f"/control/chats/{chat}/blocked", json={"blocked": False}).json()["blocked"] is False
    assert people.delete(f"/control/chats/{chat}").status_code == 204
    assert people.delete(f"/control/chats/{chat}").status_code == 404


def test_everything_there_is_can_be_looked_at(telegram: BotApiServer, people: httpx.Client):
    chat = opened(people)
    send(telegram, chat, "<b>x</b>", parse_mode="HTML")
    told = people.get("/control/state").json()
    assert [each["first_name"] for each in told["chats"] if each["id"] == chat] == ["Ada"]
    [message] = [each for each in told["messages"] if each["chat"]["id"] == chat]
    assert (message["text"], message["entities"][0]["type"]) == ("x", "bold")
    [call] = [each for each in people.get("/control/calls").json() if each["chat_id"] == chat]
    assert (call["method"], call["status"], call["was_taken"]) == ("sendMessage", 200, True)


def test_faults_are_switched_on_and_off(telegram: BotApiServer, people: httpx.Client):
    chat = opened(people)
    asked = {"fault": "too_many_requests", "retry_after": 7, "chat_id": chat, "times": 1}
    switch = people.post("/control/switches", json=asked).json()
    assert (switch["fault"], switch["retry_after"], switch["left"]) == ("too_many_requests", 7, 1)
    assert send(telegram, chat, "x").json()["parameters"] == {"retry_after": 7}
    assert people.delete("/control/switches").status_code == 204
    number = people.post("/control/switches", json={"fault": "drop", "recorded": True, "chat_id": chat}).json()[
        "switch"
    ]
    with pytest.raises(httpx.TransportError):
        send(telegram, chat, "taken")
    assert people.delete(f"/control/switches/{number}").status_code == 204
    assert people.delete(f"/control/switches/{number}").status_code == 404
    assert [message.text for message in telegram.sent(chat)] == ["taken"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/control/chats", {"first_name": ""}, 400, "first name"),
        ("POST", "/control/chats", {"name": "x"}, 400, "unknown field"),
        ("POST", "/control/chats", {"first_name": "x", "chat_id": -5}, 400, "exists, or is not between"),
        ("POST", "/control/chats/1/messages", {"text": "x"}, 404, "Chat 1 does not exist"),
        ("POST", "/control/switches", {"fault": "fire"}, 400, "Unknown fault 'fire': use one of too_many_requests"),
        ("POST", "/control/switches", {"fault": "blocked", "seconds": 3}, 400, "has no parameter seconds"),
        ("POST", "/control/switches", {"fault": "server_error", "status": 200}, 400, "not between 500 and 599"),
        ("POST", "/control/switches", {"fault": "hang", "times": 0}, 400, "times=0"),
        ("PUT", "/control/state", {}, 405, "use GET"),
        ("GET", "/nothing", None, 404, "nothing at this address"),
    ],
)
def test_what_makes_no_sense_is_refused(
    people: httpx.Client, method: str, path: str, body: Any, status: int, said: str
):
    answer = people.request(method, path, json=body)
    assert answer.status_code == status
    assert said in answer.json()["message"]


def test_where_there_is_nothing_people_get_a_page_and_programs_the_error(people: httpx.Client):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/nothing", "/control/nothing", "/some/where/"):
        page = people.get(path, headers=browser)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert 'href="/"' in page.text
        for accept in ("*/*", "application/json"):
            told = people.get(path, headers={"Accept": accept})
            assert (told.status_code, told.json()["error"]) == (404, "not_found")
    # As with Telegram, whoever asks.
    assert people.get("/botnonsense/getMe", headers=browser).json()["error_code"] == 404


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"x" * (1 << 21), b'{"first_name": "\\ud800"}'])
def test_a_body_that_cannot_be_read_is_refused(people: httpx.Client, content: bytes):
    answer = people.post("/control/chats", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413)


def test_a_page_of_elsewhere_can_do_nothing(telegram: BotApiServer, people: httpx.Client):
    as_form = people.post("/control/chats", content='{"first_name": "x"}', headers={"Content-Type": "text/plain"})
    assert as_form.status_code == 415
    foreign = people.post("/control/chats", json={"first_name": "x"}, headers={"Origin": "https://example.org"})
    assert foreign.status_code == 403
    assert people.delete("/control/switches", headers={"Origin": "null"}).status_code == 403
    own = people.post("/control/chats", json={"first_name": "x"}, headers={"Origin": telegram.url})
    assert own.status_code == 201


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "localhost.example.org:80", "10.0.0.1"])
def test_a_name_that_somebody_pointed_here_is_not_answered(telegram: BotApiServer, people: httpx.Client, host: str):
    for path in ("/", "/control/state", f"/bot{telegram.token}/getMe"):
        assert people.get(path, headers={"Host": host}).status_code == 421


def test_changes_are_streamed_and_a_reader_goes_on_where_it_was(telegram: BotApiServer, people: httpx.Client):
    chat = opened(people)
    with people.stream("GET", "/control/events") as stream:
        events = events_of(stream)
        kind, place, told = next(events)
        assert (kind, chat in told["there"]) == ("everything", True)
        telegram.write(chat, "first")
        kind, place, told = next(events)
        assert (kind, [message["text"] for message in told["messages"]]) == ("news", ["first"])
    telegram.write(chat, "while away")
    with people.stream("GET", "/control/events", headers={"Last-Event-ID": place}) as stream:
        kind, place, told = next(events_of(stream))
        assert (kind, [message["text"] for message in told["messages"]]) == ("news", ["while away"])
    for stranger in ("another-life-5", "-", "0-99999999"):
        with people.stream("GET", "/control/events", headers={"Last-Event-ID": stranger}) as stream:
            assert next(events_of(stream))[0] == "everything"


def events_of(stream: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    event: dict[str, str] = {}
    for line in stream.iter_lines():
        name, _, value = line.partition(": ")
        if line == "" and "data" in event:
            yield event["event"], event["id"], json.loads(event["data"])
            event = {}
        elif name:
            event[name] = value


# --- the page


def test_the_page_comes_with_everything_it_needs_and_a_strict_policy(people: httpx.Client):
    page = people.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    scripts = [people.get(f"/{name}") for name in named]
    assert {answer.status_code for answer in scripts} == {200}
    imported = {name for answer in scripts for name in re.findall(r'from "\./([^"]+)"', answer.text)}
    assert {people.get(f"/{name}").status_code for name in imported} == {200}
    everything = page.text + "".join(answer.text for answer in scripts)
    assert re.findall(r"https?://(?!www\.w3\.org)\S+", everything) == []
    assert re.findall(r"\son\w+=|style=|innerHTML|insertAdjacentHTML|document\.write|eval\(", everything) == []


def test_every_file_of_the_page_is_served(people: httpx.Client):
    served = {path.name for path in FILES.iterdir() if people.get(f"/{path.name}").status_code == 200}
    assert served == {path.name for path in FILES.iterdir()} - {"chats.html", "missing.html"}


def test_the_page_leads_back_to_what_the_bot_belongs_to():
    with BotApiServer.in_thread(limits=NO_LIMITS) as server:
        assert httpx.get(f"{server.url}/control/state", timeout=PATIENCE, verify=TLS).json()["ways"] == []
        server.lead_back({"shop": "http://127.0.0.1:8090/", "Tasks": "http://127.0.0.1:8090/tasks/board"})
        assert httpx.get(f"{server.url}/control/state", timeout=PATIENCE, verify=TLS).json()["ways"] == [
            {"label": "shop", "href": "http://127.0.0.1:8090/"},
            {"label": "Tasks", "href": "http://127.0.0.1:8090/tasks/board"},
        ]
        for wrong in ("javascript:alert(1)", "/tasks", ""):
            with pytest.raises(DeclarationError, match="is not an http:// or https:// address"):
                server.lead_back({"shop": wrong})


# --- the journal


def test_chats_and_messages_outlive_the_server(tmp_path: Path):
    journal = tmp_path / "chats.jsonl"
    with BotApiServer.in_thread(limits=NO_LIMITS, journal=journal) as first:
        ada, grace, gone = first.open_chat("Ada", language="de"), first.open_chat("Grace"), first.open_chat("Gone")
        first.write(ada, "/start")
        sent = send(first, ada.chat_id, "<b>Hi</b>", parse_mode="HTML").json()["result"]
        edited = {"chat_id": ada.chat_id, "message_id": sent["message_id"], "text": "Hello"}
        httpx.post(f"{first.url}/bot{first.token}/editMessageText", json=edited, timeout=PATIENCE, verify=TLS)
        first.block(grace)
        first.forget_chat(gone)
        updates = updates_of(first)
        assert len(updates) == 2
    for _ in range(2):
        with BotApiServer.in_thread(limits=NO_LIMITS, journal=journal) as second:
            assert list(second.messenger.chats.values()) == [ada, grace]
            assert second.messenger.blocked == {grace.chat_id}
            assert [message.text for message in second.messenger.messages(ada.chat_id)] == ["/start", "Hello"]
            # What the bot had not confirmed is told again; what comes next has numbers above.
            assert updates_of(second) == updates
    with BotApiServer.in_thread(limits=NO_LIMITS, journal=journal) as third:
        confirm = {"offset": updates[-1]["update_id"] + 1}
        assert updates_of(third, **confirm) == []
        assert third.write(ada, "next").message_id > sent["message_id"]
        [update] = updates_of(third)
        assert update["update_id"] > updates[-1]["update_id"]
        assert third.open_chat("New").chat_id not in (ada.chat_id, grace.chat_id)
    with BotApiServer.in_thread(limits=NO_LIMITS, journal=journal) as fourth:
        assert updates_of(fourth) == [update]


def test_a_message_is_kept_before_the_bot_is_answered(tmp_path: Path):
    journal = tmp_path / "chats.jsonl"
    with BotApiServer.in_thread(limits=NO_LIMITS, journal=journal) as server:
        ada = server.open_chat("Ada")
        server.switch(Drop(recorded=True))
        with pytest.raises(httpx.TransportError):
            send(server, ada.chat_id, "in flight")
        assert '"in flight"' in journal.read_text()


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path):
    journal = tmp_path / "chats.jsonl"
    with BotApiServer.in_thread(journal=journal) as server:
        ada = server.open_chat("Ada")
        server.write(ada, "whole")
    with journal.open("a") as file:
        file.write('{"message": {"message_id": 99, "chat_id"')
    with BotApiServer.in_thread(journal=journal) as server:
        assert [message.text for message in server.messenger.messages(ada.chat_id)] == ["whole"]


def test_two_servers_do_not_write_to_one_file(tmp_path: Path):
    journal = tmp_path / "chats.jsonl"
    with BotApiServer.in_thread(journal=journal) as server, BotApiServer.in_thread(journal=journal) as other:
        other.open_chat("Elsewhere")
        server.open_chat("Here")
    with BotApiServer.in_thread(journal=journal) as server:
        assert [chat.first_name for chat in server.messenger.chats.values()] == ["Here"]


# --- as a program


@pytest.mark.thorough
def test_the_server_runs_by_itself():
    command = [sys.executable, "-m", "aftercommit.contrib.telegram.local_api", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as program:
        assert program.stdout is not None
        try:
            chats, bot = program.stdout.readline().split(), program.stdout.readline().split()
            assert chats[0] == "chats:"
            token = bot[2].partition("=")[2]
            me = httpx.get(f"{chats[1]}/bot{token}/getMe", timeout=PATIENCE, verify=TLS).json()
            assert me["result"]["is_bot"] is True
        finally:
            program.terminate()
        assert program.wait(PATIENCE) == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "said"), [(("--token", "x"), "the token must be digits"), (("--port", "70000"), "--port")]
)
def test_a_program_that_cannot_run_says_why(arguments: tuple[str, ...], said: str):
    command = [sys.executable, "-m", "aftercommit.contrib.telegram.local_api", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode in (1, 2)
    assert said in ran.stderr
