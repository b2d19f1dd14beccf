"""The event loop of whatever runs here: uvloop for everybody, ours, the floors and the peers."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


def runner() -> asyncio.Runner:
    """Runs coroutines on uvloop."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """One coroutine to its end."""
    with runner() as running:
        return running.run(main)
