"""A relay as a program: `python -m tests.support.relay_process DSN OPTIONS`, where OPTIONS is JSON.

`lease`, `batch_size` and `carriers` are its settings, `max_attempts` and `ordering` the outbox's. Its transport writes
each event's order and number to `file` and dies without a word at the event whose note is `poison`. Prints `ready`
when it holds lanes. SIGTERM stops it gracefully.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from aftercommit.event.envelope import Record
from aftercommit.postgres.database import Database
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transport import Capabilities, Failure
from aftercommit.relay.transports import LogTransport
from tests.support.shop import shop_outbox


class FileTransport:
    """Appends to a file, which survives the process."""

    name = "file"
    capabilities = Capabilities(deduplicates=False)

    def __init__(self, path: str, poison: str | None) -> None:
        self._path = path
        self._poison = poison

    async def open(self) -> None:
        """The file is opened for each batch."""

    async def close(self) -> None:
        """Nothing to close."""

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        for record in records:
            payload = json.loads(record.payload)
            with open(self._path, "a") as file:  # noqa: ASYNC230 - a line at a time, as this may be our last
                file.write(f"{record.aggregate_id} {payload['number']} {record.retry_count}\n")
            if self._poison is not None and payload["note"] == self._poison:
                os._exit(1)
        return ()


async def say_ready(point: str, detail: dict[str, Any]) -> None:
    if point == "relay.ready":
        print("ready", flush=True)


async def main(dsn: str, options: dict[str, Any]) -> None:
    declared = {name: options[name] for name in ("max_attempts", "ordering") if name in options}
    chosen = {name: options[name] for name in ("lease_seconds", "batch_size", "carriers") if name in options}
    transport = FileTransport(options["file"], options.get("poison")) if "file" in options else LogTransport()
    relay = Relay(shop_outbox(**declared), Database(dsn), transport, settings=RelaySettings(**chosen), probe=say_ready)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stopping.set)
    await relay.start()
    await relay.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
