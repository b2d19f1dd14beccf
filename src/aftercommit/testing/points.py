"""Named points in the work of services, at which a test can let a service die or run an action.

    points = Points()
    points.crash_at("relay.delivered")                 # the next relay at this point dies
    async with Engine(outbox, database, probe=points): ...

A `World` has one for its `drain`. A separate program can take its crash point from the environment:
`Engine(…, probe=crash_from_environment())`.
"""

import asyncio
import inspect
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from aftercommit.errors import DeclarationError
from aftercommit.service import Probe
from aftercommit.testing.signals import Signals

CRASH_AT: Final = "AFTERCOMMIT_CRASH_AT"

POINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "relay.ready": "A relay has connected and holds its lanes.",
        "relay.read": "Due events were read; nothing is locked, counted or delivered.",
        "relay.counted": "After a takeover: the relay has counted an attempt for one event, and will make it now.",
        "relay.deliver": "A batch is about to be handed to the transport.",
        "relay.delivered": "The transport has answered; the outbox does not know yet. The log transport skips this.",
        "relay.appended": "Delivered events were committed to the log.",
        "relay.failed": "Failed deliveries were committed with their next attempt, or as parked.",
        "relay.gathering": "Many events arrive, and the relay waits a moment to take the next ones together.",
        "relay.idle": "There is nothing due.",
        "relay.measured": "The relay has measured how many events are pending, and for how long.",
        "relay.outage": "The transport as a whole is down; no attempt was spent.",
        "relay.fenced": "A write was refused because another relay had taken the lane.",
        "relay.stopped": "A relay has handed over its lanes and ends.",
        "consumer.standing_by": "Another worker holds the consumer.",
        "consumer.active": "A worker has taken the consumer's lease.",
        "consumer.paused": "The consumer is paused by an operator.",
        "consumer.read": "A page of the log was read; nothing of it is handled.",
        "consumer.joined": "Several consumers are about to handle the next events in one transaction.",
        "consumer.suspect": "After a takeover: the worker has counted a start for one event, and will handle it now.",
        "consumer.handled": "Effects and inbox rows of events are committed, and the checkpoint where it can be.",
        "consumer.failed": "A handler failed; its dead letter is committed.",
        "consumer.retrying": "Dead letters whose wait is over were read; none of them is tried yet.",
        "consumer.retried": "A dead letter had another attempt, whose outcome is committed.",
        "consumer.heartbeat": "The lease was renewed while handlers work.",
        "consumer.waiting": "The next event has a version that this code does not know; the consumer waits.",
        "consumer.put_back": "The consumer has put back dead letters that need newer code; no attempt was spent.",
        "consumer.idle": "The end of the log is reached and no retry is due.",
        "consumer.fenced": "A write was refused because another worker had taken the consumer.",
        "consumer.handed_over": "A worker of a divided consumer has given lanes to workers that have too few.",
        "consumer.stopped": "A worker has handed over its lease and ends.",
        "replay.feeding": "A driver has given the next items of a replay to workers and relays; not committed yet.",
        "replay.fed": "Those items are committed.",
        "replay.stepped": "A driver has committed one step: it counted finished items and fed new ones.",
        "bot.checked": "The bot has asked its backend once, at its start.",
        "bot.update": "The bot has read a message from a chat, and has not acted on it yet.",
        "bot.linked": "The bot has linked a chat and saved its place; it has not confirmed that to the chat yet.",
        "bot.answered": "The bot has answered a message from a chat; it has not saved that yet.",
        "bot.fetched": "A page with events was read from the feed; none of them is sent.",
        "bot.send": "A message is about to be sent.",
        "bot.sent": "Telegram has answered, or did not; the place has not moved.",
        "bot.saved": "The outcome of an event for a chat, and the chat's new place, are committed.",
        "database.lost": "A service has lost its database and is about to connect again.",
        "listener.working": "Notifications arrive.",
        "listener.deaf": "Notifications do not arrive; services poll.",
    }
)
"""The named points, and what has happened when a service reaches them."""

