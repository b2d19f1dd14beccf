"""A bot whose feed was restored: it goes on with what is new, and tells nobody everything again."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from aftercommit.contrib.telegram.local_api import BotApiServer
from tests.support.investigations import prepare
from tests.support.programs import kept_port
from tests.support.restoring import Restorable, restorable
from tests.support.tasks import ADA, EDSGER, Service, relaying
from tests.telegram.backend import Act, Reply, answer_well, refuse
from tests.telegram.bots import stage
from tests.telegram.test_with_tasks import SECONDS, backend, bot, told

pytestmark = pytest.mark.contract("E2")

GAP = "⚠️ Events are missing here"


def restored(*, reads_back: bool) -> Act:
    """A feed that offers nothing but its beginning to a place that it does not know; or knows no other parameters."""

    async def act(reply: Reply) -> None:
        asked = reply.request.query
        if asked.get("after_id") == "50":
            await refuse(410, reason="epoch", restart="0")(reply)
        elif "before_id" in asked and not reads_back:
            await refuse(400)(reply)
        else:
            await answer_well(reply)

    return act


@pytest.mark.parametrize("reads_back", [True, False], ids=["reads back", "the document's parameters alone"])
async def test_a_chat_whose_place_is_above_the_log_is_told_of_the_gap_and_then_of_what_is_new(
    tmp_path: Path, reads_back: bool
):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17, place="50")
        scene.backend.publish(17, count=20)
        scene.backend.for_users["17"] = restored(reads_back=reads_back)
        async with scene.bot():
            await scene.telegram.messages(ada, 1)
            await scene.backend.until(lambda: scene.backend.polls(17)[-1].query.get("after_id") == "20")
            scene.backend.publish(17)
            sent = await scene.telegram.messages(ada, 2)
        assert sent[0].text.startswith(GAP)
        assert [message.text.splitlines()[0] for message in sent[1:]] == ["🆕 task 21"]
        store = scene.store()
        [kept] = store.failures()
        assert (kept.kind, kept.event_id, kept.place) == ("gap", "after 50", "20")
        store.close()


@pytest.fixture
def server() -> Iterator[Restorable]:
    with restorable() as running:
        yield running


def database(server: Restorable) -> str:
    server.rows("create database tasks")
    prepare(server.dsn("tasks"))
    return server.dsn("tasks")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_chat_hears_of_everything_once_across_a_recovery_of_the_tasks_to_a_point_in_time(
    server: Restorable, tmp_path: Path
):
    dsn = database(server)
    with BotApiServer.in_thread() as telegram, kept_port() as port, relaying(dsn), backend(dsn, port) as tasks:
        chat = telegram.open_chat("Edsger", language="en")
        credential = tasks.credential()
        # The bot keeps its places elsewhere: they are not restored.
        with bot(telegram, f"{tmp_path}/bot.sqlite", tasks.feed, credential):
            code = tasks.as_user(EDSGER).post("/tasks/me/link-codes").json()
            telegram.write(chat, code["start"])
            told(telegram, chat, "Linked to Edsger")
            make(tasks, telegram, chat, "kept 1", "kept 2")
            backup, point = server.backup(), server.restore_point()
            make(tasks, telegram, chat, "lost 1", "lost 2", "lost 3")

            server.recover(backup, point)
            # More than were lost: numbers that were given again would hide some of them.
            make(tasks, telegram, chat, *(f"new {number}" for number in range(1, 8)))
        texts = [message.text for message in telegram.sent(chat)][1:]
    titles = [*(f"kept {n}" for n in (1, 2)), *(f"lost {n}" for n in (1, 2, 3)), *(f"new {n}" for n in range(1, 8))]
    assert len(texts) == len(titles), texts
    assert all(title in text for title, text in zip(titles, texts, strict=True)), texts
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select max(number) from tasks_events.life").fetchone() == (2,)


def make(tasks: Service, telegram: BotApiServer, chat: object, *titles: str) -> None:
    """Tasks of which the chat hears, one after the other, whatever the database does meanwhile."""
    for title in titles:
        answer = tasks.as_user(ADA).post("/tasks", json={"title": title, "assignee_user_id": EDSGER})
        while answer.status_code == 503:
            answer = tasks.as_user(ADA).post("/tasks", json={"title": title, "assignee_user_id": EDSGER})
        assert answer.status_code == 201, answer.text
        telegram.wait_until(lambda title=title: title in telegram.sent(chat)[-1].text or None, timeout=SECONDS)  # type: ignore[misc,arg-type]
