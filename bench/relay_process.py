"""A relay in a process of its own: says when it is asleep, and goes on until its standard input is closed."""

import asyncio
import sys

import click

from aftercommit import Database, Engine
from aftercommit.testing.signals import Signals
from bench import shop


async def run(dsn: str, manner: str) -> None:
    """`listen` has the relay woken by its doorbell, `poll` has it look for itself."""
    signals = Signals()
    async with Engine(shop.declared(), Database(dsn), workers=False, listen=manner == "listen", probe=signals):
        await signals.wait("relay.idle", times=2)
        click.echo("asleep")
        # Until the other side closes the pipe, or dies.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
