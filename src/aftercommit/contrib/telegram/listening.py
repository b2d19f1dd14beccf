"""Receives what people write to the bot: fetches updates from Telegram, answers them, and stores the offset.

Chats are handled in parallel, each in order, so a slow command delays only its own chat. An update is confirmed to
Telegram only when it is handled: after a crash the bot gets it again, and handling it twice is harmless.
"""

import asyncio
import logging
from collections import Counter, deque
from functools import partial
from typing import Any, Final, assert_never

import msgspec

from aftercommit.contrib.telegram.answers import (
    ApiResult,
    Conflict,
    Denied,
    Later,
    Moved,
    Refused,
    Reply,
    Unreachable,
    reason_of,
    wait_after,
)
from aftercommit.contrib.telegram.api import BotApi
from aftercommit.contrib.telegram.commands import Commands
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.poller import Poller
from aftercommit.contrib.telegram.progress import WINDOW, UpdateProgress
from aftercommit.contrib.telegram.sender import STOPPING, Sender
from aftercommit.contrib.telegram.state import UPDATES
from aftercommit.contrib.telegram.states.sql import Store
from aftercommit.contrib.telegram.updates import ChatCommand, Heard, Membership, Renumbered, heard
from aftercommit.errors import StateError, StateUnavailable, TelegramRefused
from aftercommit.service import Probe, Service, Waker, until_one_ends, wait_for_any
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.bot")

# Commands of one chat that may wait for an answer; more are ignored.
_PER_CHAT: Final = 3
# Run even above that limit, but without an answer: people must always be able to silence the bot.
_ALWAYS: Final = frozenset({"mute", "unmute", "unlink"})
_ATTEMPTS: Final = 3
_LONGEST_WAIT: Final = 5.0
_STATE_SECONDS: Final = 5.0
# Seconds to wait for running answers before the next request, which would return the same updates again.
_ANSWER_SECONDS: Final = 0.5
_MOST_CHATS: Final = 200
_GONE_REASON: Final = "the bot was blocked or removed"


class HeardUpdate(msgspec.Struct, frozen=True):
    """An update of a chat with its number."""

    number: int
    said: Heard
    answered: bool = True