Action = Callable[[], Any]


class SimulatedCrash(BaseException):
    """A service died at a point, as if its process had been killed: nothing is released or finished."""


@dataclass(slots=True, eq=False)
class Plan:
    """An action at a point: `times` times, after the first `after` arrivals."""

    point: str
    action: Action | None
    times: int
    after: int
    done: int = 0
    passed: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the action has happened less often than planned."""
        return self.done < self.times

    def falls_due(self) -> bool:
        """Count one arrival at the point; whether the action happens now."""
        if not self.is_open:
            return False
        self.passed += 1
        if self.passed <= self.after:
            return False
        self.done += 1
        return True


class Points(Signals):
    """Signals that can also let services die, or run an action, at a point."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: list[Plan] = []

    def crash_at(self, point: str, *, times: int = 1, after: int = 0) -> Plan:
        """Let the next `times` services die at the point, after `after` arrivals."""
        return self._plan(point, None, times, after)

    def at(self, point: str, action: Action, *, times: int = 1, after: int = 0) -> Plan:
        """Run an action at the point: a function (in a thread) or a coroutine function."""
        return self._plan(point, action, times, after)

    @property
    def unreached(self) -> list[Plan]:
        """The plans that have not happened."""
        return [plan for plan in self._plans if plan.is_open]

    def require_reached(self, until: str) -> None:
        """AssertionError, once, if a plan has not happened."""
        __tracebackhide__ = True
        unreached, self._plans = self.unreached, [plan for plan in self._plans if not plan.is_open]
        for plan in unreached:
            # Without this, a test whose crash never comes would pass and prove nothing.
            raise AssertionError(
                f"the action planned for {plan.point!r} happened {plan.done} times, not {plan.times}, {until}. "
                f"Points reached: {', '.join(self.counts) or 'none'}"
            )

    async def __call__(self, point: str, detail: dict[str, Any]) -> None:
        """Services call it at each point."""
        await super().__call__(point, detail)
        for plan in [plan for plan in self._plans if plan.point == point and plan.falls_due()]:
            if plan.action is None:
                raise SimulatedCrash(point)
            await _run(plan.action)

    def _plan(self, point: str, action: Action | None, times: int, after: int) -> Plan:
        if times < 1 or after < 0:
            raise DeclarationError(f"{point!r}: times={times} must be at least 1 and after={after} at least 0")
        plan = Plan(checked_point(point), action, times, after)
        self._plans.append(plan)
        return plan


def checked_point(point: str) -> str:
    """The name, if there is such a point."""
    if point not in POINTS:
        close = get_close_matches(point, POINTS, 1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise DeclarationError(f"there is no point {point!r:.80}.{meant} Use one of {', '.join(POINTS)}")
    return point


def crash_environment(point: str, *, after: int = 0) -> dict[str, str]:
    """The environment variable that lets a program die at a point, if it uses `crash_from_environment`."""
    return {CRASH_AT: f"{checked_point(point)}:{after}"}


def crash_from_environment(environment: Mapping[str, str] | None = None) -> Probe | None:
    """A probe that kills this process (SIGKILL) at the point in AFTERCOMMIT_CRASH_AT: `relay.delivered`, or
    `relay.delivered:2` to let two pass. None if the variable is not set."""
    said = (os.environ if environment is None else environment).get(CRASH_AT)
    if not said:
        return None
    point, _, after = said.partition(":")
    if after and not after.isdecimal():
        raise DeclarationError(f"{CRASH_AT}={said!r:.80}: write a number after the colon, how many to let pass")
    plan = Plan(checked_point(point), None, times=1, after=int(after or 0))

    async def die(reached: str, detail: dict[str, Any]) -> None:
        if reached == plan.point and plan.falls_due():
            os.kill(os.getpid(), signal.SIGKILL)

    return die


async def _run(action: Action) -> None:
    # In a thread, because a fault may block until this event loop goes on.
    done = await (action() if inspect.iscoroutinefunction(action) else asyncio.to_thread(action))
    if inspect.isawaitable(done):
        await done
