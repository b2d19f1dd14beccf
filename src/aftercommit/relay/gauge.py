"""Measures the backlog beside the carriers, and finds events that a watermark has passed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.database import Database
from aftercommit.postgres.resilience import close_quietly
from aftercommit.postgres.statements import Statements
from aftercommit.relay.carrier import Carrier
from aftercommit.relay.lanes import Lanes


async def measure(
    outbox: Outbox,
    database: Database,
    lanes: Lanes,
    carriers: Sequence[Carrier],
    gauge_seconds: float,
    reach: Callable[[str], Awaitable[None]],
) -> None:
    """Measure every `gauge_seconds` on a connection of its own, until cancelled."""
    statements = Statements(outbox.shape)
    connection = await database.connect()
    try:
        while True:
            started = time.monotonic()
            row = await (await connection.execute(statements["backlog"])).fetchone()
            if row is not None:
                outbox.meter.on_backlog(*row)
            # An operator may have put an event back by hand, with its old seq: no watermark may hide it.
            parameters = {"watermark": 0, "lanes": sorted(lanes.held)}
            row = await (await connection.execute(statements["lowest_fresh"], parameters)).fetchone()
            if row is not None and row[0] is not None:
                for carrier in carriers:
                    carrier.reader.watermark.look_back_to(row[0])
            await reach("relay.measured")
            # Counting a large backlog takes time: spend at most about a twentieth of the time on it.
            await asyncio.sleep(max(gauge_seconds, 20 * (time.monotonic() - started)))
    finally:
        await close_quietly(connection)
