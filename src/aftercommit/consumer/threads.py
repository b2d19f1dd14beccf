"""Blocking handlers in threads of their own, watched from outside: one that hangs is cut off, not waited for."""

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg

from aftercommit.consumer.slices import HandlerCall
from aftercommit.errors import AftercommitError
from aftercommit.postgres.cutting import cut
from aftercommit.postgres.database import is_direct

Result = TypeVar("Result")

# What a handler's thread does before it ends. Libraries that keep a connection per thread would leave it open.
AT_END: Final[list[Callable[[], None]]] = []


class GivenUp(AftercommitError):
    """This slice took too long and was cut off; it may not go on."""


class Watch:
    """What a slice in a thread is doing, and the means to end it from outside."""

    def __init__(self) -> None:
        """Not begun."""
        self.connection: psycopg.Connection[Any] | None = None
        self._call: HandlerCall | None = None
        self._since = 0.0
        self._given_up = False
        # A handler that returns at the last moment must either be too late or be waited for, never both.
        self._lock = threading.Lock()

    def enter(self, call: HandlerCall | None) -> None:
        """The slice goes on to a handler, or (None) to something of our own."""
        with self._lock:
            if self._given_up:
                raise GivenUp("the slice took too long and was given up")
            self._call, self._since = call, time.monotonic()

    def leave(self) -> bool:
        """The connection is no longer this slice's. True: it may be about to be cut off, so it is nobody else's."""
        with self._lock:
            self.connection = None
            return self._given_up

    def give_up_after(self, timeout: float) -> HandlerCall | None:
        """The call that has taken longer than this; from now on the slice cannot go on."""
        with self._lock:
            if self._call is None or time.monotonic() - self._since <= timeout:
                return None
            self._given_up = True
            return self._call

    def give_up(self) -> None:
        """The slice cannot go on, whatever it does."""
        with self._lock:
            self._given_up = True

    def cut_off(self) -> None:
        """End the transaction: what the hanging handler wrote is undone, and it can write no more."""
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
        except BaseException as problem:  # noqa: BLE001 - handed to whoever waits
            error = problem
        finally:
            for act in AT_END:
                # The slice is over, whatever becomes of this.
                with contextlib.suppress(Exception):
                    act()
        # Nobody waits any more when the loop is gone.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=body, name="aftercommit handler", daemon=True).start()
    return future
