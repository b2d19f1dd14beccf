"""The bot's commands: /start, /status, /connect, /mute, /unmute, /unlink, /help."""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.connector import Connector
from aftercommit.contrib.telegram.delivery import Reach
from aftercommit.contrib.telegram.linking import LONGEST_CODE, Guesses, Unchecked, Wrong, hash_of, redeem
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.reader import BackendReader
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.state import FOR_EVER, Code, Link, muted_until
from aftercommit.contrib.telegram.texts import Table
from aftercommit.contrib.telegram.trouble import STILL_ASKING, BackendTrouble
from aftercommit.contrib.telegram.updates import ChatCommand
from aftercommit.errors import FollowError
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.bot")

# In the order in which Telegram shows them.
COMMANDS: Final = ("start", "status", "connect", "mute", "unmute", "unlink", "help")
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([smhdw])[a-z]*", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SHOWN_FAILURES: Final = 3
_LONGEST_REASON: Final = 150


class Commands:
    """Answers commands, each with one text."""

    def __init__(
        self, settings: BotSettings, memory: Memory, reader: BackendReader, connector: Connector, reach: Reach
    ) -> None:
        self._texts = settings.texts
        self._memory = memory
        self._reader = reader
        self._connector = connector

        self._guesses = Guesses()
        self._reach = reach
        self._known: Mapping[str, Callable[[ChatCommand, Link | None, str], Awaitable[str]]] = {
            "start": self._start,
            "status": self._status,
            "connect": self._connect,
            "mute": self._mute,
            "unmute": self._unmute,
            "unlink": self._unlink,
            "help": self._help,
        }

    async def answer(self, command: ChatCommand) -> str:
        """Run a command and return the answer."""
        link = await self._memory.do(lambda store: store.link(command.chat_id))
        language = self._texts.language(command.language or (link.language if link is not None else None))
        if link is not None and link.language != language and command.private:
            await self._memory.do(lambda store: store.speak(command.chat_id, language))
        do = self._known.get(command.name)
        return await do(command, link, language) if do is not None else self._texts.message(language, "hint")

    async def _start(self, command: ChatCommand, link: Link | None, language: str) -> str:
        # People put spaces between the groups of a code.
        code = "".join(command.argument.split())
        if code:
            return await self._link(command, link, language, code)
        if link is None:
            return self._texts.message(language, "hello")
        return await self._come_back(link) or self._texts.message(language, "hello_linked", name=link.name)

    async def welcome_back(self, chat_id: int) -> str | None:
        """The answer when a chat can be reached again; None if it was not lost."""
        link = await self._memory.do(lambda store: store.link(chat_id))
        return await self._come_back(link) if link is not None else None

    async def _come_back(self, link: Link) -> str | None:
        if link.unreachable is None:
            return None
        chat_id, since = link.chat_id, link.unreachable_at
        missed = await self._memory.do(lambda store: store.count_failures(chat_id, user_id=link.user_id, since=since))
        await self._memory.do(lambda store: store.reached(chat_id))
        return self._texts.message(link.language, "back", name=link.name, count=str(missed) if missed else None)

    async def _link(self, command: ChatCommand, link: Link | None, language: str, code: str) -> str:
        chat_id = command.chat_id
        if link is not None and link.code_hash == hash_of(code):
            # The same update again: a crash lost its answer.
            return self._linked(link, language)
        if (wait := self._guesses.wait(chat_id, time.monotonic())) > 0:
            return self._texts.message(language, "code_many", minutes=str(int(wait // 60) + 1))
        found = await redeem(code, self._memory, self._reader) if len(code) <= LONGEST_CODE else Wrong()
        if isinstance(found, Wrong):
            self._guesses.count(chat_id, time.monotonic())
            return self._texts.message(language, "code_wrong")
        if isinstance(found, Unchecked):
            log_event(logger, logging.WARNING, "bot_link_failed", chat_id=chat_id, error=str(found.trouble))
            return self._texts.message(language, "code_unchecked", trouble=self._word(found.trouble, language))
        try:
            new = await self._kept_link(command, link, found, language, code)
        except FollowError as problem:
            trouble = self._reader.trouble_of(problem)
            about = {"chat_id": chat_id, "user_id": found.user_id, "error": str(trouble)}
            log_event(logger, logging.WARNING, "bot_link_failed", **about)
            return self._texts.message(language, "link_failed", trouble=self._word(trouble, language))
        await self._reach("bot.linked", chat_id=chat_id, user_id=found.user_id)
        self._connector.poller.add(chat_id)
        return self._linked(new, language)

    async def _kept_link(self, command: ChatCommand, link: Link | None, found: Code, language: str, code: str) -> Link:
        """Store the link for a code. It starts at the newest event; the same user keeps their position.

        The code is used up by now, so this retries until the link is stored.
        """
        if link is not None and link.user_id == found.user_id:
            place = link.place
        else:
            place = await self._reader.newest(found.user_id)
        who = (command.chat_id, found.user_id, found.name)
        made = Link(*who, language, place, utc_now(), code_hash=hash_of(code), topic=command.topic)
        await self._memory.keep(lambda store: store.put_link(made))
        return made

    def _linked(self, link: Link, language: str) -> str:
        said = self._texts.message(language, "linked", name=link.name)
        if not self._connector.is_connected:
            said += "\n" + self._texts.message(language, "not_connected_yet")
        return said

    async def _status(self, command: ChatCommand, link: Link | None, language: str) -> str:
        if link is None:
            return "\n".join([self._texts.message(language, "status_not_linked"), self._connection(None, language)])
        lines = [self._texts.message(language, "status_linked", name=link.name), self._connection(link, language)]
        if link.is_muted(utc_now()):
            until = _shown(link.muted_until)
            lines.append(self._texts.message(language, "status_muted", until=until, count=str(link.passed)))
        return "\n".join([*lines, *await self._set_aside(link, language)])

    def _connection(self, link: Link | None, language: str) -> str:
        connector = self._connector
        problem = connector.poller.chats.problem_of(link.chat_id if link is not None else None)
        if not connector.is_connected:
            return self._troubled("status_not_connected", connector.problem, link, language)
        if problem is not None:
            return self._troubled("status_waiting", problem, link, language)
        place = link.place if link is not None and link.place not in (None, "", "0") else "–"
        return self._texts.message(language, "status_connected", place=place)

    async def _set_aside(self, link: Link, language: str) -> list[str]:
        chat_id, user_id = link.chat_id, link.user_id
        count = await self._memory.do(lambda store: store.count_failures(chat_id, user_id=user_id))
        if not count:
            return []
        newest = await self._memory.do(lambda store: store.failures(chat_id, user_id=user_id, limit=_SHOWN_FAILURES))
        lines = [self._texts.message(language, "status_failures", count=str(count))]
        for each in newest:
            about = {"event": f"{each.event_type} {each.event_id}".strip(), "reason": each.reason[:_LONGEST_REASON]}
            lines.append(self._texts.message(language, "status_failure", **about, at=_shown(each.at)))
        return lines

    async def _connect(self, command: ChatCommand, link: Link | None, language: str) -> str:
        connector = self._connector
        if connector.is_connected:
            return self._texts.message(language, "connected_already")
        if seconds := connector.seconds_until_next:
            return self._texts.message(language, "connect_soon", seconds=str(seconds))
        if await connector.connect():
            return self._texts.message(language, "connected")
        return self._troubled("connect_failed", connector.problem, link, language)

    def _troubled(self, name: str, trouble: BackendTrouble | None, link: Link | None, language: str) -> str:
        """A message about trouble. Only linked chats see the reason."""
        reason = trouble.reason if trouble is not None and link is not None else None
        return self._texts.message(language, name, trouble=self._word(trouble, language), reason=reason)

    def _word(self, trouble: BackendTrouble | None, language: str) -> str:
        return self._texts.word(language, STILL_ASKING if trouble is None else trouble.kind)

    async def _mute(self, command: ChatCommand, link: Link | None, language: str) -> str:
        if link is None:
            return self._texts.message(language, "not_linked")
        if command.argument.lower() in ("off", "0"):
            return await self._unmute(command, link, language)
        time_given = _duration(command.argument) if command.argument else None
        if command.argument and time_given is None:
            return self._texts.message(language, "mute_unclear", text=command.argument[:60])
        until = muted_until(utc_now(), time_given)
        await self._memory.do(lambda store: store.mute(link.chat_id, until))
        if until == FOR_EVER:
            return self._texts.message(language, "muted_for_ever")
        return self._texts.message(language, "muted", until=_shown(until))

    async def _unmute(self, command: ChatCommand, link: Link | None, language: str) -> str:
        if link is None:
            return self._texts.message(language, "not_linked")
        if link.muted_until is None:
            return self._texts.message(language, "unmuted_already")
        await self._memory.do(lambda store: store.mute(link.chat_id, None))
        if self._connector.is_connected:
            self._connector.poller.add(link.chat_id)
        return self._texts.message(language, "unmuted")

    async def _unlink(self, command: ChatCommand, link: Link | None, language: str) -> str:
        gone = await self._memory.do(lambda store: store.unlink(command.chat_id))
        return self._texts.message(language, "unlinked" if gone else "not_linked")

    async def _help(self, command: ChatCommand, link: Link | None, language: str) -> str:
        return self._texts.message(language, "help")


def _duration(text: str) -> timedelta | None:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    try:
        found = timedelta(seconds=float(match[1]) * _UNITS[match[2].lower()])
    except OverflowError:
        return timedelta.max
    return found or None


def _shown(moment: datetime | None) -> str:
    if moment is None or moment == FOR_EVER:
        return "/unmute"
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def described(table: Table) -> list[tuple[str, str]]:
    """The commands with their descriptions."""
    return [(name, table.commands[name]) for name in COMMANDS]
