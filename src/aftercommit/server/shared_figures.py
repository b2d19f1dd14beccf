"""The metrics of all server processes behind one address, as one page for Prometheus.

Each process answers on a socket in a folder that they share. The process that is asked for `/metrics` asks the others,
and the label `worker` says which process a sample is from. A process that replaces another takes over its number, so
Prometheus sees a counter that was reset.
"""

import asyncio
import logging
import os
import re
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from aftercommit.service import Probe, Service
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.feed")

FOLDER: Final = "AFTERCOMMIT_FIGURES"
WORKER: Final = "AFTERCOMMIT_WORKER"
ANSWER_SECONDS: Final = 1.0
ANSWERS: Final = "feed_worker_answers"
_HELP: Final = f"# HELP {ANSWERS} 1 for a server process that told its figures.\n# TYPE {ANSWERS} gauge\n"
_ABOUT: Final = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (.*)")


@contextmanager
def shared_folder() -> Iterator[None]:
    """A folder for the sockets of this process and those that it starts. One that is set already is used."""
    if FOLDER in os.environ:
        yield
        return
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="aftercommit-")
    try:
        yield
    finally:
        remove_shared_folder()


def remove_shared_folder() -> None:
    """Remove the folder, if there is one. A file that is not a socket stays, and the folder with it."""
    if FOLDER not in os.environ:
        return
    folder = Path(os.environ.pop(FOLDER))
    # Several processes may do this at once.
    with suppress(OSError):
        for each in folder.iterdir():
            if each.is_socket():
                each.unlink(missing_ok=True)
        folder.rmdir()


class SharedFigures(Service):
    """Gives the other processes the metrics of this one. Without a shared folder there are no others."""

    name = "figures"

    def __init__(self, own: Callable[[], str], worker: str | None = None, probe: Probe | None = None) -> None:
        """`own` returns the metrics of this process. Its name is `worker`, or the number from the supervisor."""
        super().__init__(probe)
        self._own = own
        self._worker = worker or os.environ.get(WORKER, "0")
        self._folder = Path(os.environ[FOLDER]) if FOLDER in os.environ else None

    async def run(self) -> None:
        """Until stopped."""
        if self._folder is None:
            await self.stopping.wait()
            return
        address = self._folder / self._worker
        try:
            # Left by a process that was killed, or used by one that this process replaces.
            address.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._tell, address)
        except OSError as problem:
            # Readers are served anyway.
            log_event(logger, logging.WARNING, "figures_not_shared", folder=str(self._folder), error=str(problem))
            self._folder = None
            await self.stopping.wait()
            return
        # The socket stays: it may be another process's by then.
        async with server:
            await self.stopping.wait()

    async def page(self) -> str:
        """The metrics of all processes. Without others, those of this one without a label."""
        if self._folder is None or not self._folder.is_dir():
            return self._own()
        others = sorted(each.name for each in self._folder.iterdir() if each.name != self._worker)
        told = await asyncio.gather(*(_asked(self._folder / each) for each in others))
        pages = {self._worker: self._own(), **dict(zip(others, told, strict=True))}
        answers = "".join(f'{ANSWERS}{{worker="{each}"}} {int(pages[each] is not None)}\n' for each in sorted(pages))
        return merged({each: page for each, page in sorted(pages.items()) if page is not None}) + _HELP + answers

    async def _tell(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            writer.write(self._own().encode())
            await writer.drain()
        except ConnectionError:
            # The process that asked has given up.
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def _asked(address: Path) -> str | None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(address)
            try:
                return (await reader.read()).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None


def merged(pages: Mapping[str, str]) -> str:
    """Several pages in Prometheus' text format as one: each metric once, each sample with its worker."""
    about: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in pages.items():
        metric = ""
        for line in page.splitlines():
            if described := _ABOUT.match(line):
                metric = described[1]
                known = about.setdefault(metric, [])
                if line not in known:
                    known.append(line)
            elif sample := _SAMPLE.fullmatch(line):
                name, labels, value = sample.groups()
                own = f'worker="{worker}"' + (f",{labels}" if labels else "")
                samples.setdefault(metric or name, []).append(f"{name}{{{own}}} {value}")
    metrics = dict.fromkeys((*about, *samples))
    lines = (line for metric in metrics for line in (*about.get(metric, ()), *samples.get(metric, ())))
    return "".join(f"{line}\n" for line in lines)
