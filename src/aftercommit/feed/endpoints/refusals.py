"""Turns the exceptions of reading a feed into HTTP errors (`Problem`)."""

from typing import Final

from aftercommit.errors import (
    BadParameter,
    CursorGone,
    DatabaseError,
    DatabaseSilent,
    FeedError,
    FeedHeld,
    FeedsFailed,
    InvalidCursor,
    UnknownStrand,
)
from aftercommit.feed.declaration.cursor import text_of
from aftercommit.feed.declaration.feed import Feed
from aftercommit.http.errors import Problem, bad_request, database_silent, not_found, unavailable
from aftercommit.postgres.resilience import is_lost

# A deployment takes minutes; behind a load balancer the next request may already reach newer code.
HELD_SECONDS: Final = 3


def problem_of(feed: Feed, error: Exception) -> Problem | None:
    """The HTTP error for an exception, or None for one that is a bug."""
    match error:
        case Problem():
            return error
        case InvalidCursor():
            return bad_request(str(error), **{error.parameter: error.text[:100]})
        case BadParameter():
            return bad_request(str(error), **{error.parameter[:60]: error.value[:100]})
        case CursorGone():
            restart = text_of(feed.cursor, error.restart)
            return Problem(410, str(error), details={"reason": error.reason, "restart": restart})
        case UnknownStrand():
            return not_found(str(error))
        case FeedHeld():
            details = {"event_type": error.event_type[:100], "version": error.version, "known": error.known}
            # Behind a load balancer, a new connection may reach another process.
            headers = {"Connection": "close"}
            return Problem(503, str(error), details=details, retry_after=HELD_SECONDS, headers=headers)
        case FeedError():
            return bad_request(str(error))
        case FeedsFailed():
            return unavailable(str(error), retry_after=5)
        case DatabaseSilent():
            return database_silent(error.seconds)
        case DatabaseError():
            return unavailable("The database cannot be used at the moment: try again")
        case _ if is_lost(error):
            return unavailable("The database cannot be reached at the moment: try again")
    return None
