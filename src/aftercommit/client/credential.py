"""The headers of a reader's requests, with its token: a string, or a function that gets one when needed."""

import inspect
from collections.abc import Mapping

from aftercommit.client.options import Token
from aftercommit.errors import DeclarationError


class Credential:
    """The token of one reader, and the headers of every request."""

    def __init__(self, token: Token | None, headers: Mapping[str, str] | None = None) -> None:
        self._source = token
        self._headers = {name: _checked(name, value) for name, value in (headers or {}).items()}
        self._token = token if isinstance(token, str) else None

    @property
    def can_refresh(self) -> bool:
        """Whether there is a function that may get another token than the one that was refused."""
        return self._source is not None and not isinstance(self._source, str)

    async def refresh(self) -> None:
        """Get another token. Errors of the function are not caught."""
        if self._source is not None and not isinstance(self._source, str):
            given = self._source()
            self._token = await given if inspect.isawaitable(given) else given

    async def headers(self, accept: str) -> dict[str, bytes]:
        """The headers of a request; gets the first token."""
        if self._token is None:
            await self.refresh()
        headers = {**self._headers, "Accept": accept.encode()}
        if self._token is not None:
            headers["Authorization"] = _checked("token", f"Bearer {self._token}")
        return headers


def _checked(name: str, value: str) -> bytes:
    if not value.isascii() or not value.isprintable():
        # The value may be a secret: the message must not quote it.
        raise DeclarationError(f"{name} cannot be sent as a header: it must be printable ASCII")
    return value.encode()
