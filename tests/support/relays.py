"""Relays for tests: in this process, where signals can be waited for, and in one of their own, which can be killed."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aftercommit.postgres.listen import Listener
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.lanes import Lanes
from aftercommit.relay.transports import LogTransport
from aftercommit.service import Waker
from tests.support.forked import Forked
from tests.support.shop import Shop

PATIENCE = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def relay_on(shop: Shop, **options: Any) -> AsyncIterator[Relay]:
    """A relay that runs while the test goes on."""
    transport = options.pop("transport", None) or LogTransport()
    options.setdefault("settings", RelaySettings(lease_seconds=2.0))
    options.setdefault("probe", shop.signals)
    async with Relay(shop.outbox, options.pop("database", shop.database), transport, **options) as relay:
        await shop.signals.wait("relay.ready")
        yield relay


@asynccontextmanager
async def listening_relay_on(shop: Shop, **options: Any) -> AsyncIterator[Relay]:
    """A relay with a listener of its own, which works already."""
    listener = Listener(options.get("database", shop.database), shop.signals)
    relay = relay_on(shop, listener=listener, **options)
    # The relay subscribes when it is made, and the listener listens to what is subscribed when it starts.
    entering = asyncio.ensure_future(relay.__aenter__())
    await asyncio.sleep(0)
    async with listener:
        await shop.signals.wait("listener.working")
        running = await entering
        try:
            yield running
        finally:
            await relay.__aexit__(None, None, None)


async def holds(lanes: Lanes, count: int, *, or_more: bool = False) -> None:
    """Until so many lanes are held; woken by the change itself."""
    changed = Waker()
    lanes.watch(changed)
    async with asyncio.timeout(PATIENCE):
        while len(lanes.held) != count and not (or_more and len(lanes.held) > count):
            await changed.wait()
            changed.clear()


class RelayProcess:
    """A relay in a process of its own (`python -m tests.support.relay_process`), to be killed, stopped or watched."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        """Started at once; `ready` waits for it."""
        arguments = [shop.dsn, json.dumps(options)]
        self.process = Forked("tests.support.relay_process", arguments, REPOSITORY, os.environ, errors=2)

    async def line(self, timeout: float = PATIENCE) -> str:
        """The next thing the relay says; empty when it has ended."""
        return (await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), timeout)).strip()

    async def ready(self) -> Self:
        """Until it holds lanes."""
        assert await self.line() == "ready"
        return self

    async def ended(self, timeout: float = PATIENCE) -> int:
        """Its exit status, once it has ended by itself."""
        return await asyncio.to_thread(self.process.wait, timeout)

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer would."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM: it stops gracefully."""
        self.process.terminate()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Gone, whatever happened."""
        self.kill()
        self.process.close()
