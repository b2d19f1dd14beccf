"""How an application tells the server around it that it cannot go on, and that only a new process could.

Our own servers end then, with an error, and whoever supervises them begins anew. Under a server that does not listen
the process stays; its `/healthz` tells.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Applications are made without their server, and stand behind others: what runs for a server inherits its context.
_server: ContextVar[Callable[[str], object] | None] = ContextVar("aftercommit.server", default=None)


@contextmanager
def heard_by(server: Callable[[str], object]) -> Iterator[None]:
    """Whatever is started in the block tells this server."""
    token = _server.set(server)
    try:
        yield
    finally:
        _server.reset(token)


def tell(what: str) -> bool:
    """Say what has failed for good; False when there is nobody who would hear it."""
    hear = _server.get()
    if hear is None:
        return False
    hear(what)
    return True
