"""Runs services until a signal stops them: the first one asks them to end, the second one ends the process at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Self

from aftercommit.service import Service

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = b"\x1b[?25h"


class Stopper:
    """Handles stop signals from the moment it is entered, even before there is anything to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._ask: Callable[[], object] | None = None
        self._at_once: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # Respect nohup. Handle an interrupt even if a shell has told a background process to ignore it.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def calls(self, ask: Callable[[], object]) -> None:
        """Call this in the running event loop when a stop is requested; now, if it was requested before."""
        loop = asyncio.get_running_loop()
        self._ask = lambda: loop.call_soon_threadsafe(ask)
        if self.requested:
            ask()

    def at_once(self, call: Callable[[], object]) -> None:
        """Call this at the second signal, just before the process ends. It must not block."""
        self._at_once = call

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run an event loop. A signal that comes after it has ended only sets `requested`."""
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
    """uvloop if it is installed (`aftercommit[uvloop]`), otherwise Python's own event loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_until_stopped(make: Callable[[], Service], on_request: Callable[[], object]) -> None:
    """Run a service until a signal stops it, after calling `on_request`, or until it fails; its error is raised."""
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
