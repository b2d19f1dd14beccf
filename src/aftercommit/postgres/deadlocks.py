"""Transactions that deadlock with others are run again: one had to give way, and nothing of it was written."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg

TRIES: Final = 5

Result = TypeVar("Result")


async def past_deadlocks(transaction: Callable[[], Awaitable[Result]]) -> Result:
    """Run a whole transaction, and again when it was chosen to give way; the last error is the caller's."""
    for _ in range(TRIES - 1):
        try:
            return await transaction()
        except psycopg.errors.DeadlockDetected:
            continue
    return await transaction()
