"""Answers and events that nobody expects: they hold up neither the bot nor the events behind them."""

from pathlib import Path

import pytest

from aftercommit.contrib.telegram.answers import Later, understand
from tests.telegram.bots import stage
from tests.telegram.front import front

REFUSAL = {"ok": False, "error_code": 400, "description": "Bad Request: message is too \0 long"}


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "bot.sqlite") if request.param == "sqlite" else str(request.getfixturevalue("database"))


@pytest.mark.thorough
@pytest.mark.contract("T11")
async def test_what_no_database_can_store_is_set_aside_all_the_same(tmp_path: Path, where: str):
    """PostgreSQL knows no NUL in texts. A record that cannot be written would be tried for ever, and its chat wait."""
    async with (
        stage(tmp_path, state=where) as scene,
        front(scene.telegram.url, lambda body: REFUSAL if "task 1<" in body.get("text", "") else None) as address,
    ):
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        scene.backend.publish(17, event_type="odd\0type")
        scene.backend.publish(17)
        async with scene.bot(api=address, update_seconds=1):
            await scene.telegram.messages(ada, 1)
            await scene.points.wait("bot.saved", 2)
        assert scene.place(ada) == "2"
        store = scene.store()
        [kept] = store.failures()
        assert (kept.event_id, kept.kind) == ("1", "refused")
        assert kept.event_type.startswith("odd")
        store.close()


async def test_a_chat_is_linked_to_whoever_has_an_odd_name(tmp_path: Path, where: str):
    async with stage(tmp_path, state=where) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.codes["K7QM-3TXA"] = (17, "A\0da")
        async with scene.bot():
            assert "Linked to A" in await scene.says(ada, "/start K7QM-3TXA")
            scene.backend.publish(17)
            await scene.telegram.messages(ada, 2)


@pytest.mark.parametrize("cursor", ["1\0", "1\n", "\x7f"])
async def test_a_place_that_cannot_be_asked_for_is_not_taken_for_one(tmp_path: Path, where: str, cursor: str):
    async with stage(tmp_path, state=where) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        (event,) = scene.backend.publish(17)

        async def odd(reply):
            await reply.answer(200, [{**event, "event_id": cursor}])

        scene.backend.for_users["17"] = odd
        async with scene.bot(health_user="18"):
            await scene.backend.until(lambda: len(scene.backend.polls(17)) > 2)
            assert "have no cursors" in await scene.says(ada, "/status")
        assert scene.place(ada) == "0"
        assert len(scene.texts(ada)) == 1


@pytest.mark.parametrize(
    "body", [b"[" * 50_000 + b"]" * 50_000, b'{"ok": true, "result": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"]
)
def test_an_answer_that_is_nested_without_end_passes(body: bytes):
    assert isinstance(understand(200, body), Later)


def test_a_time_beyond_all_numbers_is_none():
    body = f'{{"ok": false, "error_code": 429, "parameters": {{"retry_after": 1{"0" * 400}}}}}'.encode()

    assert understand(429, body) == Later("error 429", None, limited=True)
