"""Behind the bus: every event goes to the handlers that take it, each consumer with its own inbox and its own failures."""

import asyncio
from collections.abc import Sequence
from typing import Any

from aftercommit.consumer.outcome import Failed, next_delay
from aftercommit.consumer.runner import Runner, by_aggregate
from aftercommit.consumer.slices import Item, Query, prepare
from aftercommit.event.envelope import Record
from aftercommit.outbox.declaration import Outbox
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.service import finish_all
from aftercommit.transport import Failure


class Dispatcher:
    """Gives each matching consumer `retry_count + 1` attempts at an event; what still fails is reported to the relay."""

    def __init__(self, outbox: Outbox, database: Database, consumers: Sequence[Consumer] | None = None) -> None:
        """For all consumers of the outbox, or for some of them."""
        chosen = list(consumers) if consumers is not None else list(outbox.consumers.values())
        self._runners = [Runner(outbox, consumer, database) for consumer in chosen]
        self._meter = outbox.meter

    async def open(self) -> None:
        """Open the connections of every consumer."""
        for runner in self._runners:
            await runner.open()

    async def close(self) -> None:
        """Close them."""
        for runner in self._runners:
            await runner.close()

    async def dispatch(self, records: Sequence[Record]) -> list[Failure]:
        """All consumers side by side; one that fails stops no other."""
        results = await finish_all(self._consume(runner, records) for runner in self._runners)
        return [failure for failures in results for failure in failures]

    async def _consume(self, runner: Runner, records: Sequence[Record]) -> list[Failure]:
        consumer = runner.consumer
        types = consumer.types
        items = prepare(consumer, [record for record in records if types is None or record.event_type in types], attempt=1)
        groups = by_aggregate(items, consumer.concurrency)
        failures = await finish_all(self._attempts(runner, group) for group in groups)
        return [failure for group in failures for failure in group]

    async def _attempts(self, runner: Runner, items: Sequence[Item]) -> list[Failure]:
        consumer = runner.consumer
        attempt = 1
        failed = await self._attempt(runner, items)
        final: list[tuple[Item, Failed]] = []
        while failed:
            delays = [next_delay(failure, attempt, consumer.retry_count, consumer.backoff) for _, failure in failed]
            final += [pair for pair, delay in zip(failed, delays, strict=True) if delay is None]
            again = [pair for pair, delay in zip(failed, delays, strict=True) if delay is not None]
            if again:
                await asyncio.sleep(max(delay for delay in delays if delay is not None))
            attempt += 1
            failed = await self._attempt(runner, prepare(consumer, [item.record for item, _ in again], attempt=attempt))
        self._meter.on_consumed(consumer.name, "failed", len(final))
        return [
            Failure(item.record.event_id, failure.error, consumer.name, failure.permanent, failure.retry_after)
            for item, failure in final
        ]

    async def _attempt(self, runner: Runner, items: Sequence[Item]) -> list[tuple[Item, Failed]]:
        failed: list[tuple[Item, Failed]] = []

        async def remember(item: Item, failure: Failed) -> None:
            failed.append((item, failure))

        def begin(segment: Sequence[Item]) -> Query:
            parameters: dict[str, Any] = {
                "consumer": runner.consumer.name,
                "ids": [item.record.event_id for item in segment],
            }
            return Query("begin_unfenced_slice", parameters)

        if items:
            await runner.run(items, begin, remember)
        return failed
