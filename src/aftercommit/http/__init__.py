"""HTTP as it is spoken here: raw ASGI, the one error body, the origins that may read, and how a stream of events looks.

Has no feed in hand and imports none: whatever is served stands on it, also what has no feeds. That a page may see what
feeds say in headers is all that is here for them (`cors.EXPOSED`).
"""

from typing import TYPE_CHECKING

from aftercommit.http.accept import prefers_page
from aftercommit.http.asgi import (
    JSON,
    NO_STORE,
    Asgi,
    BodyLimit,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    answer_problem,
    encoded,
    header_of,
    headers_of,
    peer_of,
)
from aftercommit.http.compression import compressed
from aftercommit.http.cors import Cors
from aftercommit.http.errors import (
    Problem,
    bad_request,
    forbidden,
    method_not_allowed,
    not_found,
    silent,
    too_large,
    too_many,
    unauthorized,
    unavailable,
)
from aftercommit.lazy import lazy

if TYPE_CHECKING:
    from aftercommit.http.error_handlers import exception_handlers
else:
    __getattr__ = lazy(
        __name__,
        {
            "aftercommit.http.error_handlers": ("exception_handlers",),
        },
    )

__all__ = [
    "JSON",
    "NO_STORE",
    "Asgi",
    "BodyLimit",
    "Cors",
    "Header",
    "Message",
    "Problem",
    "Receive",
    "Scope",
    "Send",
    "answer",
    "answer_problem",
    "bad_request",
    "compressed",
    "encoded",
    "exception_handlers",
    "forbidden",
    "header_of",
    "headers_of",
    "method_not_allowed",
    "not_found",
    "peer_of",
    "prefers_page",
    "silent",
    "too_large",
    "too_many",
    "unauthorized",
    "unavailable",
]
