"""A uvicorn server that ends with an error when its application has failed for good."""

import socket

from aftercommit.errors import AftercommitError, MissingExtra
from aftercommit.server.failure import heard_by

try:
    import uvicorn
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "uvicorn") from problem


class ServerFailed(AftercommitError):
    """The application cannot go on in this process; a new process may succeed."""


class EndingServer(uvicorn.Server):
    """Serves until it is stopped, or until the application says that it has failed."""

    def __init__(self, config: uvicorn.Config) -> None:
        """Not started."""
        super().__init__(config)
        self._failure: str | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped. ServerFailed when the application has failed for good."""
        with heard_by(self._fail):
            await super().serve(sockets)
        if self._failure is not None:
            raise ServerFailed(f"the server has ended because it could not go on: {self._failure}")

    def _fail(self, what: str) -> None:
        # A server that is being stopped already ends for that reason.
        if not self.should_exit:
            self._failure = what
            self.should_exit = True
