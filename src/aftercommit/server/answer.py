"""The `send` of one request: a head and a whole body leave in one write.

uvicorn writes them one after the other, which costs a second system call for every answer. ASGI lets a server keep the
head until the body is there. A head without a length begins a stream, and leaves at once.
"""

from functools import lru_cache
from typing import Final

from uvicorn.protocols.http.httptools_impl import HEADER_RE, STATUS_LINE, RequestResponseCycle

from aftercommit.http.asgi import Message, Send

# Answers without a body, which have no length.
_BODILESS: Final = (204, 304)
# No value may have one of these: a line end in it would begin another header.
_CONTROLS: Final = bytes(byte for byte in (*range(32), 127) if byte != ord("\t"))
_LINE_END: Final = b"\r\n"


class OneWriteAnswer:
    """Sends the answer of one request. What it cannot write at once, uvicorn's own cycle sends."""

    __slots__ = ("_head", "cycle")

    def __init__(self, send: Send) -> None:
        """`send` has to be the server's own."""
        self.cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]
        self._head: Message | None = None

    async def send(self, message: Message) -> None:
        """Keep a head that announces its body, and write it together with that."""
        head = self._head
        if head is None:
            if message["type"] == "http.response.start" and not self.cycle.response_started and _is_short(message):
                self._head = message
                return
        else:
            self._head = None
            if message["type"] == "http.response.body" and self._has_written(head, message):
                return
            await self.cycle.send(head)  # type: ignore[arg-type]
        await self.cycle.send(message)  # type: ignore[arg-type]

    def _has_written(self, head: Message, message: Message) -> bool:
        """Write a whole answer; False, and nothing is written, for one that is not usual in every way."""
        cycle, body = self.cycle, message.get("body", b"")
        is_usual = cycle.keep_alive and not (cycle.disconnected or cycle.flow.write_paused or cycle.access_log)
        if not is_usual or message.get("more_body", False):
            return False
        written = _written(cycle, head, body)
        if written is None:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = cycle.chunked_encoding = False
        cycle.transport.writelines((written, body) if body and cycle.scope["method"] != "HEAD" else (written,))
        cycle.message_event.set()
        cycle.on_response()
        return True


def _is_short(head: Message) -> bool:
    """Whether the body of this answer follows at once, and not piece by piece."""
    if head["status"] in _BODILESS:
        return True
    return any(name == b"content-length" for name, _ in head.get("headers", ()))


def _written(cycle: RequestResponseCycle, head: Message, body: bytes) -> bytes | None:
    """The bytes before the body; None where a header asks for more than to be written, or may not be written."""
    status, length = head["status"], None
    lines = [STATUS_LINE[status]]
    headers = [*cycle.default_headers, *head.get("headers", ())]
    for name, value in headers:
        begin = _begin(name)
        if begin is None:
            return None
        if begin == b"content-length: ":
            length = value
        lines += (begin, value, _LINE_END)
    lines.append(_LINE_END)
    written = b"".join(lines)
    # Each line has two control characters, its end.
    if len(written) - len(written.translate(None, _CONTROLS)) != 2 * (len(headers) + 2):
        return None
    if length is None:
        return written if status in _BODILESS and not body else None
    has_its_length = length == b"%d" % len(body) or cycle.scope["method"] == "HEAD"
    return written if has_its_length else None


@lru_cache(maxsize=256)
def _begin(name: bytes) -> bytes | None:
    """A header's name as it is written; None for one that changes how the answer is sent, or is not a name."""
    lowered = name.lower()
    if lowered in (b"connection", b"transfer-encoding") or HEADER_RE.search(lowered):
        return None
    return lowered + b": "
