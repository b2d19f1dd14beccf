"""`aftercommit up` shows the bot at work without the internet: tasks become messages in chats on this machine."""

import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from systems.tasks.sample.sample_script import ADA, BARBARA, EDSGER
from systems.tasks.sample.traffic import LINKED
from tests.support.investigations import PATIENCE, STARTING, TLS, answers, eventually
from tests.support.programs import REPOSITORY, Program, is_free, kept_port, running

pytestmark = pytest.mark.newest

APP = "systems.site:application"


@dataclass
class Up:
    """A running `aftercommit up`, and what it says about itself."""

    program: Program
    url: str
    chats: str

    def ask(self, method: str, path: str, user: int, **body: Any) -> Any:
        """What a user of the site does, on this machine."""
        headers = {"X-User-Id": str(user)}
        answer = httpx.request(method, f"{self.url}{path}", headers=headers, json=body, timeout=PATIENCE, verify=TLS)
        assert answer.is_success, answer.text
        return answer.json()

    def control(self, method: str, path: str, **body: Any) -> Any:
        """What a person does in the messenger."""
        answer = httpx.request(method, f"{self.chats}/control/{path}", json=body, timeout=PATIENCE, verify=TLS)
        assert answer.is_success, answer.text
        return answer.json()

    def messages(self, chat: int) -> Sequence[Mapping[str, Any]]:
        """What the bot has sent to a chat."""
        state = httpx.get(f"{self.chats}/control/state", timeout=PATIENCE, verify=TLS).json()
        return [each for each in state["messages"] if each["chat"]["id"] == chat and each["from_bot"]]

    def gets(self, chat: int, text: str) -> Mapping[str, Any]:
        """The message with this text, once it has come."""
        return eventually(lambda: next((each for each in self.messages(chat) if text in each["text"]), None))


@contextmanager
def up(database: str, home: Path, *more: str) -> Iterator[Up]:
    # A proxy that knows nothing of this machine, as companies have them.
    told = {"DATABASE_URL": database, "AFTERCOMMIT_HOME": str(home), "HTTP_PROXY": "http://127.0.0.1:9"}
    with running("up", "--app", APP, "--rate", "0", *more, folder=REPOSITORY, **told) as program:
        url = after(program, "open in a browser:")
        chats = after(program, "bot chats:")
        eventually(lambda: answers(url), timeout=STARTING)
        yield Up(program, url, chats)


def after(program: Program, label: str) -> str:
    return program.line(label, program.stderr, timeout=STARTING).split(label)[1].split()[0]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.fixture
def port() -> Iterator[int]:
    """One whose next is free, too."""
    with kept_port(neighbours=1) as kept:
        yield kept


@pytest.mark.thorough
@pytest.mark.contract("T9", "T12")
@pytest.mark.timeout(400)
def test_a_task_becomes_a_message_and_a_kill_loses_and_doubles_nothing(database: str, tmp_path: Path, port: int):
    home = tmp_path / "home"
    with up(database, home, "--port", str(port), "--workers", "2") as first:
        assert port_of(first.chats) == port + 1
        assert after(first.program, "tasks page:") == f"{first.url}/tasks/board"
        assert after(first.program, "metrics:") == f"{first.url}/metrics"
        for outbox in ("investigation_events", "tasks_events"):
            first.program.line(f"status --schema {outbox} --watch", first.program.stderr)
        assert httpx.get(f"{first.url}/sample.json", timeout=PATIENCE, verify=TLS).json()["chats"] == first.chats
        task = first.ask("POST", "/tasks", ADA, title="Count <the> chairs & tables", assignee_user_id=EDSGER)
        told = first.gets(LINKED[ADA], "Count <the> chairs & tables")
        page = f"{first.url}/tasks/board/{task['task_id']}"
        assert page in [entity.get("url") for entity in told["entities"]]
        first.gets(LINKED[EDSGER], "Count <the> chairs & tables")
        barbara = link(first, BARBARA)
        first.program.process.kill()
        first.program.process.wait()
        # Its server processes notice by themselves, and leave the port.
        eventually(lambda: (is_free(port) and is_free(port + 1)) or None)
    # What listens there now is not ours: the chats are found elsewhere.
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        with up(database, home, "--port", str(port)) as second:
            assert port_of(second.chats) != port + 1
            again = second.ask("POST", f"/tasks/{task['task_id']}/reassign", ADA, assignee_user_id=BARBARA)
            assert again["assignee_user_id"] == BARBARA
            second.gets(barbara, "Count <the> chairs & tables")
            second.gets(LINKED[ADA], "Barbara")
            titles = [each["text"] for each in second.messages(LINKED[ADA])]
            assert len(titles) == len(set(titles)) == 2
            second.program.send(signal.SIGINT)
            assert second.program.ends() == 0, second.program
    assert not [line for line in second.program.stderr if "Traceback" in line or "rror" in line], second.program


def link(running_up: Up, user: int) -> int:
    """A new chat, linked as a person does it: by the code that the site shows."""
    chat = running_up.control("POST", "chats", first_name="Barbara", language_code="en")["id"]
    start = running_up.ask("POST", "/tasks/me/link-codes", user)["start"]
    running_up.control("POST", f"chats/{chat}/messages", text=start)
    running_up.gets(chat, "Barbara")
    return int(chat)
