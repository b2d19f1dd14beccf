"""How a stream is ended on purpose: the last event, which says why, and where and when to go on. Pure.

Beside them: what is said when a stream has to wait.
"""

import msgspec

from aftercommit.feed.declaration.entry import HeldVersion
from aftercommit.http import sse

_encode = msgspec.json.Encoder().encode


def bye(reason: str, retry: int) -> bytes:
    """The server ends the stream; the reader comes back after `retry` milliseconds, here or elsewhere."""
    return sse.event(_encode({"reason": reason, "retry": retry}), name="bye", retry=retry)


def reset(reason: str, message: str, restart: str | None) -> bytes:
    """What was asked for is not there any more. The id moves a reader that looks at nothing else to the restart."""
    told = {"reason": reason, "message": message, "restart": restart}
    return sse.event(_encode(told), name="reset", identity=restart or "")


def hold(held: HeldVersion) -> bytes:
    """This process is too old to read what comes next. The stream stays, and its reader's place too."""
    return sse.event(_encode(held), name="hold")
