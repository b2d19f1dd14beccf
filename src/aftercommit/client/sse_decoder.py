"""Decodes a `text/event-stream` as the WHATWG specification says. Pure.

Unlike a browser, it also reports a block that moves the reader's place without an event, and it refuses blocks without
end instead of keeping them in memory.
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
# Nobody waits longer than that, and Python refuses to read numbers with thousands of digits.
_LONGEST_RETRY: Final = 18


class SseMessage(msgspec.Struct, frozen=True):
    """An event: its name, its data, and the last event id at that moment ("" for none)."""

    event: str
    data: str
    id: str


class SsePlace(msgspec.Struct, frozen=True):
    """A block with an id and without data: the reader's place moved without an event ("": it has none any more)."""

    id: str


class SseRetry(msgspec.Struct, frozen=True):
    """How long readers should wait before they come back."""

    milliseconds: int


class BlockTooLarge(ValueError):
    """A block or line of the stream is larger than the limit."""


class SseDecoder:
    """Decodes one stream, in pieces of any size."""

    def __init__(self, max_block_bytes: int = MOST_BYTES) -> None:
        """`max_block_bytes` bounds one line, and the fields of one block."""
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
        """The parts that these bytes complete. Iterate to the end. Raises BlockTooLarge: then drop the stream."""
        start = 0
        if self._after_return and data:
            # The LF of a CR LF may begin the next piece.
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
            # Decoding line by line is safe: in UTF-8, CR and LF are never part of another character.
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
