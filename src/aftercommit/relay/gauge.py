"""Measures the backlog for the metrics, and finds events that a watermark has passed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.statements import Statements
from aftercommit.relay.carrier_loop import CarrierLoop
from aftercommit.relay.lanes import Lanes

Reach = Callable[[str], Awaitable[None]]


async def measure(
    outbox: Outbox,
    connection: AsyncConnection,
    lanes: Lanes,
    loops: Sequence[CarrierLoop],
    seconds: float,
    reach: Reach,
) -> None:
    """Measure every so many seconds, until cancelled."""
    statement = Statements(outbox.shape)["backlog"]
    while True:
        started = time.monotonic()
        row = await (await connection.execute(statement, {"lanes": sorted(lanes.held)})).fetchone()
        if row is not None:
            outbox.meter.on_backlog(*row[:2])
            # An operator may have put an event back by hand, with its old seq: no watermark may hide it.
            if row[2] is not None:
                for loop in loops:
                    loop.look_back_to(row[2])
        await reach("relay.measured")
        # Counting a large backlog takes time: spend at most about a twentieth of the time on it.
        await asyncio.sleep(max(seconds, 20 * (time.monotonic() - started)))
