"""Polls the feed for every linked chat and delivers new events: many chats in parallel, each in order.

A chat's turn is one page: poll, deliver event by event, store the position after each. Anything that has to wait, for
Telegram or for the backend, ends the turn, so that nothing is held in memory; the next turn polls again from the stored
position. At most `turns` turns run at once; the ones that are due longest go first.
"""

import asyncio
import heapq
import logging
import random
import time
from dataclasses import dataclass
from itertools import count
from typing import Final, assert_never

import msgspec

from aftercommit.client.machine import GONE, UNAUTHORIZED, Do, FollowMachine, FollowStep, is_passing
from aftercommit.client.wire import FetchedPage
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram.delivery import Delivery
from aftercommit.contrib.telegram.memory import Memory
from aftercommit.contrib.telegram.outage import Outage
from aftercommit.contrib.telegram.reader import BackendReader, Gone, News, Polled, PollFailed, Unchanged
from aftercommit.contrib.telegram.sender import Sender
from aftercommit.contrib.telegram.settings import BotSettings
from aftercommit.contrib.telegram.state import Link
from aftercommit.contrib.telegram.trouble import BackendTrouble
from aftercommit.errors import FollowError, StateError, StateUnavailable, TelegramRefused
from aftercommit.service import Probe, Service, Waker, wait_for_any
from aftercommit.telemetry import log_event
from aftercommit.text import readable

logger = logging.getLogger("aftercommit.bot")

_STATE_SECONDS: Final = 5.0
_BROKEN_SECONDS: Final = 60.0
_LOOK_AGAIN: Final = 30.0
# Time for messages on their way when the bot is stopped.
STOP_SECONDS: Final = 10.0


@dataclass(slots=True, eq=False)
class Seat:
    """What is kept of a chat between two turns. Its position is not: each turn reads it from the state."""

    machine: FollowMachine
    etag: tuple[str | None, str | None] = (None, None)
    failures: int = 0
    problem: BackendTrouble | None = None
    gap_was_told: bool = False