class Listening(Service):
    """Handles messages from people to the bot."""

    name = "listening"

    def __init__(
        self,
        api: BotApi,
        memory: Memory,
        sender: Sender,
        commands: Commands,
        poller: Poller,
        bot_name: str,
        wait_seconds: int,
        *,
        probe: Probe | None = None,
    ) -> None:
        """`wait_seconds` is the long-poll time of a request for updates."""
        super().__init__(probe)
        self._api = api
        self._memory = memory
        self._sender = sender
        self._commands = commands
        self._poller = poller
        self._bot_name = bot_name
        self._wait = wait_seconds
        self._failures = 0
        self._queues: dict[int, deque[HeardUpdate]] = {}
        self._chats: dict[int, asyncio.Task[None]] = {}
        self._idle = Waker()
        self._broken = Waker()
        self._fatal: BaseException | None = None
        self._progress = UpdateProgress(0)
        self._noted: str | None = ""

    async def run(self) -> None:
        """Run until stopped. Running answers are finished; Telegram sends the rest again at the next start."""
        self._progress = UpdateProgress(await self._memory.keep(lambda store: store.offset()))
        try:
            while not self.stopping.is_set() and self._fatal is None:
                await self._round()
            await self._finish()
        finally:
            for task in self._chats.values():
                task.cancel()
            await asyncio.gather(*self._chats.values(), return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal

    async def _round(self) -> None:
        """Request updates once, and handle them."""
        offset = self._progress.offset()
        reply = await self._updates(offset)
        if not isinstance(reply, ApiResult):
            await self._not_answered(reply)
            return
        await self._recovered()
        self._take(reply.result)
        if self._progress.is_open:
            await wait_for_any(_ANSWER_SECONDS, self.stopping, self._idle, self._broken)
        if self._progress.offset() != offset:
            await self._remember()

    async def _updates(self, offset: int) -> Reply:
        """Wait for updates, until the bot is stopped."""
        asking = asyncio.ensure_future(self._api.get_updates(offset, self._wait))
        await until_one_ends(asking, self.stopping.wait(), self._broken.wait())
        return ApiResult([]) if asking.cancelled() else asking.result()

    def _take(self, result: Any) -> None:
        """Start handling new updates, chats in parallel."""
        updates = {
            each["update_id"]: each
            for each in result or ()
            if isinstance(each, dict) and isinstance(each.get("update_id"), int)
        }
        new = self._progress.unknown(updates)
        ignored: Counter[int] = Counter()
        for number in sorted(new):
            said = heard(updates[number], self._bot_name)
            self._progress.begin(number, must=said is not None and _must_not_be_lost(said))
            if said is None or not self._is_begun(number, said):
                self._progress.done(number)
                if said is not None:
                    ignored[said.chat_id] += 1
        for chat_id, count in ignored.items():
            log_event(logger, logging.INFO, "bot_commands_ignored", chat_id=chat_id, count=count)
        if not new and len(updates) >= WINDOW and len(self._chats) < _MOST_CHATS:
            self._progress.give_way()

    def _is_begun(self, number: int, said: Heard) -> bool:
        """Queue an update behind earlier ones of its chat; False if there are too many."""
        queue = self._queues.setdefault(said.chat_id, deque())
        waiting = sum(entry.answered and isinstance(entry.said, ChatCommand) for entry in queue)
        hammers = isinstance(said, ChatCommand) and waiting >= _PER_CHAT
        if hammers and not _must_not_be_lost(said):
            return False
        queue.append(HeardUpdate(number, said, answered=not hammers))
        if said.chat_id not in self._chats:
            self._idle.clear()
            self._chats[said.chat_id] = asyncio.create_task(self._chat(said.chat_id, queue))
        return True

    async def _chat(self, chat_id: int, queue: deque[HeardUpdate]) -> None:
        """Handle the updates of one chat in order."""
        try:
            while queue and not self.stopping.is_set():
                if await self._until_done(queue[0]):
                    self._progress.done(queue[0].number)
                queue.popleft()
        except asyncio.CancelledError:
            raise
        except BaseException as problem:  # noqa: BLE001 - run() raises it
            self._fatal = self._fatal or problem
            self._broken.set()
        finally:
            del self._chats[chat_id], self._queues[chat_id]
            if not self._chats:
                self._idle.set()

    async def _until_done(self, entry: HeardUpdate) -> bool:
        """Handle an update; False if the bot is stopped first."""
        while not self.stopping.is_set():
            try:
                return await self._one(entry)
            except StateUnavailable as problem:
                log_event(
                    logger, logging.ERROR, "bot_state_unavailable", error=readable(problem), retry_in=_STATE_SECONDS
                )
                await wait_for_any(_STATE_SECONDS, self.stopping)
            except (TelegramRefused, StateError):
                raise
            except Exception as problem:  # noqa: BLE001 - one bad update must not stop the bot
                about = {"chat_id": entry.said.chat_id, "error": readable(problem)}
                log_event(logger, logging.ERROR, "bot_command_failed", problem, **about)
                return True
        return False

    async def _one(self, entry: HeardUpdate) -> bool:
        said = entry.said
        await self.reach("bot.update", chat_id=said.chat_id)
        text = await self._effect(said)
        self._progress.effected(entry.number)
        if text is None or not entry.answered:
            return True
        answered = await self._answer(said, text)
        await self.reach("bot.answered", chat_id=said.chat_id)
        return answered

    async def _effect(self, said: Heard) -> str | None:
        """Apply an update; returns the answer, if there is one."""
        match said:
            case ChatCommand():
                return await self._commands.answer(said)
            case Membership(chat_id=chat_id, member=True):
                return await self._commands.welcome_back(chat_id)
            case Membership(chat_id=chat_id):
                await self._memory.do(lambda store: store.lost(chat_id, _GONE_REASON))
                return None
            case Renumbered(chat_id=chat_id, new_chat_id=new_chat_id):
                await self._renumber(chat_id, new_chat_id)
                return None
        assert_never(said)

    async def _renumber(self, chat_id: int, new_chat_id: int) -> None:
        if await self._memory.do(lambda store: store.link(chat_id)) is not None:
            await self._memory.do(lambda store: store.renumber(chat_id, new_chat_id))
            self._poller.add(new_chat_id)

    async def _answer(self, said: Heard, text: str) -> bool:
        """Answer where the question was asked; gives up after a few attempts. False if the bot is stopped first."""
        reason, chat_id = "", said.chat_id
        topic = said.topic if isinstance(said, ChatCommand) else None
        for attempt in range(1, _ATTEMPTS + 1):
            reply = await self._sender.send(chat_id, text, topic=topic, max_wait_seconds=_LONGEST_WAIT)
            reason = reason_of(reply)
            match reply:
                case Later(seconds=seconds):
                    if reply is STOPPING or self.stopping.is_set():
                        return False
                    if attempt == _ATTEMPTS or (seconds or 0.0) > _LONGEST_WAIT:
                        break
                    await wait_for_any(seconds if seconds is not None else float(attempt), self.stopping)
                case Moved(chat_id=moved_to):
                    chat_id = moved_to
                case Denied() | Conflict():
                    raise TelegramRefused(reply.reason)
                case Unreachable():
                    await self._memory.do(partial(Store.lost, chat_id=chat_id, reason=reason))
                    return True
                case Refused():
                    break
                case ApiResult():
                    return True
                case _:
                    assert_never(reply)
        log_event(logger, logging.WARNING, "bot_answer_failed", chat_id=chat_id, error=reason)
        return True

    async def _not_answered(self, reply: Reply) -> None:
        if isinstance(reply, Denied):
            raise TelegramRefused(reply.reason)
        self._failures += 1
        wait = wait_after(reply, self._failures)
        reason, remedy = reason_of(reply), _remedy(reply)
        if self._failures == 1:
            log_event(logger, logging.WARNING, "bot_updates_failed", error=reason, retry_in=wait, remedy=remedy)
        await self._note(f"the bot receives no messages from people ({reason}): {remedy}")
        await wait_for_any(wait, self.stopping, self._broken)

    async def _recovered(self) -> None:
        if self._failures:
            log_event(logger, logging.INFO, "bot_updates_again", failures=self._failures)
        self._failures = 0
        await self._note(None)

    async def _note(self, said: str | None) -> None:
        """Record trouble for `bot status`, or clear an old note."""
        if said != self._noted:
            await self._memory.keep(lambda store: store.note_trouble(said, UPDATES))
            self._noted = said

    async def _finish(self) -> None:
        """Finish running answers; the caller limits the time."""
        if self._fatal is None:
            await asyncio.gather(*self._chats.values())
            await self._remember()

    async def _remember(self) -> None:
        offset = self._progress.offset()
        await self._memory.keep(lambda store: store.save_offset(offset))


def _remedy(reply: Reply) -> str:
    """What the operator has to do when the bot gets no updates."""
    if not isinstance(reply, Conflict):
        return "check that this machine can reach Telegram; the bot keeps trying"
    if "webhook" in reply.reason.lower():
        return "a webhook gets the updates: call deleteWebhook with this token, or give the bot its own token"
    return "stop the other program that calls getUpdates with this token, or give the bot its own token"


def _must_not_be_lost(said: Heard) -> bool:
    return not isinstance(said, ChatCommand) or said.name in _ALWAYS
