"""Runs relay and consumers in this process until nothing is left to do: deterministic, and without background tasks.

The services are the real ones. In each round the relay runs until it is idle, then the consumers in the order of their
declaration. Rounds repeat, because handlers may publish. After a service has died at a crash point, a new one takes
over.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from aftercommit.consumer import Dispatcher, LogWorker
from aftercommit.errors import DeclarationError, DrainFailed, DrainNeverEnded, TransportUnavailable
from aftercommit.outbox import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay
from aftercommit.relay.transport import Transport
from aftercommit.relay.transports import BusTransport, LogTransport
from aftercommit.service import Service
from aftercommit.testing.points import Points, SimulatedCrash
from aftercommit.testing.spy import Attempt, Spy, WatchedTransport
from aftercommit.testing.tables import Letter, Tables, TablesState
from aftercommit.testing.transports import TransportFaults, UnreliableTransport

ROUNDS: Final = 100
TIMEOUT: Final = 60.0
# After so many outages in a row, the drain gives up waiting for the transport.
OUTAGES: Final = 3
# The points at which a service has nothing more to do and would wait.
RESTS: Final = frozenset({"relay.idle", "relay.outage", "consumer.idle", "consumer.paused"})

TransportChoice = Literal["log", "bus"] | Transport


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain.

    `appended` counts the events that were appended to the log. `attempts` are all calls of handlers and refusals of the
    transport, in order. `parked`, `retrying` and `waiting` are the dead letters that this drain has changed. `crashes`
    names the points at which services died. `outage` is set if the transport was down at the end.
    """

    appended: int
    attempts: tuple[Attempt, ...]
    parked: tuple[Letter, ...]
    retrying: tuple[Letter, ...]
    waiting: tuple[Letter, ...]
    crashes: tuple[str, ...]
    outage: TransportUnavailable | None

    @property
    def handled(self) -> tuple[Attempt, ...]:
        """The successful attempts: the last one per consumer and event, in order."""
        last = {(attempt.consumer, attempt.event_id): attempt for attempt in self.attempts}
        lasting = {id(attempt) for attempt in last.values() if attempt.error is None}
        return tuple(attempt for attempt in self.attempts if id(attempt) in lasting)

    @property
    def failed(self) -> tuple[Attempt, ...]:
        """The attempts with an error, even if a later one succeeded."""
        return tuple(attempt for attempt in self.attempts if attempt.error is not None)

    def require_success(self) -> None:
        """Raise DrainFailed, with the handler's error as its cause, if an error has left work undone."""
        __tracebackhide__ = True
        left = [*self.parked, *self.retrying]
        if left:
            raise DrainFailed(_story(left), self) from self._cause(left[0])
        if self.outage is not None:
            raise DrainFailed(
                f"the transport is down: {self.outage}. No attempt was spent. Drain again when it is back, or use "
                "drain(raise_errors=False)",
                self,
            ) from self.outage

    def _cause(self, letter: Letter) -> BaseException | None:
        errors = [
            attempt.error
            for attempt in self.failed
            if (attempt.consumer, attempt.event_id) == (letter.consumer, letter.event_id)
        ]
        return errors[-1] if errors else None


