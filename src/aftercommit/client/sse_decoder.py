"""Turns the bytes of a `text/event-stream` into messages, as the WHATWG specification has it. Pure.

Beyond what a browser tells its page, it tells when a block moves the reader's place without an event, and it refuses
blocks without end instead of keeping them in memory.
"""

import codecs
import re
from collections.abc import Iterator
from typing import Final

import msgspec

MOST_BYTES: Final = 1 << 20

_LINE_END: Final = re.compile(rb"[\r\n]")
_DIGITS: Final = re.compile(r"[0-9]+")
_BOM: Final = codecs.BOM_UTF8
# A longer one is no time that anybody waits, and Python refuses to read numbers of thousands of digits.
_LONGEST_RETRY: Final = 18


class SseMessage(msgspec.Struct, frozen=True):
    """An event: its name, its data, and the last event id at that moment ("" for none)."""

    event: str
    data: str
    id: str


class SsePlace(msgspec.Struct, frozen=True):
    """A block with an id and without data: no event, but the reader's place moved on ("": there is none any more)."""

    id: str


class SseRetry(msgspec.Struct, frozen=True):
    """How long the server wants readers to wait before they come back."""

    milliseconds: int


class BlockTooLarge(ValueError):
    """A block or line of the stream is larger than what we keep in memory."""


class SseDecoder:
    """Decodes one stream. Where the bytes are cut makes no difference to what comes out."""

    def __init__(self, max_block_bytes: int = MOST_BYTES) -> None:
        """At the beginning of a stream. `max_block_bytes` bounds one line, and the fields of one block."""
        self._most = max_block_bytes
        self._line = bytearray()
        self._after_return = False
        self._at_beginning = True
        self._last_id = ""
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None
        self._size = 0

    def decode(self, data: bytes) -> Iterator[SseMessage | SsePlace | SseRetry]:
        """What these bytes complete. To be iterated to its end; raises BlockTooLarge, after which nothing follows."""
        start = 0
        if self._after_return and data:
            # The second half of a CR LF whose first half ended the piece before.
            self._after_return = False
            start = int(data.startswith(b"\n"))
        while (end := _LINE_END.search(data, start)) is not None:
            self._keep(data[start : end.start()])
            start = end.end()
            if end[0] == b"\r":
                if start == len(data):
                    self._after_return = True
                elif data[start] == 0x0A:
                    start += 1
            yield from self._take_line()
        self._keep(data[start:])

    def _keep(self, part: bytes) -> None:
        self._line += part
        if len(self._line) > self._most:
            raise BlockTooLarge(f"a line of the stream is longer than {self._most} bytes")

    def _take_line(self) -> Iterator[SseMessage | SsePlace | SseRetry]:
        raw = bytes(self._line)
        self._line.clear()
        if self._at_beginning:
            self._at_beginning = False
            raw = raw.removeprefix(_BOM)
        if not raw:
            yield from self._end_block()
        elif not raw.startswith(b":"):
            self._size += len(raw)
            if self._size > self._most:
                raise BlockTooLarge(f"a block of the stream is larger than {self._most} bytes")
            # Line by line gives the same text as the whole would: no character has CR or LF among its bytes.
            yield from self._take_field(raw.decode("utf-8", "replace"))

    def _take_field(self, line: str) -> Iterator[SseRetry]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and _DIGITS.fullmatch(value) and len(value) <= _LONGEST_RETRY:
            yield SseRetry(int(value))

    def _end_block(self) -> Iterator[SseMessage | SsePlace]:
        if self._id is not None:
            self._last_id = self._id
        if self._data:
            yield SseMessage(self._event or "message", "\n".join(self._data), self._last_id)
        elif self._id is not None:
            yield SsePlace(self._last_id)
        self._data, self._event, self._id, self._size = [], "", None, 0
