"""`aftercommit serve` as a child process of `aftercommit up`, for several server processes."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from socket import socket

from aftercommit.errors import AftercommitError
from aftercommit.service import Service


class ServerProcess(Service):
    """Runs `aftercommit serve` until stopped, without a terminal: Ctrl-C reaches only `up`, which stops it in order."""

    name = "http"

    def __init__(self, bound: socket, url: str, workers: int, grace_seconds: float) -> None:
        """The other settings are in the environment. After a stop, it has `grace_seconds` to end by itself."""
        super().__init__()
        self.url = url
        self._socket = bound
        self._workers = workers
        self._grace_seconds = grace_seconds

    async def run(self) -> None:
        """Run until stopped. If the server ends by itself, raise an error."""
        with self._socket:
            process = await self._begun()
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise AftercommitError(f"the HTTP server exited with status {process.returncode}: see its output above")
        finally:
            stopping.cancel()
            await self._end(process)
            await asyncio.gather(ended, stopping, return_exceptions=True)

    async def _begun(self) -> Process:
        descriptor = self._socket.fileno()
        told = ("--development", "--socket", str(descriptor), "--workers", str(self._workers))
        command = [sys.executable, "-m", "aftercommit.cli", "serve", *told]
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=DEVNULL, start_new_session=True, pass_fds=(descriptor,)
        )

    async def _end(self, process: Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self._grace_seconds):
                await process.wait()
        except TimeoutError:
            process.kill()