class Drain:
    """One drain of one outbox."""

    def __init__(
        self,
        outbox: Outbox,
        dsn: str,
        *,
        transport: TransportChoice,
        points: Points,
        spy: Spy,
        faults: TransportFaults,
        consumers: Sequence[str] | None = None,
    ) -> None:
        self._outbox = outbox
        self._database = Database(dsn)
        self._tables = Tables(outbox, dsn)
        self._points = points
        self._spy = spy
        self._crashes: list[str] = []
        self._appended = 0
        # No newer code is deployed during a drain, so an event of a newer version fails at once. One worker has no use
        # for lanes.
        chosen = [
            replace(each, version_wait_seconds=0.0, lanes=1)
            for each in _chosen(outbox, consumers, behind_the_bus=_is_bus(transport))
        ]
        self._behind_the_bus = [spy.watch(each, at_once=True) for each in chosen] if transport == "bus" else []
        self._on_the_log = [] if _is_bus(transport) else [spy.watch(each) for each in chosen]
        carried = self._carried(transport)
        self._transport = WatchedTransport(
            UnreliableTransport(carried, faults) if faults.are_set else carried, spy, self._behind_the_bus
        )

    async def run(self, *, through_retries: bool, rounds: int = ROUNDS, timeout: float = TIMEOUT) -> Drained:
        """Run rounds until nothing changes any more."""
        before = await self._ask(self._tables.letters)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                await self._go_round(through_retries, rounds)
        except TimeoutError as problem:
            if not limit.expired():
                raise
            raise DrainNeverEnded(
                f"the drain did not end within {timeout:g} s: a handler hangs, another session holds a lock, or the "
                f"database is unavailable. Points reached: {dict(self._points.counts)}. drain(timeout=…) sets the limit"
            ) from problem
        self._points.require_reached("in this drain")
        touched = set(await self._ask(self._tables.letters)) - set(before)
        return Drained(
            appended=self._appended,
            attempts=tuple(self._spy.attempts),
            parked=_with_status(touched, "parked"),
            retrying=_with_status(touched, "retrying"),
            waiting=_with_status(touched, "waiting"),
            crashes=tuple(self._crashes),
            outage=self._transport.outage,
        )

    async def _go_round(self, through_retries: bool, rounds: int) -> None:
        outages, brought_forward = 0, False
        for _ in range(rounds):
            state = await self._ask(self._tables.state)
            crashes = len(self._crashes)
            await self._round(state)
            if await self._ask(self._tables.state) != state or len(self._crashes) != crashes:
                outages, brought_forward = 0, False
            elif self._transport.outage is not None and outages < OUTAGES:
                outages += 1
            elif through_retries and not brought_forward:
                # Work that is due and still does not change (of a paused consumer) will not change next time either.
                brought_forward = await self._ask(self._tables.bring_forward)
                if not brought_forward:
                    return
            else:
                return
        raise DrainNeverEnded(
            f"after {rounds} rounds there is still work: handlers publish more and more events, or a service dies "
            f"again and again. If that ends at some point, use drain(rounds={rounds * 10})"
        )

    async def _round(self, state: TablesState) -> None:
        # Any other holder of a lease is a service that died in a drain.
        await self._ask(self._tables.rows_changed, "kit_expire_leases")
        if state.pending:
            await self._live(partial(Relay, self._outbox, self._database, self._transport))
        for consumer in self._on_the_log:
            now = await self._ask(self._tables.state)
            if _has_work(consumer.name, now):
                await self._live(partial(LogWorker, self._outbox, consumer, self._database))

    async def _live(self, make: Callable[..., Service]) -> None:
        """Run one service until it rests or dies."""

        async def probe(point: str, detail: dict[str, Any]) -> None:
            if point == "relay.appended":
                self._appended += detail["count"]
            if point in RESTS:
                service.stopping.set()
            await self._points(point, detail)

        service = make(probe=probe)
        try:
            await service.run()
        except SimulatedCrash as crash:
            self._crashes.append(str(crash))

    def _carried(self, transport: TransportChoice) -> Transport:
        if transport == "log":
            return LogTransport()
        if transport == "bus":
            return BusTransport(Dispatcher(self._outbox, self._database, self._behind_the_bus))
        if isinstance(transport, str):
            raise DeclarationError(f"transport {transport!r} is not known: use 'log', 'bus' or a Transport object")
        return transport

    async def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(question, *arguments)


def _has_work(name: str, state: TablesState) -> bool:
    open_letters = any(letter.consumer == name and letter.is_open for letter in state.letters)
    return state.checkpoints.get(name, 0) < state.head or open_letters


def _is_bus(transport: TransportChoice) -> bool:
    while isinstance(transport, UnreliableTransport):
        transport = transport.inner
    return transport == "bus" or isinstance(transport, BusTransport)


def _chosen(outbox: Outbox, names: Sequence[str] | None, *, behind_the_bus: bool) -> list[Consumer]:
    if names is None:
        return [consumer for consumer in outbox.consumers.values() if consumer.handlers]
    if behind_the_bus:
        raise DeclarationError(
            f"consumers={list(names)!r}: with the bus, an event is delivered when all consumers have handled it, so "
            "they cannot be drained separately: leave consumers out, or use transport='log'"
        )
    return [consumer_named(outbox, name) for name in names]


def consumer_named(outbox: Outbox, name: str) -> Consumer:
    """The declared consumer of this name."""
    try:
        return outbox.consumers[name]
    except KeyError:
        declared = ", ".join(outbox.consumers) or "none"
        raise DeclarationError(f"consumer {name!r} is not declared: declared are {declared}") from None


def _with_status(letters: set[Letter], status: str) -> tuple[Letter, ...]:
    return tuple(sorted((letter for letter in letters if letter.status == status), key=lambda each: each.event_id))


def _story(letters: Sequence[Letter]) -> str:
    lines = [
        f"{letter.consumer!r} failed on {letter.event_type} {letter.event_id} ({letter.status} after "
        f"{letter.attempts} attempt{'s' if letter.attempts != 1 else ''}): {letter.error_class}: {letter.error}"
        for letter in letters[:5]
    ]
    if len(letters) > 5:
        lines.append(f"… and {len(letters) - 5} more")
    lines.append(
        "If you expect this: drain(raise_errors=False) returns the result, drain(through_retries=True) runs all retries"
    )
    return "\n".join(lines)
