"""The headers of a follower's requests, with its token: a text, or a function that gets one when it is needed."""

import inspect
from collections.abc import Mapping

from aftercommit.client.options import Token
from aftercommit.errors import DeclarationError


class Credential:
    """The token of one follower and what else goes with every request."""

    def __init__(self, token: Token | None, headers: Mapping[str, str] | None = None) -> None:
        """A function is not called before the first request."""
        self._source = token
        self._headers = {name: _checked(name, value) for name, value in (headers or {}).items()}
        self._token = token if isinstance(token, str) else None

    @property
    def can_refresh(self) -> bool:
        """Whether another token may be had than the one that was refused."""
        return self._source is not None and not isinstance(self._source, str)

    async def refresh(self) -> None:
        """Get another token. What the function raises is the caller's own."""
        if self._source is not None and not isinstance(self._source, str):
            given = self._source()
            self._token = await given if inspect.isawaitable(given) else given

    async def headers(self, accept: str) -> dict[str, bytes]:
        """What to send with a request."""
        if self._token is None:
            await self.refresh()
        headers = {**self._headers, "Accept": accept.encode()}
        if self._token is not None:
            headers["Authorization"] = _checked("token", f"Bearer {self._token}")
        return headers


def _checked(name: str, value: str) -> bytes:
    if not value.isascii() or not value.isprintable():
        # The value may be a secret, and is not shown.
        raise DeclarationError(f"{name} cannot be sent as a header: it holds characters other than printable ASCII")
    return value.encode()
