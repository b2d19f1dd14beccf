"""HTTP errors with one common body: `{"error": code, "message": text, "details": {…}}`.

Where trying again later helps, the body has `retry_after`, too.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from aftercommit.errors import AftercommitError

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
    """An HTTP error: status, code, a message that says what to do, and details."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`retry_after` is in seconds; the body and the header `Retry-After` have it."""
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
        """The error as JSON."""
        body: dict[str, Any] = {"error": self.code, "message": self.message}
        if self.details:
            body["details"] = self.details
        if self.retry_after is not None:
            body["retry_after"] = self.retry_after
        return _encode(body)


def code_of(status: int) -> str:
    """The error code for a status; an unlisted status gets that of 400 or 500."""
    return CODES.get(status) or ("bad_request" if status < 500 else "internal_error")


def bad_request(message: str, **details: Any) -> Problem:
    """400: a parameter, header or body is not valid; `details` name it."""
    return Problem(400, message, details=details)


def unauthorized(hint: str | None = None) -> Problem:
    """401, without a reason, which would help attackers. `hint` is for development servers."""
    details = {"hint": hint} if hint is not None else None
    return Problem(
        401, "Missing or invalid authentication token", details=details, headers={"WWW-Authenticate": "Bearer"}
    )


def forbidden(permission: str) -> Problem:
    """403: the reader does not have this permission."""
    return Problem(403, f"Insufficient permissions for {permission}")


def not_found(message: str = "There is nothing at this address") -> Problem:
    """404: no such resource."""
    return Problem(404, message)


def method_not_allowed(method: str, allowed: str) -> Problem:
    """405: the address does not support this method."""
    return Problem(405, f"{method:.20} is not allowed here: use {allowed}", headers={"Allow": allowed})


def too_many(message: str, retry_after: int) -> Problem:
    """429: over a rate limit; the client may try again after `retry_after` seconds."""
    return Problem(429, message, retry_after=retry_after)


def too_large(most: int) -> Problem:
    """413: the request body is over the limit."""
    return Problem(413, f"The request body is larger than {most} bytes: send less at once", details={"most": most})


def unavailable(message: str, retry_after: int = 1) -> Problem:
    """503: the server cannot do this now; another server, or a later attempt, may."""
    return Problem(503, message, retry_after=retry_after)


def database_silent(seconds: float, remedy: str = "try again", outcome: str | None = None) -> Problem:
    """503: the database did not answer in time. `outcome` says what became of a request that writes."""
    said = f"The database did not answer within {seconds:g} seconds: {remedy}"
    # A server that hangs seldom recovers within a second, so clients come back later than after other errors.
    return Problem(503, said, details={"outcome": outcome} if outcome is not None else None, retry_after=5)


def internal_error() -> Problem:
    """500: a bug. The cause is in the server's log, and not in the response."""
    return Problem(500, "The server failed to answer this request; its log says why")
