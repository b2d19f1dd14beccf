"""The whole of it as programs: the tasks system, a local Bot API server, and `aftercommit bot` between them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aftercommit.contrib.telegram.local_api import BotApiServer, Chat
from aftercommit.testing.postgres import PostgresServerForTests
from tests.support.investigations import KEY_SET, STARTING, answers, eventually, make_service_token
from tests.support.programs import REPOSITORY, Program, kept_port, running
from tests.support.tasks import ADA, EDSGER, Service, prepared, relaying

SECONDS = 60.0


@pytest.fixture(scope="module")
def telegram() -> Iterator[BotApiServer]:
    with BotApiServer.in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def database_with_tasks(postgres_server: PostgresServerForTests) -> Iterator[str]:
    with prepared(postgres_server) as dsn, relaying(dsn):
        yield dsn


@pytest.fixture
def port() -> Iterator[int]:
    with kept_port() as kept:
        yield kept


@contextmanager
def backend(dsn: str, port: int) -> Iterator[Service]:
    """The tasks system at an address that stays the same when it is started again."""
    told = {"DATABASE_URL": dsn, "AFTERCOMMIT_TOKEN_KEYS": KEY_SET}
    make_service_token(dsn)
    options = ("--app", "systems.site:application", "--port", str(port), "--open-metrics")
    with running("serve", *options, folder=REPOSITORY, **told) as server:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: answers(url), timeout=STARTING)
        service = Service(url, dsn, server, workers=1)
        try:
            yield service
        finally:
            service.close()


@contextmanager
def bot(telegram: BotApiServer, dsn: str, feed: str, credential: str) -> Iterator[Program]:
    """The program, its state beside the tasks."""
    told = {
        "AFTERCOMMIT_BOT_TOKEN": telegram.token,
        "AFTERCOMMIT_BOT_API": telegram.url,
        "AFTERCOMMIT_BOT_FEED": feed,
        "AFTERCOMMIT_BOT_CREDENTIAL": credential,
        "AFTERCOMMIT_BOT_STATE": dsn,
        "AFTERCOMMIT_BOT_PAGE": "https://tasks.example/tasks/board/{task_id}",
        "AFTERCOMMIT_LOG_FORMAT": "json",
    }
    with running("bot", folder=REPOSITORY, **told) as program:
        program.line("bot_polling", program.stderr)
        yield program


def told(telegram: BotApiServer, chat: Chat, *texts: str) -> None:
    """Until the chat has these texts, in this order, as its last ones."""

    def look() -> bool | None:
        last = [message.text for message in telegram.sent(chat)][-len(texts) :]
        fits = len(last) == len(texts) and all(text in each for text, each in zip(texts, last, strict=True))
        return fits or None

    telegram.wait_until(look, timeout=SECONDS)


@pytest.mark.thorough
@pytest.mark.contract("T9", "T10", "T11", "T12")
def test_a_person_links_a_chat_and_hears_of_tasks_across_deaths_of_bot_and_backend(
    telegram: BotApiServer, database_with_tasks: str, port: int
):
    dsn = database_with_tasks
    chat = telegram.open_chat("Edsger", language="en")
    with backend(dsn, port) as tasks:
        credential = tasks.credential()
        tasks.create(ADA, "before the chat was linked", assignee_user_id=EDSGER)
        tasks.settled()
        with bot(telegram, dsn, tasks.feed, credential) as program:
            code = tasks.as_user(EDSGER).post("/tasks/me/link-codes").json()
            telegram.write(chat, code["start"])
            told(telegram, chat, "Linked to Edsger")
            task = tasks.create(ADA, "count <the> chairs", assignee_user_id=EDSGER)
            told(telegram, chat, "count <the> chairs\nAda created this task.\nAssigned to Edsger.")
            [entity] = [each for each in telegram.sent(chat)[-1].entities if each.type == "text_link"]
            assert entity.argument == f"https://tasks.example/tasks/board/{task['task_id']}"
            program.send(signal.SIGKILL)
            program.ends()
        tasks.act(EDSGER, task["task_id"], "submit-report", report="eleven & a half")
        tasks.act(ADA, task["task_id"], "reject", reason="there is no half chair")
        with bot(telegram, dsn, tasks.feed, credential):
            told(
                telegram,
                chat,
                "Edsger submitted a report.\neleven & a half",
                "Ada rejected the report.\nthere is no half chair",
            )
            server = tasks.server
            assert server is not None
            server.send(signal.SIGTERM)
            server.ends()
            telegram.write(chat, "/status")
            telegram.wait_until(lambda: "Linked to Edsger" in telegram.sent(chat)[-1].text or None, timeout=SECONDS)
            with backend(dsn, port) as again:
                again.act(EDSGER, task["task_id"], "submit-report", report="eleven")
                again.act(ADA, task["task_id"], "approve")
                told(telegram, chat, "submitted a report.\neleven", "Ada approved the report.")
    texts = [message.text.splitlines()[0] for message in telegram.sent(chat)]
    assert not any("before the chat was linked" in text for text in texts)
