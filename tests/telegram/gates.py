"""A backend that thinks before it answers, as long as a test wants."""

import asyncio

from tests.telegram.backend import PATIENCE, Act, Reply, answer_well


class Gate:
    """An act that holds every request back until it is opened."""

    def __init__(self, then: Act = answer_well) -> None:
        self._then = then
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()
        self.count = 0

    async def __call__(self, reply: Reply) -> None:
        self.count += 1
        self._reached.set()
        await self._opened.wait()
        await self._then(reply)

    async def reached(self) -> None:
        """Until somebody stands before it."""
        await asyncio.wait_for(self._reached.wait(), PATIENCE)

    def open(self) -> None:
        """Answer, from now on."""
        self._opened.set()
