"""Several server processes on one address: started, replaced when they die, ended in a bounded time.

uvicorn's own supervisor does not handle signals while it waits for a worker's answer, and waits without a limit for
workers to end (decision 0022). This one sleeps until a signal comes or a worker dies, and kills those that do not end.
"""

import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Final

from aftercommit.backoff import Exponential
from aftercommit.errors import AftercommitError, MissingExtra
from aftercommit.server.ending_server import EndingServer, ServerFailed
from aftercommit.server.shared_figures import WORKER, remove_shared_folder
from aftercommit.telemetry import log_event

try:
    from uvicorn import Config
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors.multiprocess import Process
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "uvicorn") from problem

logger = logging.getLogger("aftercommit.server")

_ENDING: Final = frozenset((signal.SIGTERM, signal.SIGINT))
_HEARD: Final = _ENDING | {signal.SIGHUP}
# How long a worker that replaces another may take to begin, and how often it is asked.
_BEGIN_SECONDS: Final = 60.0
_ASK_SECONDS: Final = 0.2
# After a worker that lived this long the next one begins at once; otherwise after a growing pause.
_SETTLED_SECONDS: Final = 30.0
_PAUSE: Final = Exponential(base=0.5, maximum=30.0)
_DIED: Final = AftercommitError("a worker has died")


class _Worker(Process):
    """A server process. When its application fails for good it logs the reason and exits with status 1."""

    @property
    def server(self) -> EndingServer:
        if not isinstance(self._server, EndingServer):
            self._server = EndingServer(self.config)
        return self._server

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().target(sockets)
        except ServerFailed:
            raise SystemExit(1) from None


