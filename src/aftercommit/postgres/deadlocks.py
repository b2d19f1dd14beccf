"""Repeats a transaction that PostgreSQL has aborted because of a deadlock."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg

TRIES: Final = 5

Result = TypeVar("Result")


async def past_deadlocks(transaction: Callable[[], Awaitable[Result]]) -> Result:
    """Run a whole transaction, up to TRIES times if it deadlocks; then the error goes to the caller."""
    for _ in range(TRIES - 1):
        try:
            return await transaction()
        except psycopg.errors.DeadlockDetected:
            continue
    return await transaction()
