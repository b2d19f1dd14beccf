"""What is wrong with the feed is told as what it is: it is silent, it errs, or it refuses the bot. Without secrets."""

import asyncio
import logging
from pathlib import Path

import pytest

from aftercommit.client import Pace
from tests.telegram.backend import Act, Reply, drop, hang, refuse, say
from tests.telegram.bots import Stage, everything, stage

CREDENTIAL = "act_0123456789_hush-hush-hush"
REMEDY = (
    "set AFTERCOMMIT_BOT_CREDENTIAL to a valid token (`aftercommit token create bot --may act-as-user --app "
    "module:outbox` makes one) and restart the bot"
)

# What the backend does, and how this reads: in English, German and Russian, and for whoever runs the bot.
SILENT = ("The service does not answer.", "Der Dienst antwortet nicht.", "Сервис не отвечает.", "does not answer (")
ERRS = (
    "The service answers with an error.",
    "Der Dienst antwortet mit einem eigenen Fehler.",
    "Сервис отвечает, но с ошибкой на своей стороне.",
    "answers with an error (",
)
LIMITS = (
    "The service answers, but asks me to wait.",
    "Der Dienst antwortet, bittet mich aber zu warten.",
    "Сервис отвечает, но просит меня подождать.",
    "asks the bot to wait (",
)
REFUSES = (
    "The service answers, but refuses my credential.",
    "Der Dienst antwortet, nimmt aber meine Zugangsdaten nicht an.",
    "Сервис отвечает, но не принимает мой ключ доступа.",
    "refuses the bot's credential (",
)
FORBIDS = (
    "The service answers, but does not let me read this.",
    "Der Dienst antwortet, lässt mich das aber nicht lesen.",
    "Сервис отвечает, но не разрешает мне это читать.",
    "does not let the bot read this (",
)
CASES: dict[str, tuple[Act, tuple[str, str, str, str]]] = {
    "hangs": (hang, SILENT),
    "drops the connection": (drop, SILENT),
    "answers 500": (refuse(500), ERRS),
    "answers 404": (refuse(404), ERRS),
    "answers 429": (refuse(429), LIMITS),
    "answers what is no page": (say({"hello": "world"}), ERRS),
    "answers 401": (refuse(401), REFUSES),
    "answers 403": (refuse(403), FORBIDS),
}


@pytest.mark.contract("T8")
@pytest.mark.parametrize(("act", "told"), CASES.values(), ids=CASES.keys())
async def test_a_bot_that_is_not_connected_says_which_case_it_is_in_every_language(
    act: Act, told: tuple[str, str, str, str], tmp_path: Path
):
    async with stage(tmp_path) as scene:
        chats = [scene.telegram.open_chat(language, language=language) for language in ("en", "de", "ru")]
        scene.backend.for_users["1"] = act
        # How long an answer may take decides what is said, of those that come.
        async with scene.bot(health_seconds=0.3 if act is hang else 60.0, credential=CREDENTIAL):
            for chat, sentence in zip(chats, told, strict=False):
                status = await scene.says(chat, "/status")
                assert sentence in status
                silent = any(other in status for other in ("does not answer", "antwortet nicht.", "не отвечает."))
                assert silent is (told is SILENT)
            store = scene.store()
            assert f"the feed {told[3]}" in (store.trouble() or "")
            store.close()


@pytest.mark.thorough
@pytest.mark.contract("T10")
async def test_a_bot_that_polls_says_why_nothing_comes_as_it_changes(tmp_path: Path):
    async with stage(tmp_path) as scene, asyncio.timeout(240):
        ada, stranger = scene.telegram.open_chat("Ada"), scene.telegram.open_chat("Stranger")
        scene.link(ada, 17)
        beside = scene.store()
        async with scene.bot(credential=CREDENTIAL):
            for act, (sentence, _, _, operator) in ((drop, SILENT), (refuse(401), REFUSES), (refuse(503), ERRS)):
                scene.backend.for_users["17"] = act
                while f"🟡 {sentence}" not in (status := await scene.says(ada, "/status")):
                    pass
                assert len(status.splitlines()) == 3, "who, which case, why"
                while f"🟡 {sentence}" not in (status := await scene.says(stranger, "/status")):
                    pass
                assert len(status.splitlines()) == 2, "strangers do not hear why"
                while f"the feed {operator}" not in (beside.trouble() or ""):
                    await scene.says(ada, "/status")
            scene.backend.for_users.clear()
            while "🟢" not in await scene.says(ada, "/status"):
                pass
            while beside.trouble() is not None:
                await scene.says(ada, "/status")
        beside.close()


