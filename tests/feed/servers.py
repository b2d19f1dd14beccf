"""Servers as tests see them from outside: programs of several processes, one that is not ours, a bare connection."""

import asyncio
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import uvicorn

from aftercommit.http.asgi import Asgi
from aftercommit.server.http_server import listen, url_of
from tests.feed.journal import Journal, Reading, until
from tests.support.forked import REPOSITORY, Forked
from tests.support.programs import server_processes

SECONDS = 60.0
# What is asked here is plain HTTP; by default httpx reads all certificate authorities there are for every client.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def workers_of(process: Forked) -> set[int]:
    """The processes that serve, by their ids."""
    return set(server_processes(process.pid))


async def all_workers(process: Forked) -> set[int]:
    await until(lambda: len(workers_of(process)) == 2, timeout=60)
    return workers_of(process)


@contextmanager
def program(
    journal: Journal, workers: int, fails: Path = Path("/nowhere"), *, newer: bool = False
) -> Iterator[tuple[Forked, str]]:
    code = {"JOURNAL_CODE": "newer" if newer else "present"}
    environment = {**os.environ, "JOURNAL_DSN": journal.dsn, "JOURNAL_FAILS": str(fails), **code}
    process = Forked("tests.feed.program", [str(workers)], REPOSITORY, environment, errors=2)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.close()


@asynccontextmanager
async def in_another_server(app: Asgi) -> AsyncIterator[str]:
    """Served by a program that is not ours, which does not hear that an application has failed."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None))
    with listen("127.0.0.1", 0) as bound:
        serving = asyncio.create_task(server.serve([bound]))
        await until(lambda: server.started)
        try:
            yield url_of(bound)
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, SECONDS)


def client(journal: Journal, url: str) -> httpx.AsyncClient:
    # The address is there before the workers are, and on a busy machine they take their time.
    return httpx.AsyncClient(base_url=url, headers=journal.bearer(), timeout=60, verify=TLS)


@asynccontextmanager
async def connected(reading: Reading) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = urlsplit(reading.server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What the server still says before it ends the connection, in whichever way it does."""
    said = b""
    async with asyncio.timeout(SECONDS):
        with suppress(ConnectionResetError):
            while piece := await reader.read(65_536):
                said += piece
    return said
