"""Upkeep beside the relay: partitions of the log are made ahead of the tip. Blocks nobody and takes its time."""

import asyncio
import logging

import psycopg

from aftercommit.errors import DatabaseError
from aftercommit.postgres import partitions
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape
from aftercommit.service import wait_for_any
from aftercommit.telemetry import say

logger = logging.getLogger("aftercommit.sweeper")

INTERVAL = 10.0


class Sweeper:
    """Makes partitions ahead, on a connection of its own that is open only while there is something to look at."""

    def __init__(self, shape: Shape, database: Database) -> None:
        """Nothing done yet."""
        self._shape = shape
        self._database = database

    async def keep(self, stopping: asyncio.Event) -> None:
        """Look after the partitions until stopped."""
        while not stopping.is_set():
            made = await asyncio.to_thread(self.sweep)
            if made:
                say(logger, logging.INFO, "log_partitions_made", outbox=self._shape.schema, partitions=made)
            await wait_for_any(INTERVAL, stopping)

    def sweep(self) -> list[str]:
        """Make what is missing ahead of the tip; returns the names of new partitions."""
        connection = self._database.connect_sync()
        try:
            return partitions.ensure(connection, self._shape)
        except DatabaseError as problem:
            if not isinstance(problem.__cause__, psycopg.errors.LockNotAvailable):
                raise
            # Somebody is in the way. There are partitions left, and where there are none the append makes one.
            say(logger, logging.WARNING, "log_partitions_not_made", outbox=self._shape.schema, error=str(problem))
            return []
        finally:
            connection.close()
