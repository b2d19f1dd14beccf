"""The bot as tests run it: against a local Bot API server and a backend, quick where speed is not what is tested."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftercommit.client import Pace
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram import Bot, BotSettings, Link, Pacing, Store, Texts, open_store
from aftercommit.contrib.telegram.local_api import BotApiLimits, BotApiServer, Chat
from aftercommit.testing import Points
from tests.telegram.backend import Backend, backend

# As in production but for the waits.
QUICK = Pace(poll=0.05, idle_longest=0.1, limited_longest=0.3, answer=5.0)
UNLIMITED = BotApiLimits(overall=None, per_chat=None)
PAGE = "http://127.0.0.1:8090/tasks/board/{task_id}"


def quick_pacing() -> Pacing:
    """No waits to speak of."""
    return Pacing(overall=1000, chat_seconds=0.0, group_seconds=0.0)


@dataclass
class Stage:
    """Telegram, backend, state, and the bots between them."""

    telegram: BotApiServer
    backend: Backend
    state: str
    points: Points

    def settings(self, **given: Any) -> BotSettings:
        told: dict[str, Any] = {
            "token": self.telegram.token,
            "api": self.telegram.url,
            "feed": self.backend.feed,
            "redeem": f"{self.backend.url}/tasks/link-codes/redeem",
            "state": self.state,
            "texts": Texts(page=PAGE),
            "page": PAGE,
            "pace": QUICK,
            "connect_seconds": 0.0,
            **given,
        }
        return BotSettings(**told)

    def store(self) -> Store:
        store = open_store(self.state)
        store.prepare()
        return store

    def link(self, chat: Chat, user: int, place: str | None = "0", name: str = "Ada", **given: Any) -> Link:
        """Link a chat beforehand."""
        made = Link(chat.chat_id, str(user), name, "en", place, utc_now(), **given)
        store = self.store()
        store.put_link(made)
        store.close()
        return made

    def place(self, chat: Chat) -> str | None:
        """The place that is kept of a chat."""
        store = self.store()
        found = store.link(chat.chat_id)
        store.close()
        return found.place if found is not None else None

    @asynccontextmanager
    async def bot(self, *, pacing: Pacing | None = None, **given: Any) -> AsyncIterator[Bot]:
        """A running bot that has asked its backend."""
        checked = self.points.counts["bot.checked"]
        async with Bot(self.settings(**given), pacing=pacing or quick_pacing(), probe=self.points) as bot:
            await self.points.wait("bot.checked", checked + 1)
            yield bot

    async def says(self, chat: Chat, text: str) -> str:
        """What the bot answers to this."""
        before = len(self.telegram.sent(chat))
        self.telegram.write(chat, text)
        return str((await self.telegram.messages(chat, before + 1))[before].text)

    def texts(self, chat: Chat) -> list[str]:
        return [message.text for message in self.telegram.sent(chat)]


@asynccontextmanager
async def stage(folder: Path, *, limits: BotApiLimits = UNLIMITED, state: str | None = None) -> AsyncIterator[Stage]:
    """Everything but the bot."""
    async with BotApiServer(limits=limits) as telegram, backend() as behind:
        await telegram.answers()
        yield Stage(telegram, behind, state or str(folder / "bot.sqlite"), Points())


def said(caplog: Any, level: int = logging.WARNING) -> list[str]:
    """The names of the bot's own log lines from a level on."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("aftercommit.bot") and record.levelno >= level
    ]


def everything(caplog: Any) -> str:
    """Each log line with all its fields and its traceback."""
    formatter = logging.Formatter("%(message)s")
    return "\n".join(f"{formatter.format(record)} {record.__dict__}" for record in caplog.records)
