"""The turns of chats: a turn polls the feed for one chat and delivers new events.

A turn is one page: poll, deliver event by event, store the position after each. Anything that has to wait, for Telegram
or for the backend, ends the turn, so that nothing is held in memory; the next turn polls again from that position.
"""

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from typing import assert_never

import msgspec

from aftercommit.client.machine import GONE, UNAUTHORIZED, Do, FollowMachine, FollowStep, is_passing
from aftercommit.client.wire import FetchedPage
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.delivery import Delivery
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.outage import Outage
from aftercommit.contrib.telegram.reader import BackendReader, Gone, News, Polled, PollFailed, Unchanged
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.state import Link
from aftercommit.contrib.telegram.trouble import BackendTrouble
from aftercommit.errors import FollowError
from aftercommit.service import Service, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.bot")


@dataclass(slots=True, eq=False)
class Seat:
    """What is kept of a chat between two turns. Its position is not: each turn reads it from the state."""

    machine: FollowMachine
    etag: tuple[str | None, str | None] = (None, None)
    failures: int = 0
    problem: BackendTrouble | None = None
    gap_was_told: bool = False


class ChatTurns:
    """Takes turns. All chats share the limits on polls, and an outage of the feed."""

    def __init__(
        self, settings: BotSettings, memory: Memory, reader: BackendReader, delivery: Delivery, owner: Service
    ) -> None:
        self.seats: dict[int, Seat] = {}
        self.outage = Outage()
        self._settings = settings
        self._memory = memory
        self._reader = reader
        self._delivery = delivery
        self._owner = owner
        self._polls = asyncio.Semaphore(settings.polls)
        self._next_poll = 0.0
        self._problem: BackendTrouble | None = None
        self._noted: BackendTrouble | None = None

    def add(self, chat_id: int) -> None:
        """A new seat, so that the next turn polls at once."""
        self.seats[chat_id] = Seat(FollowMachine(self._settings.pace, random.random, streams=False))
        self.seats[chat_id].machine.start(time.monotonic())

    def problem_of(self, chat_id: int | None) -> BackendTrouble | None:
        """The trouble of this chat, or of all chats during an outage."""
        seat = self.seats.get(chat_id) if chat_id is not None else None
        return self._problem if self.outage.is_on else seat.problem if seat is not None else None

    async def take(self, chat_id: int, seat: Seat) -> float | None:
        """One turn; returns seconds until the next one, or None if the chat is no longer linked."""
        link = await self._memory.do(lambda store: store.link(chat_id))
        if link is None:
            return None
        if link.passed and not link.is_muted(utc_now()):
            wait = await self._delivery.passed(link, seat.failures)
            if wait is not None:
                return self._after_failure(seat, wait)
        polled = await self._poll(link, seat)
        match polled:
            case None:
                return self.outage.wait(time.monotonic())
            case PollFailed():
                wait = self._not_answered(link, seat, polled)
                await self._note(self._problem if self.outage.is_on else None)
                return wait
            case Unchanged():
                return self._seconds(seat.machine.unchanged(time.monotonic()))
            case Gone():
                return await self._gap(link, seat, polled)
            case News(page=page):
                return await self._deliver(link, seat, page)
        assert_never(polled)

    async def _gap(self, link: Link, seat: Seat, gone: Gone) -> float:
        """Events are missing. The chat is told once, and not again until there was a page.

        After a restore a server may offer only the beginning of the log. Then the chat continues with new events
        instead of getting everything again.
        """
        if gone.reason == "epoch" and gone.restart in (None, self._settings.names.wire.beginning):
            try:
                newest = await self._reader.newest(link.user_id)
            except FollowError as problem:
                return self._not_answered(link, seat, PollFailed(self._reader.trouble_of(problem)))
            gone = msgspec.structs.replace(gone, restart=newest)
        wait = await self._delivery.gap(link, gone, seat.failures, tell=not seat.gap_was_told)
        if wait is not None:
            return self._after_failure(seat, wait)
        seat.gap_was_told = True
        return self._seconds(seat.machine.poll_refused(time.monotonic(), GONE))

    async def _poll(self, link: Link, seat: Seat) -> Polled | None:
        """Poll; None if an outage began while this poll waited."""
        place, etag = seat.etag
        async with self._polls:
            await self._spaced()
            if self.outage.wait(time.monotonic()) > 0:
                return None
            polled = await self._reader.poll(link.user_id, link.place, etag if place == link.place else None)
        if not isinstance(polled, PollFailed):
            self.outage.succeeded()
            seat.problem = None
            await self._note(None)
        if isinstance(polled, News | Unchanged):
            seat.gap_was_told = False
        if isinstance(polled, News):
            # An ETag belongs to its request: it is useful as long as the position stays.
            seat.etag = (link.place, polled.etag) if not polled.page.events else (None, None)
            if polled.page.events:
                await self._owner.reach("bot.fetched", chat_id=link.chat_id, count=len(polled.page.events))
        return polled

    async def _spaced(self) -> None:
        """Keep all chats together below `polls_per_second`."""
        now = time.monotonic()
        moment = max(now, self._next_poll)
        self._next_poll = moment + 1 / self._settings.polls_per_second
        if moment > now:
            await wait_for_any(moment - now, self._owner.stopping)

    async def _deliver(self, link: Link, seat: Seat, page: FetchedPage) -> float:
        chat_id = link.chat_id
        for event in page.events:
            # The chat may have been muted, unlinked or linked again meanwhile.
            current = await self._memory.do(lambda store: store.link(chat_id))
            if self._owner.stopping.is_set() or current is None or not link.is_same(current):
                return 0.0
            place = event.cursor
            assert place is not None, "the reader refuses pages whose events have no cursors"
            wait = await self._delivery.event(current, event, place, seat.failures)
            if wait is not None:
                return self._after_failure(seat, wait)
            seat.failures = 0
            link = msgspec.structs.replace(current, place=place)
        if page.next is not None and page.next != link.place:
            await self._memory.keep(lambda store: store.move(link, page.next or ""))
        return self._seconds(seat.machine.page(time.monotonic(), len(page.events), page.more))

    def _not_answered(self, link: Link, seat: Seat, failed: PollFailed) -> float:
        """Log a failed poll; the position stays, and the next turn tries again."""
        now = time.monotonic()
        seat.problem = failed.trouble
        if failed.status is None or failed.status == UNAUTHORIZED or is_passing(failed.status):
            # Trouble of one user, such as a missing permission, does not count for the others.
            self._problem = failed.trouble
            self.outage.failed(now, min(failed.retry_after or 0.0, self._settings.pace.longest))
        if failed.status is None:
            step = seat.machine.poll_failed(now)
        else:
            step = seat.machine.poll_refused(now, failed.status, failed.retry_after)
        wait = self._seconds(step)
        about = {"user_id": link.user_id, "chat_id": link.chat_id, "status": failed.status, "retry_in": wait}
        trouble = failed.trouble
        case = {"kind": trouble.kind, "error": trouble.reason, "remedy": trouble.remedy}
        log_event(logger, logging.WARNING, "bot_poll_failed", **about, **case)
        return wait

    async def _note(self, trouble: BackendTrouble | None) -> None:
        """Record an outage for `bot status`, or its end."""
        if trouble != self._noted:
            await self._memory.do(lambda store: store.note_trouble(None if trouble is None else str(trouble)))
            self._noted = trouble

    def _after_failure(self, seat: Seat, wait: float) -> float:
        seat.failures += 1
        return wait

    def _seconds(self, step: FollowStep) -> float:
        if step.do is Do.WAIT:
            # With many chats, each polls less often, to keep below `polls_per_second`.
            return max(step.seconds, len(self.seats) / self._settings.polls_per_second)
        # A follower would stop for good here, but an operator may fix a permission or a credential.
        return self._settings.pace.limited_longest if step.do is Do.STOP else 0.0
