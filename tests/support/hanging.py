"""A server that hangs without being gone: every process of one of the test's own is stopped, for a while."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil  # type: ignore[import-untyped]

from aftercommit.testing.postgres import PostgresServerForTests

# Longer than this machine stands still while others work on it; a request that hangs costs a test as much.
LIMIT = 5.0


@contextmanager
def frozen(server: PostgresServerForTests) -> Iterator[None]:
    """No process of the server does anything while the block runs, and nobody's connection is lost."""
    assert server.embedded is not None
    assert server.embedded.pid is not None
    with stopped(server.embedded.pid):
        yield


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process and all that it has started do nothing while the block runs, and nobody is told."""
    parent = psutil.Process(pid)
    stopped = [parent]
    try:
        # The parent first: then there are no more children.
        os.kill(parent.pid, signal.SIGSTOP)
        for child in parent.children(recursive=True):
            stopped.append(child)
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGSTOP)
        yield
    finally:
        for process in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
