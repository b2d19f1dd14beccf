"""The events with which a server ends a stream, or says that it has to wait. Pure."""

import msgspec

from aftercommit.feed.declaration.entry import HeldVersion
from aftercommit.http import sse

_encode = msgspec.json.Encoder().encode


def bye(reason: str, retry: int) -> bytes:
    """The server ends the stream. The reader comes back after `retry` milliseconds, here or elsewhere."""
    return sse.event(_encode({"reason": reason, "retry": retry}), name="bye", retry=retry)


def reset(reason: str, message: str, restart: str | None) -> bytes:
    """The reader's cursor is gone. The id moves a reader that only looks at ids to the restart."""
    told = {"reason": reason, "message": message, "restart": restart}
    return sse.event(_encode(told), name="reset", identity=restart or "")


def hold(held: HeldVersion) -> bytes:
    """This process is too old to read the next event. The stream stays open, and the reader stays where it is."""
    return sse.event(_encode(held), name="hold")
