"""Encodes server-sent events (`text/event-stream`): pure functions from values to bytes.

Line breaks in a body cannot forge another event, id or field.
"""

import re

HEARTBEAT = b": hb\n\n"
_BREAKS = re.compile(rb"\r\n|\r|\n")
_FORBIDDEN = re.compile(r"[\r\n\x00]")


def event(data: bytes, *, name: str | None = None, identity: str | None = None, retry: int | None = None) -> bytes:
    """One event. Data with line breaks becomes several `data:` lines, which the reader joins with LF."""
    head = b"" if identity is None else b"id: %b\n" % _field("id", identity)
    if name is not None:
        head += b"event: %b\n" % _field("event name", name)
    if retry is not None:
        head += b"retry: %d\n" % retry
    if b"\n" in data or b"\r" in data:
        return b"%b%b\n" % (head, b"".join(b"data: %b\n" % line for line in _BREAKS.split(data)))
    return b"%bdata: %b\n\n" % (head, data)


def progress(identity: str) -> bytes:
    """An id without an event: the reader remembers its position, and no event is dispatched."""
    return b"id: %b\n\n" % _field("id", identity)


def opening(retry: int) -> bytes:
    """The first bytes: the reconnect delay in milliseconds, and a comment that makes proxies pass them on."""
    return b"retry: %d\n: connected\n\n" % retry


def _field(what: str, value: str) -> bytes:
    if _FORBIDDEN.search(value):
        raise ValueError(f"{what} {value!r:.80} contains a line break or NUL, which an event stream cannot carry")
    return value.encode()
