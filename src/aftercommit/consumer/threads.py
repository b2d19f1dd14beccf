"""Runs blocking handlers in threads and watches them: a handler that hangs loses its connection."""

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg

from aftercommit.consumer.calls import HandlerCall
from aftercommit.errors import AftercommitError
from aftercommit.postgres.cutting import cut
from aftercommit.postgres.database import is_direct

Result = TypeVar("Result")

# Called when a handler's thread ends. Libraries that keep a connection per thread would leave it open.
AT_END: Final[list[Callable[[], None]]] = []


class GivenUp(AftercommitError):
    """The slice took too long and was cut off."""


class Watch:
    """Knows what a slice in a thread is doing, and can end it from outside."""

    def __init__(self) -> None:
        self.connection: psycopg.Connection[Any] | None = None
        self._call: HandlerCall | None = None
        self._since = 0.0
        self._given_up = False
        # A handler that returns at the last moment must be either too late or in time, not both.
        self._lock = threading.Lock()

    def enter(self, call: HandlerCall | None) -> None:
        """The slice goes on to a handler, or (None) to a statement of our own."""
        with self._lock:
            if self._given_up:
                raise GivenUp("the slice took too long and was given up")
            self._call, self._since = call, time.monotonic()

    def leave(self) -> bool:
        """The slice lets go of its connection. True: it may be cut off any moment, so nobody may use it."""
        with self._lock:
            self.connection = None
            return self._given_up

    def give_up_after(self, timeout: float) -> HandlerCall | None:
        """The call that has taken longer than this, if any; then the slice cannot go on."""
        with self._lock:
            if self._call is None or time.monotonic() - self._since <= timeout:
                return None
            self._given_up = True
            return self._call

    def give_up(self) -> None:
        """Keep the slice from going on."""
        with self._lock:
            self._given_up = True

    def cut_off(self) -> None:
        """Cut the connection: the handler's writes are undone, and it can write no more."""
        with self._lock:
            connection = self.connection
            if connection is None:
                return
            end = cut(connection, awaits_answer=not is_direct(connection))
        end()


def in_thread(function: Callable[[], Result]) -> "asyncio.Future[Result]":
    """Run in a daemon thread, so that a handler that never returns cannot keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def finish(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as problem:  # noqa: BLE001 - passed to the waiting task
            error = problem
        finally:
            for act in AT_END:
                # The slice is over, whether this works or not.
                with contextlib.suppress(Exception):
                    act()
        # When the loop is gone, nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=body, name="aftercommit handler", daemon=True).start()
    return future
