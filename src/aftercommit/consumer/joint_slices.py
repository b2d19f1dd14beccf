"""Consumers that wait at the same position share a transaction for the next events, if they are more than connections.

A transaction of its own costs each of them more than a quick handler does: with 200 consumers, an event would reach the
last one after a long time. They share one only if their handlers have been quick, write in the transaction and need no
special care. If anything goes wrong, nothing is written, and each consumer handles its events alone, as always.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

import psycopg

from aftercommit.consumer.calls import Calls, HandlerCall
from aftercommit.consumer.log_follower import LogFollower, SharedParts
from aftercommit.consumer.runner import idle_timeout_ms
from aftercommit.consumer.slice_executor import SliceExecutor
from aftercommit.consumer.slices import Query, Script, SliceFailed, SliceItem, SliceResult, calls_of, ended_by, prepare
from aftercommit.errors import AftercommitError, LeaseLost
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.arrays import text_array, uuid_array
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.statements import Statements
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.consumer")

# A handler that takes longer is given up, and runs again in a transaction of its consumer.
MOST_SECONDS: Final = 0.1
# A consumer that has spoilt a shared transaction shares none for so long.
ALONE_SECONDS: Final = 60.0


class Member(NamedTuple):
    """A consumer with its events in a joint slice, from the place `first` on."""

    follower: LogFollower
    items: Sequence[SliceItem]
    first: int

    @property
    def end(self) -> int:
        """The place after its last event."""
        return self.first + len(self.items)


class JointSlices:
    """Starts the consumers of one worker together, in as many transactions as there are connections."""

    def __init__(self, outbox: Outbox, shared: SharedParts) -> None:
        self._shared = shared
        self._permit = shared.connections.permit(outbox.schema)
        self._executor = SliceExecutor(Statements(outbox.shape), MOST_SECONDS)
        self._alone_until: dict[str, float] = {}

    def start(
        self, followers: Sequence[LogFollower], reading: AsyncConnection, ended: Callable[[], None]
    ) -> Sequence[LogFollower]:
        """Start those that may share, all of them at the same position; returns the others. `ended`: call it then."""
        places = self._shared.connections.places
        if len(followers) <= places:
            return followers
        joining = [follower for follower in followers if self._may_join(follower)]
        if len(joining) <= places:
            return followers
        for number in range(places):
            group = joining[number::places]
            task = asyncio.create_task(self._handle(group, reading), name=f"{len(group)} consumers")
            task.add_done_callback(lambda _: ended())
            for follower in group:
                follower.task = task
        return [follower for follower in followers if follower.task is None]

    def _may_join(self, follower: LogFollower) -> bool:
        consumer, parts = follower.consumer, follower.parts
        return (
            follower.task is None
            and follower.has_work
            and parts.runner.quick
            and consumer.inbox
            and consumer.concurrency == consumer.lanes == 1
            and consumer.timeout >= MOST_SECONDS
            and consumer.is_async is not False
            and all(handler.takes_transaction for handler in consumer.handlers)
            and not parts.strict
            and parts.suspects.left == 0
            and not follower.retries.any_open
            and self._alone_until.get(follower.name, 0.0) < time.monotonic()
        )

    async def _handle(self, group: Sequence[LogFollower], reading: AsyncConnection) -> None:
        """Handle the next events of these consumers. Those that still have work afterwards are started alone."""
        status, after = group[0].status, group[0].position
        page = await self._shared.latest.read(reading, after, status.head) if status is not None else None
        if page is None:
            return
        records, upto = page
        members: list[Member] = []
        for follower in group:
            items = prepare(follower.consumer, records, attempt=1)
            if not any(item.failure for item in items):
                members.append(Member(follower, items, members[-1].end if members else 0))
        if not members:
            return
        await members[0].follower.reach("consumer.joined", consumers=len(members), position=after)
        try:
            result = await self._slice(members, after, upto)
        except SliceFailed as problem:
            self._spoilt([each for each in members if problem.index is None or _has(each, problem.index)], problem)
        except (AftercommitError, psycopg.Error, OSError) as problem:
            self._spoilt(members, problem)
        else:
            for member in members:
                member.follower.parts.runner.quick = not any(_has(member, place) for place in result.slow)
            for member in _done(members, len(result.handled)):
                await self._handled(member, upto)

    async def _handled(self, member: Member, position: int) -> None:
        follower, name = member.follower, member.follower.name
        self._shared.meter.on_consumed(name, "done", len(member.items))
        await follower.handled(len(member.items), position)
        self._shared.note_progress(name)
        if not follower.has_work and follower.proceeds():
            await follower.reach("consumer.idle", position=position)

    async def _slice(self, members: Sequence[Member], after: int, upto: int) -> SliceResult:
        lease = members[0].follower.parts.lease
        opening = {
            "checkpoints": text_array(member.follower.name for member in members),
            "token": lease.token,
            "after": after,
            "ids": uuid_array({item.record.event_id for member in members for item in member.items}),
            "server_started": members[0].follower.parts.runner.server_started,
            "patience": idle_timeout_ms(MOST_SECONDS, lease.seconds),
        }
        closing = {"token": lease.token, "lease": lease.seconds, "position": upto}
        script = _script(members, Query("begin_joint_slice", opening, prepared=True), closing)
        async with self._permit:
            return await self._executor.run(self._shared.connections, script, blocking=False)

    def _spoilt(self, members: Collection[Member], problem: BaseException) -> None:
        for member in members:
            self._alone_until[member.follower.name] = time.monotonic() + ALONE_SECONDS
        fields = {"consumers": [member.follower.name for member in members][:20], "reason": str(problem)}
        log_event(logger, logging.DEBUG, "joint_slice_undone", **fields)


def _script(members: Sequence[Member], begin: Query, closing: dict[str, Any]) -> Script:
    """The steps of a joint slice. It writes inbox and checkpoints after the handlers.

    A handler that commits, although it must not, then commits no checkpoint of a consumer whose turn has not come.
    """
    held, *_ = yield begin
    if not held:
        raise LeaseLost("a consumer was taken over, paused or moved, or has handled an event: nothing was written")
    owned = [(item, member.follower.name) for member in members for item in member.items]
    items = [item for item, _ in owned]
    calls = Calls(calls_of(items, range(len(items))))
    ended: HandlerCall | None = yield calls
    left = calls.calls[calls.next].place if calls.next < len(calls.calls) else len(items)
    handled = left if ended is None else ended.last_place + 1
    done = _done(members, handled if ended is None else ended.place)
    yield Query(
        "finish_joint_slice",
        {
            **closing,
            "checkpoints": text_array(member.follower.name for member in done),
            "ids": uuid_array(item.record.event_id for item in items[:handled]),
            "consumers": text_array(name for _, name in owned[:handled]),
        },
    )
    if ended is not None:
        raise SliceFailed(ended_by(ended), ended.last_place)
    return SliceResult(items, range(handled), slow=calls.slow)


def _done(members: Sequence[Member], handled: int) -> list[Member]:
    """The members whose events are among so many that were handled."""
    return [member for member in members if member.end <= handled]


def _has(member: Member, place: int) -> bool:
    return member.first <= place < member.end
