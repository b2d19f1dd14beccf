"""A database that hangs without being gone: every process of a server of the test's own is stopped, for a while."""

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
    postmaster = psutil.Process(server.embedded.pid)
    stopped = [postmaster]
    try:
        # The postmaster first: then there are no more children.
        os.kill(postmaster.pid, signal.SIGSTOP)
        for child in postmaster.children(recursive=True):
            stopped.append(child)
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGSTOP)
        yield
    finally:
        for process in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
