"""HTTP for everything that aftercommit serves: raw ASGI, the common error body, CORS and server-sent events.

Imports no feed, so an application without feeds can use it too. `cors.EXPOSED` names the response headers of feeds.
"""

from typing import TYPE_CHECKING

from aftercommit.http.accept import prefers_html
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
    asgi_headers,
    header_of,
    headers_of,
    peer_of,
)
from aftercommit.http.compression import compressed
from aftercommit.http.cors import Cors
from aftercommit.http.errors import (
    Problem,
    bad_request,
    database_silent,
    forbidden,
    method_not_allowed,
    not_found,
    too_large,
    too_many,
    unauthorized,
    unavailable,
)
from aftercommit.http.from_memory import AnswersFromMemory, WholeAnswer
from aftercommit.lazy import lazy

if TYPE_CHECKING:
    from aftercommit.http.error_handlers import exception_handlers
else:
    __getattr__ = lazy(__name__, {"aftercommit.http.error_handlers": ("exception_handlers",)})

__all__ = [
    "JSON",
    "NO_STORE",
    "AnswersFromMemory",
    "Asgi",
    "BodyLimit",
    "Cors",
    "Header",
    "Message",
    "Problem",
    "Receive",
    "Scope",
    "Send",
    "WholeAnswer",
    "answer",
    "answer_problem",
    "asgi_headers",
    "bad_request",
    "compressed",
    "database_silent",
    "exception_handlers",
    "forbidden",
    "header_of",
    "headers_of",
    "method_not_allowed",
    "not_found",
    "peer_of",
    "prefers_html",
    "too_large",
    "too_many",
    "unauthorized",
    "unavailable",
]
