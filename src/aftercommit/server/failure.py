"""How an application tells its server that it cannot go on, and that only a new process could.

Our own servers then end with an error, and their supervisor starts a new process. Under any other server the process
stays, and `/healthz` reports the failure.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# A context variable, because applications are made before their server and may stand behind other applications.
_server: ContextVar[Callable[[str], object] | None] = ContextVar("aftercommit.server", default=None)


@contextmanager
def heard_by(server: Callable[[str], object]) -> Iterator[None]:
    """Everything that is started in the block reports to this server."""
    token = _server.set(server)
    try:
        yield
    finally:
        _server.reset(token)


def tell(what: str) -> bool:
    """Report what has failed for good; False when no server listens."""
    hear = _server.get()
    if hear is not None:
        hear(what)
    return hear is not None
