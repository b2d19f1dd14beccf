"""Delivers one event to one chat. The chat's position moves once the outcome is stored, not before."""

import logging
from collections.abc import Awaitable, Callable
from typing import assert_never

from aftercommit.backoff import Exponential
from aftercommit.client.wire import FeedEvent
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.answers import (
    ApiResult,
    Conflict,
    Denied,
    Later,
    Moved,
    Refused,
    Reply,
    Unreachable,
    wait_after,
)
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.reader import Gone
from aftercommit.contrib.telegram.sender import STALE, STOPPING, Sender
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.state import GAP, Link, UndeliveredEvent
from aftercommit.errors import TelegramRefused
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.bot")

Reach = Callable[..., Awaitable[None]]
_BACKOFF = Exponential(base=1.0, maximum=60.0)


class Delivery:
    """Sends messages and stores their outcomes."""

    def __init__(
        self, settings: BotSettings, memory: Memory, sender: Sender, reach: Reach, moved: Callable[[int], object]
    ) -> None:
        """`reach` is called at named points, for tests; `moved` with the new id of a group."""
        self._names = settings.names
        self._texts = settings.texts
        self._memory = memory
        self._sender = sender
        self._reach = reach
        self._moved = moved

    async def event(self, link: Link, event: FeedEvent, place: str, failures: int) -> float | None:
        """Deliver an event; returns None when it is settled, or seconds until the next attempt."""
        if event.withheld is not None:
            return await self._withheld(link, event, place, failures)
        kind = str(event.data.get(self._names.event_type) or "")
        if link.is_muted(utc_now()):
            await self._memory.keep(lambda store: store.count_passed(link, place))
        else:
            text = self._texts.event(link.language, kind, event.data)
            reply = await self._send(link, text, event.id)
            if (wait := await self._wait_after(link, reply, failures)) is not None:
                return wait
            await self._settle(link, reply, place, event.id, kind)
        await self._reach("bot.saved", event_id=event.id, chat_id=link.chat_id)
        return None

    async def _withheld(self, link: Link, event: FeedEvent, place: str, failures: int) -> float | None:
        """Tell the chat that the server could not show an event, and record it."""
        text = self._texts.message(link.language, "withheld")
        reply = await self._send(link, text, event.id, although_muted=True)
        if (wait := await self._wait_after(link, reply, failures)) is not None:
            return wait
        failure = _failure(link, place, event.id, "withheld", GAP, "the server could not show this event")
        await self._memory.keep(lambda store: store.set_aside(link, failure, place))
        _say_set_aside(failure)
        return None

    async def gap(self, link: Link, gone: Gone, failures: int, *, tell: bool) -> float | None:
        """Tell the chat that events are missing, unless it knows; record it, and continue where the server says."""
        restart = gone.restart or self._names.wire.beginning
        if tell:
            # Also to muted chats: missing events must not go unnoticed.
            reply = await self._send(link, self._texts.message(link.language, "gap"), "gap", although_muted=True)
            if (wait := await self._wait_after(link, reply, failures)) is not None:
                return wait
        reason = f"{gone.reason}: {gone.message}"
        failure = _failure(link, restart or "", f"after {link.place}", gone.reason, GAP, reason)
        await self._memory.keep(lambda store: store.set_aside(link, failure, restart))
        log_event(logger, logging.WARNING, "bot_gap", chat_id=link.chat_id, user_id=link.user_id, error=reason)
        return None

    async def passed(self, link: Link, failures: int) -> float | None:
        """Tell the chat how many events it missed while muted; record it if that fails for good."""
        text = self._texts.message(link.language, "muted_events", count=str(link.passed))
        reply = await self._send(link, text, "muted")
        if (wait := await self._wait_after(link, reply, failures)) is not None:
            return wait
        failure = None
        if isinstance(reply, Unreachable | Refused):
            about = f"{link.passed} up to {link.place}"
            failure = _failure(link, link.place or "", about, "muted", reply.kind, reply.reason)
            _say_set_aside(failure)
        await self._memory.keep(lambda store: store.told_passed(link, failure))
        return None

    async def _settle(self, link: Link, reply: Reply, place: str, event_id: str, event_type: str) -> None:
        """Store the outcome of an event: delivered, or set aside."""
        if isinstance(reply, Unreachable | Refused):
            failure = _failure(link, place, event_id, event_type, reply.kind, reply.reason)
            await self._memory.keep(lambda store: store.set_aside(link, failure, place))
            _say_set_aside(failure)
        else:
            await self._memory.keep(lambda store: store.move(link, place, delivered=True))

    async def _send(self, link: Link, text: str, event_id: str, *, although_muted: bool = False) -> Reply:
        async def still() -> bool:
            # While this message waited, the chat may have been linked to someone else, or muted.
            now = await self._memory.do(lambda store: store.link(link.chat_id))
            return link.is_same(now) and now is not None and (although_muted or not now.is_muted(utc_now()))

        await self._reach("bot.send", event_id=event_id, chat_id=link.chat_id)
        reply = await self._sender.send(link.chat_id, text, topic=link.topic, still=still)
        if reply is not STOPPING and reply is not STALE:
            await self._reach("bot.sent", event_id=event_id, chat_id=link.chat_id)
        return reply

    async def _wait_after(self, link: Link, reply: Reply, failures: int) -> float | None:
        """Seconds until the next attempt; None if the outcome is final."""
        match reply:
            case ApiResult() | Unreachable() | Refused():
                return None
            case Moved(chat_id=chat_id):
                await self._memory.keep(lambda store: store.renumber(link.chat_id, chat_id))
                log_event(logger, logging.INFO, "bot_chat_moved", chat_id=link.chat_id, to=chat_id)
                self._moved(chat_id)
                return 0.0
            case Later():
                return self._later(link, reply, failures)
            case Conflict() | Denied():
                raise TelegramRefused(reply.reason)
        assert_never(reply)

    def _later(self, link: Link, reply: Later, failures: int) -> float:
        if reply is STALE or reply is STOPPING:
            return 0.0
        if reply.limited and reply.seconds is not None:
            return reply.seconds
        wait = wait_after(reply, failures + 1, _BACKOFF)
        about = {"chat_id": link.chat_id, "user_id": link.user_id, "retry_in": wait}
        log_event(logger, logging.WARNING, "bot_delivery_failed", **about, error=reply.reason)
        return wait


def _failure(link: Link, place: str, event_id: str, event_type: str, kind: str, reason: str) -> UndeliveredEvent:
    return UndeliveredEvent(link.chat_id, link.user_id, place, event_id, event_type, kind, reason, utc_now())


def _say_set_aside(failure: UndeliveredEvent) -> None:
    about = {"chat_id": failure.chat_id, "user_id": failure.user_id, "event_id": failure.event_id}
    log_event(logger, logging.WARNING, "bot_event_set_aside", **about, kind=failure.kind, error=failure.reason)
