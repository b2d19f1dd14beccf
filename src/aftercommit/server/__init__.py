"""Serves an ASGI application: uvicorn with limits, in one process or in several under a supervisor.

It knows nothing of feeds. Serving needs `aftercommit[serve]`; `failure` and `shared_figures`, by which an application
talks to the process that serves it, need no extra.
"""

from typing import TYPE_CHECKING

from aftercommit.lazy import lazy

if TYPE_CHECKING:
    from aftercommit.server.ending_server import ServerFailed
    from aftercommit.server.http_server import AddressTaken, HttpServer, serve
    from aftercommit.server.protocol import GuardedProtocol, Guards
else:
    __getattr__ = lazy(
        __name__,
        {
            "aftercommit.server.ending_server": ("ServerFailed",),
            "aftercommit.server.http_server": ("AddressTaken", "HttpServer", "serve"),
            "aftercommit.server.protocol": ("GuardedProtocol", "Guards"),
        },
    )

__all__ = ["AddressTaken", "GuardedProtocol", "Guards", "HttpServer", "ServerFailed", "serve"]
