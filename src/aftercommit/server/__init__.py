"""The process around an application: uvicorn with limits, alone or several under a supervisor, ended within a bound.

Which application it is, it does not know: of the other rooms it needs `http` alone. What one may tell the process that
serves it (`failure`, `shared_figures`) needs no extra; serving needs `aftercommit[serve]`.
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