class Supervisor:
    """Keeps workers running until a signal ends it, or until the application cannot start."""

    def __init__(self, config: Config, bound: socket.socket, *, grace_seconds: float) -> None:
        """Workers share the socket. When stopped they have `grace_seconds` before they are killed."""
        self._config = config
        self._socket = bound
        self._grace_seconds = grace_seconds
        # By number. A replacement takes over the number, and with it the series at `/metrics`.
        self._workers: dict[int, Process] = {}
        # Replaced, and still ending.
        self._leaving: list[Process] = []
        self._signals: set[int] = set()
        self._deaths = 0
        self._died_at = self._begin_at = -math.inf

    def hear(self, number: int) -> None:
        """A signal that came before `run`."""
        self._signals.add(number)

    def run(self) -> None:
        """Until stopped. AftercommitError when the application cannot start."""
        with _ear() as self._ear:
            try:
                while not self._is_to_end():
                    self._fill_up()
                    if signal.SIGHUP in self._signals:
                        self._signals.discard(signal.SIGHUP)
                        self._replace_all()
                    else:
                        self._sleep(self._until_next_begin(), *self._workers.values())
                        self._bury_the_dead()
            finally:
                self._end(*self._workers.values(), *self._leaving)

    def _is_to_end(self) -> bool:
        return not self._signals.isdisjoint(_ENDING)

    def _sleep(self, seconds: float | None, *processes: Process) -> None:
        """Until a signal comes, one of these processes has ended, or the time is up."""
        if self._ear in wait([self._ear, *(each.process.sentinel for each in processes)], seconds):
            self._signals.update(self._ear.recv(4096))

    def _missing(self) -> list[int]:
        return [number for number in range(1, self._config.workers + 1) if number not in self._workers]

    def _fill_up(self) -> None:
        for number in self._missing():
            if time.monotonic() < self._begin_at:
                return
            process = self._begun(number)
            if process is None:
                self._has_died(number)
            else:
                self._workers[number] = process

    def _until_next_begin(self) -> float | None:
        return max(0.0, self._begin_at - time.monotonic()) if self._missing() else None

    def _begun(self, number: int) -> Process | None:
        """A new worker; None when it could not be started."""
        # A worker finds its number in the environment.
        os.environ[WORKER] = str(number)
        process = _Worker(self._config, [self._socket])
        try:
            process.start()
        except OSError as problem:
            log_event(logger, logging.WARNING, "server_process_not_started", worker=number, error=repr(problem)[:300])
            return None
        log_event(logger, logging.INFO, "server_process_started", worker=number, pid=process.pid)
        return process

    def _bury_the_dead(self) -> None:
        for number, process in tuple(self._workers.items()):
            if process.exitcode is None:
                continue
            del self._workers[number]
            # Before any worker has died, the application is at fault. Later, the others still serve.
            if process.exitcode == STARTUP_FAILURE and self._died_at == -math.inf:
                raise AftercommitError("the application could not start; what it said is in the log")
            self._has_died(number, pid=process.pid, status=process.exitcode)

    def _has_died(self, number: int, **fields: object) -> None:
        now = time.monotonic()
        # Counted from when it could begin, so that a long pause does not count as life.
        self._deaths = self._deaths + 1 if now - self._begin_at < _SETTLED_SECONDS else 0
        pause = (_PAUSE(self._deaths, _DIED) or 0.0) if self._deaths else 0.0
        self._died_at, self._begin_at = now, now + pause
        log_event(logger, logging.WARNING, "server_process_died", worker=number, **fields, replaced_in=round(pause, 1))

    def _replace_all(self) -> None:
        """Replace workers one after the other, each when its successor answers. A signal to end goes first."""
        for number, process in tuple(self._workers.items()):
            successor = self._begun(number)
            if successor is None or not self._answers(successor):
                self._end(*([successor] if successor is not None else []))
                if not self._is_to_end():
                    remedy = "its successor did not begin to answer: see why, mend it, send SIGHUP again"
                    log_event(logger, logging.ERROR, "server_process_not_replaced", worker=number, remedy=remedy)
                return
            self._workers[number] = successor
            self._retire(process)
            if self._is_to_end():
                return

    def _answers(self, process: Process) -> bool:
        until = time.monotonic() + _BEGIN_SECONDS
        while process.exitcode is None and not self._is_to_end() and time.monotonic() < until:
            if process.is_ready(_ASK_SECONDS):
                return True
            self._sleep(_ASK_SECONDS, process)
        return False

    def _retire(self, process: Process) -> None:
        """End a worker while its successor serves."""
        self._leaving.append(process)
        process.terminate()
        until = time.monotonic() + self._grace_seconds
        while process.exitcode is None and not self._is_to_end() and time.monotonic() < until:
            self._sleep(until - time.monotonic(), process)
        if not self._is_to_end():
            self._leaving.remove(process)
            self._kill(process)

    def _end(self, *processes: Process) -> None:
        """Ask workers to end, and kill those that have not after the grace time."""
        for process in processes:
            with suppress(ProcessLookupError):
                process.terminate()
        until = time.monotonic() + self._grace_seconds
        while (left := [each for each in processes if each.exitcode is None]) and time.monotonic() < until:
            wait([each.process.sentinel for each in left], until - time.monotonic())
        for process in left:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        """Kill a worker if it still runs."""
        if process.exitcode is None:
            log_event(logger, logging.WARNING, "server_process_killed", pid=process.pid, seconds=self._grace_seconds)
            process.process.kill()
            process.process.join()


@contextmanager
def _ear() -> Iterator[socket.socket]:
    """A socket from which the numbers of signals can be read as they come."""
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    # The wakeup first: a signal between the two would be lost.
    before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    # The handlers do nothing: signals are read from the socket.
    handlers = {number: signal.signal(number, lambda *_: None) for number in _HEARD}
    try:
        yield ear
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ear.close()
        mouth.close()


def end_with_parent() -> None:
    """In a worker: end when the supervisor has ended, even if it was killed. Otherwise the address would stay taken."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        # A supervisor that was killed has not removed it.
        remove_shared_folder()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
