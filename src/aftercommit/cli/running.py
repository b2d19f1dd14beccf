"""Runs services until somebody wants them to stop: the first signal asks, the second ends the process on the spot."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, Self

from aftercommit.service import Service

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = b"\x1b[?25h"


class Stopper:
    """Waits for signals from the moment it is entered, also while nothing can be stopped yet."""

    def __init__(self) -> None:
        self.requested = False
        self._ask: Callable[[], object] | None = None
        self._at_once: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # nohup has the last word. An interrupt is ours also where a shell ignores it for what it runs behind.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def calls(self, ask: Callable[[], object]) -> None:
        """What to do when a stop is requested, in the running event loop; at once, if it has been already."""
        loop = asyncio.get_running_loop()
        self._ask = lambda: loop.call_soon_threadsafe(ask)
        if self.requested:
            ask()

    def at_once(self, call: Callable[[], object]) -> None:
        """What to do at the second signal, before the process ends on the spot. It must not wait."""
        self._at_once = call

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run an event loop; a signal that comes when it is over is only remembered."""
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(main)
        finally:
            self._ask = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), _SHOW_CURSOR)
            if self._at_once is not None:
                self._at_once()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = True
        if self._ask is not None:
            self._ask()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quicker event loop where it is installed (`aftercommit[uvloop]`), otherwise that of Python."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_until_stopped(make: Callable[[], Service], on_request: Callable[[], object]) -> None:
    """Run a service to its end: by a signal (then `on_request` is called first), or by an error, which is raised."""
    with Stopper() as stopper:
        stopper.run(_run(make, on_request, stopper))


async def _run(make: Callable[[], Service], on_request: Callable[[], object], stopper: Stopper) -> None:
    service = make()
    await service.start()

    def stop() -> None:
        on_request()
        service.stopping.set()

    stopper.calls(stop)
    await service.wait()
