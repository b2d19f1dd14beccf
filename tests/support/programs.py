"""Our command line as a process of its own: what it prints is read as it comes, and awaited with a deadline."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.support.forked import Forked

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
# What the machine that runs the tests has set must not decide what they find.
CLEANED = ("DATABASE_URL", "AFTERCOMMIT_HOME", "AFTERCOMMIT_APP", "AFTERCOMMIT_SCHEMA", "NO_COLOR", "FORCE_COLOR")


def _heed_interrupts() -> None:
    """A test run in the background has SIGINT ignored, and would hand that on to what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _start(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str], other_code: bool
) -> "subprocess.Popen[str] | Forked":
    """Forked from a process that has imported our code, unless it is other code that is to run."""
    if not other_code:
        return Forked("aftercommit.cli", arguments, folder, environment)
    return subprocess.Popen(
        [sys.executable, "-m", "aftercommit.cli", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    )


class Program:
    """A running `aftercommit`."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        """Start it."""
        inherited = {name: value for name, value in os.environ.items() if name not in CLEANED}
        self.process = _start(arguments, folder, {**inherited, **environment}, "PYTHONPATH" in environment)
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._news = threading.Condition()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.stdout), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def line(self, wanted: str, lines: list[str], timeout: float = PATIENCE) -> str:
        """The first line with this text, once it is there."""
        found = self.until(lambda: next((line for line in lines if wanted in line), None), timeout)
        assert found is not None, f"{wanted!r} was not printed: {self}"
        return found

    def until(self, condition: Callable[[], str | None], timeout: float = PATIENCE) -> str | None:
        """What the condition finds, looked at each time a line comes; None when the program ends without it."""
        deadline = time.monotonic() + timeout
        with self._news:
            while (found := condition()) is None and time.monotonic() < deadline:
                if not any(reader.is_alive() for reader in self._readers):
                    return condition()
                # A reader that ends says so before it is gone: look again soon.
                self._news.wait(0.5)
            return found

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def ends(self, timeout: float = PATIENCE) -> int:
        """Its exit status; negative when a signal ended it."""
        status = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return status

    def close(self) -> None:
        """Close the pipes, once they are empty."""
        for reader, stream in zip(self._readers, (self.process.stdout, self.process.stderr), strict=True):
            # However long that takes: processes that it has left behind end by themselves, and a pipe that is closed
            # under its reader would be that reader's error.
            reader.join()
            if stream is not None:
                stream.close()

    def __str__(self) -> str:
        """Everything it printed, for failures."""
        return "\n".join(["", "stdout:", *self.stdout, "stderr:", *self.stderr])

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        for line in stream:
            with self._news:
                lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextmanager
def running(*arguments: str, folder: Path = REPOSITORY, **environment: str) -> Iterator[Program]:
    """The program while the test looks at it; whatever happens, it does not outlive the test."""
    program = Program(arguments, folder, environment)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.terminate()
            try:
                program.process.wait(PATIENCE / 2)
            except subprocess.TimeoutExpired:
                program.process.kill()
                program.process.wait(PATIENCE)
        program.close()


def server_processes(supervisor: int) -> list[int]:
    """The server processes that this one supervises; which may be about to end."""
    found = []
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        with suppress(OSError):
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


@contextmanager
def kept_port(*, neighbours: int = 0) -> Iterator[int]:
    """A port that nobody else gets while this lasts, nor so many after it. Programs may listen there, one after the
    other: who sets SO_REUSEADDR, as our servers do, is not hindered by somebody who does not listen.
    """
    with ExitStack() as kept:
        yield _keep_some(kept, neighbours)


def _keep_some(kept: ExitStack, neighbours: int) -> int:
    while True:
        with ExitStack() as tried, suppress(OSError):
            port = _keep(tried, 0)
            for each in range(port + 1, port + 1 + neighbours):
                _keep(tried, each)
            kept.push(tried.pop_all())
            return port


def _keep(kept: ExitStack, port: int) -> int:
    held = kept.enter_context(socket.socket())
    held.bind(("127.0.0.1", port))
    # Afterwards: nobody else had it when it was bound.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return int(held.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether nobody listens there, so that one could."""
    with socket.socket() as trying, suppress(OSError):
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trying.bind(("127.0.0.1", port))
        return True
    return False
