"""A relay or a consumer in a process of its own, which says at its end how much memory it ever had."""

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aftercommit import Database, Event, Outbox
from aftercommit.consumer import LogWorker
from aftercommit.event.envelope import Record
from aftercommit.relay import Relay
from aftercommit.relay.transport import Capabilities, Failure
from aftercommit.service import Service
from bench import shop

ROLES: Final = ("relay", "consumer")
CONSUMER: Final = "reader"


@dataclass(frozen=True, slots=True)
class Said:
    """What a process says about itself when it ends."""

    role: str
    peak_megabytes: float
    cpu_seconds: float

    @classmethod
    def read(cls, process: "subprocess.Popen[str]") -> "Said":
        """Let the process end, and hear it."""
        out, _ = process.communicate(timeout=60)
        return cls(**json.loads(out))


class Discarding:
    """Takes everything, keeps nothing: what is measured is the relay."""

    name = "discard"
    capabilities = Capabilities(durable=False)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def deliver(self, records: Sequence[Record]) -> Sequence[Failure]:
        return ()


def declared() -> Outbox:
    """The outbox, with a consumer that looks at every event."""
    outbox = shop.declared()

    @outbox.on(shop.OrderPlaced, consumer=CONSUMER)
    async def read(event: Event[shop.OrderPlaced], connection: Any) -> None:
        assert event.payload.number > 0

    return outbox


def service(role: str, dsn: str) -> Service:
    """What the process runs."""
    outbox, database = declared(), Database(dsn)
    if role == "relay":
        return Relay(outbox, database, Discarding())
    return LogWorker(outbox, outbox.consumers[CONSUMER], database)


def peak_megabytes() -> float:
    """The most memory this process ever had resident."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage says begins with the memory of the process that started us.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


async def run(dsn: str, role: str) -> None:
    """Work until standard input is closed."""
    async with service(role, dsn):
        await asyncio.to_thread(sys.stdin.read)
    sys.stdout.write(json.dumps(asdict(Said(role, peak_megabytes(), time.process_time()))) + "\n")


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
