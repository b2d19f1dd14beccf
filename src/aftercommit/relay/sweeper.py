"""Upkeep beside the relay: makes partitions of the log ahead of the tip, and removes old data.

One relay at a time does a round of retention. If the round fails, the sweeper logs it and the relay goes on.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from aftercommit.errors import DatabaseError
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape
from aftercommit.schema import partitions
from aftercommit.schema.retention import LEASE, Retention, Round, Swept, the_only_one
from aftercommit.service import Waker, wait_for_any
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.sweeper")

# Shorter than the time in which a relay at full speed fills the partitions that are made ahead.
INTERVAL = 30.0
# Between two rounds of retention, whichever relay does them.
ROUND_INTERVAL = 60.0
ROUND_SECONDS = 5.0
# A relay that dies in its round blocks the others for this long; a live one renews it.
ROUND_LEASE = LEASE


class Sweeper:
    """Does the upkeep on a connection of its own, which it opens for each round. `turns`: not beside these rounds."""

    def __init__(
        self,
        shape: Shape,
        database: Database,
        retention: Retention | None = None,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        self._shape = shape
        self._database = database
        self._retention = retention or Retention()
        self._turns = turns or asyncio.Semaphore(1)
        self._said: object = None

    async def keep(self, stopping: Waker) -> None:
        """Do rounds until stopped."""
        # A thread cannot be cancelled: this flag ends its round after the next statement.
        over = threading.Event()
        try:
            while not stopping.is_set():
                async with self._turns:
                    made = await asyncio.to_thread(self.sweep, lambda: over.is_set() or stopping.is_set())
                if made:
                    log_event(logger, logging.INFO, "log_partitions_made", outbox=self._shape.schema, partitions=made)
                await wait_for_any(INTERVAL, stopping)
        finally:
            over.set()

    def sweep(self, stopping: Callable[[], bool] = lambda: False) -> list[str]:
        """Make missing partitions and remove old data; returns the names of new partitions."""
        connection = self._database.connect_sync()
        try:
            made = self._make_partitions(connection)
            self._retain(connection, stopping)
            return made
        finally:
            connection.close()

    def _make_partitions(self, connection: psycopg.Connection[Any]) -> list[str]:
        try:
            return partitions.ensure(connection, self._shape)
        except DatabaseError as problem:
            if not isinstance(problem.__cause__, psycopg.errors.LockNotAvailable):
                raise
            # Another session holds a lock. Usually there are spare partitions; if not, the append creates one.
            log_event(logger, logging.WARNING, "log_partitions_not_made", outbox=self._shape.schema, error=str(problem))
            return []

    def _retain(self, connection: psycopg.Connection[Any], stopping: Callable[[], bool]) -> None:
        try:
            with the_only_one(connection, self._shape, interval=ROUND_INTERVAL, lease=ROUND_LEASE) as ours:
                if ours:
                    a_round = Round(connection, self._shape, self._retention, ROUND_SECONDS, stopping, turn=ours)
                    self._tell(a_round.run())
        except Exception as problem:  # noqa: BLE001 - events have to flow whatever happens to the old ones
            self._say_once(logging.WARNING, "retention_failed", error=" ".join(str(problem).split()))

    def _tell(self, swept: Sequence[Swept]) -> None:
        for each in swept:
            if each.removed:
                fields = {"what": each.task, "removed": each.removed, "partitions": list(each.partitions) or None}
                log_event(logger, logging.INFO, "retention_removed", outbox=self._shape.schema, **fields)
        kept_back = [f"{each.task}: {reason}" for each in swept for reason in each.kept_back]
        if kept_back:
            self._say_once(logging.WARNING, "retention_kept_back", reasons=kept_back)
        else:
            self._said = None

    def _say_once(self, level: int, name: str, **fields: Any) -> None:
        """Log what repeats from round to round only the first time."""
        if self._said != (name, fields):
            log_event(logger, level, name, outbox=self._shape.schema, **fields)
        self._said = (name, fields)