class Poller(Service):
    """Runs the turns of all linked chats."""

    name = "poller"

    def __init__(
        self,
        settings: BotSettings,
        memory: Memory,
        reader: BackendReader,
        sender: Sender,
        *,
        probe: Probe | None = None,
    ) -> None:
        super().__init__(probe)
        self._settings = settings
        self._memory = memory
        self._reader = reader
        self._delivery = Delivery(settings, memory, sender, self.reach, self.add)
        self._seats: dict[int, Seat] = {}
        self._due: list[tuple[float, int, int]] = []
        self._entries: dict[int, int] = {}
        self._order = count()
        self._turns: dict[int, asyncio.Task[None]] = {}
        self._polls = asyncio.Semaphore(settings.polls)
        self._outage = Outage()
        self._next_poll = 0.0
        self._news = Waker()
        self._fatal: BaseException | None = None
        self._problem: BackendTrouble | None = None
        self._noted: BackendTrouble | None = None

    def add(self, chat_id: int, seconds: float = 0.0) -> None:
        """Poll for this chat."""
        self._seats[chat_id] = Seat(FollowMachine(self._settings.pace, random.random, streams=False))
        self._seats[chat_id].machine.start(time.monotonic())
        if chat_id not in self._turns:
            self._schedule(chat_id, seconds)

    def problem_of(self, chat_id: int | None) -> BackendTrouble | None:
        """The trouble of this chat, or of all chats during an outage."""
        seat = self._seats.get(chat_id) if chat_id is not None else None
        return self._problem if self._outage.is_on else seat.problem if seat is not None else None

    async def run(self) -> None:
        """Run until stopped. Messages on their way are finished and stored; nothing new is started."""
        links = await self._memory.keep(lambda store: store.links())
        for number, link in enumerate(links):
            # Spread over the first interval.
            self.add(link.chat_id, self._settings.pace.poll * number / len(links))
        try:
            while not self.stopping.is_set() and self._fatal is None:
                wait = self._begin_turns()
                await wait_for_any(wait, self.stopping, self._news)
                self._news.clear()
        finally:
            await self._finish()
        if self._fatal is not None:
            raise self._fatal

    def _begin_turns(self) -> float:
        """Start due turns, as far as there is room; returns seconds until the next check."""
        now = time.monotonic()
        if (held := self._outage.wait(now)) > 0:
            return held
        room = 1 if self._outage.is_on else self._settings.turns
        while self._due and len(self._turns) < room:
            moment, entry, chat_id = self._due[0]
            if moment > now:
                return moment - now
            heapq.heappop(self._due)
            if self._entries.get(chat_id) == entry:
                del self._entries[chat_id]
                self._turns[chat_id] = asyncio.create_task(self._turn(chat_id), name=f"turn {chat_id}")
        return _LOOK_AGAIN

    async def _turn(self, chat_id: int) -> None:
        """Run one turn of a chat, and schedule the next one."""
        seat = self._seats[chat_id]
        wait: float | None = _BROKEN_SECONDS
        try:
            wait = await self._take(chat_id, seat)
        except StateUnavailable as problem:
            wait = _STATE_SECONDS
            log_event(logger, logging.ERROR, "bot_state_unavailable", chat_id=chat_id, error=readable(problem))
        except (TelegramRefused, StateError) as problem:
            self._fatal = problem
        except Exception as problem:  # noqa: BLE001 - an error of one chat must not stop the others
            log_event(logger, logging.ERROR, "bot_turn_failed", problem, chat_id=chat_id, error=readable(problem))
        except BaseException as problem:
            if not isinstance(problem, asyncio.CancelledError):
                self._fatal = problem
            raise
        finally:
            del self._turns[chat_id]
            if wait is None and self._seats.get(chat_id) is seat:
                del self._seats[chat_id]
            else:
                self._schedule(chat_id, wait or 0.0)
            self._news.set()

    async def _take(self, chat_id: int, seat: Seat) -> float | None:
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
                return self._outage.wait(time.monotonic())
            case PollFailed():
                wait = self._not_answered(link, seat, polled)
                await self._note(self._problem if self._outage.is_on else None)
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
            if self._outage.wait(time.monotonic()) > 0:
                return None
            polled = await self._reader.poll(link.user_id, link.place, etag if place == link.place else None)
        if not isinstance(polled, PollFailed):
            self._outage.succeeded()
            seat.problem = None
            await self._note(None)
        if isinstance(polled, News | Unchanged):
            seat.gap_was_told = False
        if isinstance(polled, News):
            # An ETag belongs to its request: it is useful as long as the position stays.
            seat.etag = (link.place, polled.etag) if not polled.page.events else (None, None)
            if polled.page.events:
                await self.reach("bot.fetched", chat_id=link.chat_id, count=len(polled.page.events))
        return polled

    async def _spaced(self) -> None:
        """Keep all chats together below `polls_per_second`."""
        now = time.monotonic()
        moment = max(now, self._next_poll)
        self._next_poll = moment + 1 / self._settings.polls_per_second
        if moment > now:
            await wait_for_any(moment - now, self.stopping)

    async def _deliver(self, link: Link, seat: Seat, page: FetchedPage) -> float:
        chat_id = link.chat_id
        for event in page.events:
            # The chat may have been muted, unlinked or linked again meanwhile.
            current = await self._memory.do(lambda store: store.link(chat_id))
            if self.stopping.is_set() or current is None or not link.is_same(current):
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
            self._outage.failed(now, min(failed.retry_after or 0.0, self._settings.pace.longest))
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
            return max(step.seconds, len(self._seats) / self._settings.polls_per_second)
        # A follower would stop for good here, but an operator may fix a permission or a credential.
        return self._settings.pace.limited_longest if step.do is Do.STOP else 0.0

    def _schedule(self, chat_id: int, seconds: float) -> None:
        # Only the last entry of a chat counts; older ones in the heap are skipped.
        entry = self._entries[chat_id] = next(self._order)
        heapq.heappush(self._due, (time.monotonic() + seconds, entry, chat_id))
        self._news.set()

    async def _finish(self) -> None:
        self.stopping.set()
        turns = list(self._turns.values())
        if self._fatal is not None:
            for turn in turns:
                turn.cancel()
        if turns:
            _, late = await asyncio.wait(turns, timeout=STOP_SECONDS)
            for turn in late:
                turn.cancel()
            await asyncio.gather(*turns, return_exceptions=True)
