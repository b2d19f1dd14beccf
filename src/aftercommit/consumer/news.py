"""New events for consumers that wait for them at the end of the log: they need no look at what there is to do."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from aftercommit.consumer.lease import CONSUMER_CHANGED
from aftercommit.consumer.log_follower import LogFollower, SharedParts
from aftercommit.consumer.worker_slices import open_early
from aftercommit.event.envelope import Record
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.listen import Listener
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.relay.transport import Untried
from aftercommit.service import Waker

# So long a worker waits for the answer to an append that a notification has overtaken.
EXPECT_SECONDS: Final = 0.05


class LogNews:
    """Tells a worker of new events, by notifications and from a relay in its process.

    `rung`: there are new events. `word`: a consumer was handed over, paused or resumed.
    """

    def __init__(
        self,
        shape: Shape,
        listener: Listener | None,
        shared: SharedParts,
        followers: Mapping[str, LogFollower],
        token: UUID,
    ) -> None:
        self._channel = shape.log_channel
        self.rung = listener.subscribe(self._channel) if listener is not None else Waker()
        self.word = listener.subscribe(self._channel, {CONSUMER_CHANGED}) if listener is not None else Waker()
        self._received = Waker()
        self._expects_until = 0.0
        self._which_server = Statements(shape)["server_started"]
        self._server_started: datetime | None = None
        self._listener = listener
        self._latest = shared.latest
        self._connections = shared.connections
        self._followers = followers
        self._token = token

    def expect(self, untried: Untried | None) -> None:
        """A relay of this process begins to append: what it appends need not be read.

        It may well be the next events of consumers that are at rest.
        """
        self._received.clear()
        self._expects_until = time.monotonic() + EXPECT_SECONDS
        followers = [follower for follower in self._at_work if follower.proceeds()]
        # More than there are connections share transactions.
        if untried is None or len(followers) > self._connections.places or self._resting_at() is None:
            return
        for follower in followers:
            open_early(follower.parts, follower.position, untried)

    async def begin(self, connection: AsyncConnection) -> None:
        """A session begins on this server. What a relay appended on another one, before a failover, is not taken."""
        row = await (await connection.execute(self._which_server)).fetchone()
        self._server_started = row[0] if row else None

    def receive(self, records: Sequence[Record], server_started: datetime | None) -> None:
        """Take events that a relay of this process has just appended to the log."""
        self._expects_until = 0.0
        self._received.set()
        end = self._resting_at()
        is_next = records and end is not None and records[0].position == end + 1
        if is_next and server_started == self._server_started:
            self._latest.keep(records)
            self.rung.set()

    @property
    def seconds_expected(self) -> float:
        """How long to wait for what a relay appends: its notification often overtakes the answer with the events."""
        return max(0.0, self._expects_until - time.monotonic())

    @property
    def waker(self) -> Waker:
        """Set when there is something to hear."""
        return self._received if self.seconds_expected else self.rung

    async def hear(self, reading: AsyncConnection) -> list[LogFollower] | None:
        """Tell the consumers what is new, if all wait for it; returns those that were told.

        None if it takes a look: a consumer is at work or behind, or the events are many, large or not the next ones.
        """
        if not self.rung.is_set() or self.seconds_expected:
            return []
        self.rung.clear()
        followers, end = self._at_work, self._resting_at()
        if self._listener is None or not self._listener.working or not followers:
            return None
        head = self._latest.end_after(end) if end is not None else None
        if head is None:
            told = self._position_heard
            if told is not None and all(_end(each) >= told for each in followers):
                # They have been handed what this notification is about.
                return []
            if end is not None:
                names = [follower.name for follower in followers]
                head = await self._latest.read_news(reading, end, names, self._token)
        if head is None:
            return None
        for follower in followers:
            follower.tell_end(head)
        if (told := self._position_heard) is not None and told > head:
            # Another relay has appended more, and its notification has come in the meantime.
            self.rung.set()
        return followers

    @property
    def _position_heard(self) -> int | None:
        """The position that the last notification named."""
        heard = self._listener.heard.get(self._channel, "") if self._listener is not None else ""
        return int(heard) if heard.isdecimal() else None

    @property
    def _at_work(self) -> list[LogFollower]:
        return [follower for follower in self._followers.values() if follower.active and not follower.paused]

    def _resting_at(self) -> int | None:
        """Where all consumers wait for new events; None if they are not at the same position, or one is at work."""
        places = {_rests_at(follower) for follower in self._at_work}
        return places.pop() if len(places) == 1 else None


def _end(follower: LogFollower) -> int:
    """How far the log goes, as the worker has told it."""
    return follower.status.head if follower.status is not None else -1


def _rests_at(follower: LogFollower) -> int | None:
    """Where the consumer waits for new events, and has nothing else to do; None if it does not."""
    is_at_work = follower.task is not None and not follower.task.done()
    is_at_end = not follower.has_work and _end(follower) == follower.position
    return follower.position if is_at_end and not is_at_work else None
