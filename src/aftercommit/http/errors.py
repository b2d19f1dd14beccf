"""What a request is answered when it cannot be served as it was asked: one body everywhere, and nothing of our insides.

`{"error": code, "message": text, "details": {…}}`, with `retry_after` where trying again later helps.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from aftercommit.errors import AftercommitError

# Written by us alone: a client that reads only the status gets by with the codes of RFC 9110.
CODES: Mapping[int, str] = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "request_timeout",
    409: "conflict",
    410: "gone",
    413: "payload_too_large",
    415: "unsupported_media_type",
    417: "expectation_failed",
    422: "bad_request",
    429: "rate_limit_exceeded",
    431: "headers_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    505: "http_version_not_supported",
}
_encode = msgspec.json.Encoder().encode


class Problem(AftercommitError):
    """An answer that is not what was asked for: a status, a code, a message with its remedy, and details."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`retry_after` counts seconds; it goes into the body and into the header `Retry-After`."""
        super().__init__(message)
        self.status = status
        self.code = code_of(status)
        self.message = message
        self.details = details
        self.retry_after = retry_after
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def body(self) -> bytes:
        """The JSON of it."""
        told: dict[str, Any] = {"error": self.code, "message": self.message}
        if self.details:
            told["details"] = self.details
        if self.retry_after is not None:
            told["retry_after"] = self.retry_after
        return _encode(told)


def code_of(status: int) -> str:
    """The code that belongs to a status; others count as the first of their hundred."""
    return CODES.get(status) or ("bad_request" if status < 500 else "internal_error")


def bad_request(message: str, **details: Any) -> Problem:
    """A parameter, header or body that cannot be read; `details` name it."""
    return Problem(400, message, details=details)


def unauthorized(hint: str | None = None) -> Problem:
    """Nobody we know. Why is not told, as it would help those who guess; a hint is for development alone."""
    details = {"hint": hint} if hint is not None else None
    return Problem(
        401, "Missing or invalid authentication token", details=details, headers={"WWW-Authenticate": "Bearer"}
    )


def forbidden(permission: str) -> Problem:
    """Somebody we know, who may not."""
    return Problem(403, f"Insufficient permissions for {permission}")


def not_found(message: str = "There is nothing at this address") -> Problem:
    """No such thing."""
    return Problem(404, message)


def method_not_allowed(method: str, allowed: str) -> Problem:
    """The address is right and the method is not."""
    return Problem(405, f"{method:.20} is not possible here: use {allowed}", headers={"Allow": allowed})


def too_many(message: str, retry_after: int) -> Problem:
    """A limit that passes by itself."""
    return Problem(429, message, retry_after=retry_after)


def too_large(most: int) -> Problem:
    """A body above the limit."""
    return Problem(413, f"The request body is larger than {most} bytes: send less at once", details={"most": most})


def unavailable(message: str, retry_after: int = 1) -> Problem:
    """The server cannot do it now; another one, or a later moment, can."""
    return Problem(503, message, retry_after=retry_after)


def silent(seconds: float, remedy: str = "try again", outcome: str | None = None) -> Problem:
    """The database is there and has not answered. `outcome` says what became of a request that was to change something.

    Whoever waited that long need not come back at once: a server that hangs is seldom well within a second.
    """
    said = f"The database did not answer within {seconds:g} seconds: {remedy}"
    return Problem(503, said, details={"outcome": outcome} if outcome is not None else None, retry_after=5)


def internal_error() -> Problem:
    """Our mistake. What it was is in the server's log and nowhere else."""
    return Problem(500, "The server failed to answer this request; its log says why")
