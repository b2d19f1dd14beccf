"""A handler's own KeyboardInterrupt and SystemExit are told from those that a signal raises while it runs."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from aftercommit.consumer.interrupts import from_signal


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def caught(act: Callable[[], Any]) -> BaseException:
    with pytest.raises((KeyboardInterrupt, SystemExit)) as found:
        act()
    return found.value


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def be_sent(number: int) -> None:
    os.kill(os.getpid(), number)
    for _ in range(10**7):
        pass


def leave(code: int, number: int, frame: object) -> None:
    sys.exit(code)


class Interrupting:
    def __call__(self, number: int, frame: object) -> None:
        raise KeyboardInterrupt


def leave_quietly() -> None:
    raise SystemExit


def test_what_a_handler_raises_itself_is_its_own_failure():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, partial(leave, 0))
    for act in (raise_interrupt, lambda: sys.exit(1), leave_quietly):
        assert not from_signal(caught(act))


def test_ctrl_c_as_python_handles_it_by_itself_is_the_programs():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert from_signal(caught(lambda: be_sent(signal.SIGINT)))


@pytest.mark.parametrize("handler", [partial(leave, 3), Interrupting()])
def test_what_a_signal_handler_of_the_program_raises_is_the_programs(handler: Callable[..., Any]):
    signal.signal(signal.SIGTERM, handler)
    assert from_signal(caught(lambda: be_sent(signal.SIGTERM)))
