"""Tells whether a handler raised KeyboardInterrupt or SystemExit, or a signal that arrived while it ran."""

import dis
import signal
import threading
from types import CodeType, TracebackType
from typing import Any, Final

_RAISE: Final = frozenset({dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]})


def from_signal(error: BaseException) -> bool:
    """Whether a signal raised this: then it is for the program, and not a failure of the handler."""
    if threading.current_thread() is not threading.main_thread():
        return False
    trace = error.__traceback__
    codes = set(filter(None, (_code(signal.getsignal(number)) for number in signal.valid_signals())))
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        if trace.tb_next is None:
            break
        trace = trace.tb_next
    # Python's own handling of Ctrl-C leaves no frame: it strikes wherever the program happens to be.
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return by_default and isinstance(error, KeyboardInterrupt) and not _was_raised_at(trace)


def _code(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)
    found = getattr(function, "__code__", None)
    if found is None and callable(function):
        found = getattr(type(function).__call__, "__code__", None)
    return found if isinstance(found, CodeType) else None


def _was_raised_at(trace: TracebackType | None) -> bool:
    """Whether the innermost frame stands at a `raise`."""
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] in _RAISE