async def test_who_runs_the_bot_is_told_what_to_do_about_a_credential(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with stage(tmp_path) as scene:
        stranger = scene.telegram.open_chat("Stranger")
        scene.backend.for_users["1"] = refuse(401)
        for credential, sentence, operator in (
            (CREDENTIAL, "refuses my credential.", "the feed refuses the bot's credential (The feed answered 401"),
            (None, "needs a credential, and I have none.", "the feed needs a credential, and the bot has none ("),
        ):
            caplog.clear()
            async with scene.bot(credential=credential):
                status = await scene.says(stranger, "/status")
                store = scene.store()
                trouble = store.trouble() or ""
                store.close()
            assert sentence in status
            assert "AFTERCOMMIT_BOT_CREDENTIAL" in status
            assert trouble.startswith(operator)
            assert REMEDY in trouble
            [line] = [record for record in caplog.records if record.getMessage() == "bot_not_connected"]
            assert REMEDY in line.__dict__["remedy"]


async def test_the_log_says_what_to_do_about_a_token_that_is_revoked_while_the_bot_polls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with stage(tmp_path) as scene:
        scene.link(scene.telegram.open_chat("Ada"), 17)
        async with scene.bot(credential=CREDENTIAL):
            scene.backend.for_users["17"] = refuse(401)
            before = len(scene.backend.polls(17))
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= before + 2)
        line = next(record.__dict__ for record in caplog.records if record.getMessage() == "bot_poll_failed")
        assert line["kind"] == "credential_refused"
        assert REMEDY in line["remedy"]


@pytest.mark.thorough
async def test_what_is_wrong_for_one_user_is_not_told_to_all_while_nobody_is_answered(tmp_path: Path):
    async with stage(tmp_path) as scene, asyncio.timeout(240):
        ada, bob, stranger = (scene.telegram.open_chat(name) for name in ("Ada", "Bob", "Stranger"))
        scene.link(ada, 17)
        scene.link(bob, 18)
        is_told, turned_away, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def held(reply: Reply) -> None:
            turned_away.set()
            await go_on.wait()
            await drop(reply)

        async def forbid(reply: Reply) -> None:
            if is_told.is_set():
                # From here on nobody else is asked, so that what is told now is told because of this answer.
                scene.backend.for_users["17"] = held
            await reply.answer(403, {"error": "forbidden", "message": "not for Bob"})

        async with scene.bot(credential=CREDENTIAL):
            scene.backend.for_users.update({"17": drop, "18": forbid})
            while f"🟡 {SILENT[0]}" not in await scene.says(stranger, "/status"):
                pass
            is_told.set()
            await turned_away.wait()
            for chat in (ada, bob, stranger):
                status = await scene.says(chat, "/status")
                assert SILENT[0] in status
                assert "not for Bob" not in status
            beside = scene.store()
            assert f"the feed {SILENT[3]}" in (beside.trouble() or "")
            beside.close()
            go_on.set()


async def html(reply: Reply) -> None:
    """A page for people, as of a proxy in between."""
    reply.writer.write(b"HTTP/1.1 200 x\r\ncontent-length: 15\r\n\r\n<!doctype html>")
    await reply.writer.drain()


@pytest.mark.parametrize(
    ("act", "told"),
    [(html, ERRS), (drop, SILENT), (refuse(429), LIMITS), (refuse(403), FORBIDS)],
    ids=["no page", "no answer", "too many", "forbidden"],
)
async def test_who_cannot_be_linked_hears_the_same_case_as_those_who_are(
    act: Act, told: tuple[str, str, str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    pace = Pace(poll=0.05, backoff=0.01, answer=5.0)
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.backend.codes["CODE"] = (18, "Bob")
        scene.backend.for_users["18"] = act
        async with scene.bot(credential=CREDENTIAL, pace=pace):
            assert told[0] in await scene.says(ada, "/start CODE")
        [line] = [record.__dict__ for record in caplog.records if record.getMessage() == "bot_link_failed"]
        assert line["error"].startswith(f"the feed {told[3]}")


async def test_a_code_that_cannot_be_checked_tells_why(tmp_path: Path):
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        async with scene.bot(credential=CREDENTIAL):
            for act, told in ((refuse(401), REFUSES), (refuse(403), FORBIDS), (drop, SILENT), (refuse(500), ERRS)):
                scene.backend.for_users[""] = act
                answer = await scene.says(ada, "/start K7QM-3TXA")
                assert answer.startswith(f"I cannot check your code right now. {told[0]}")


async def quoting(scene: Stage) -> None:
    """The backend quotes what it was shown, as a careless one does."""

    async def quote(reply: Reply) -> None:
        shown = reply.request.headers.get("authorization", "")
        await reply.answer(401, {"error": "unauthorized", "message": f"{shown} is not known"})

    scene.backend.for_users.update({"17": quote, "": quote})


async def test_a_credential_that_the_backend_quotes_is_neither_told_nor_noted_nor_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    async with stage(tmp_path) as scene:
        ada = scene.telegram.open_chat("Ada")
        scene.link(ada, 17)
        await quoting(scene)
        async with scene.bot(credential=CREDENTIAL):
            assert "Bearer [hidden] is not known" in await scene.says(ada, "/status")
            await scene.says(ada, "/start K7QM-3TXA")
            store = scene.store()
            assert "Bearer [hidden] is not known" in (store.trouble() or "")
            store.close()
            scene.backend.for_users.clear()
            assert await scene.says(ada, "/connect") == "🟢 Connected."
            await quoting(scene)
            before = len(scene.backend.polls(17))
            await scene.backend.until(lambda: len(scene.backend.polls(17)) >= before + 2)
    told = everything(caplog) + "".join(scene.texts(ada))
    assert "bot_poll_failed" in told
    assert "hush" not in told
