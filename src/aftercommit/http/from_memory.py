"""Answers that an application has in memory: our own server sends them at once, without a task (decision 0031)."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from aftercommit.http.asgi import Header, Scope


class WholeAnswer(NamedTuple):
    """A response as it is written: the header lines, each with its line end, and the body (of a HEAD, too)."""

    status: int
    lines: bytes
    body: bytes = b""


@runtime_checkable
class AnswersFromMemory(Protocol):
    """An ASGI application that can answer some requests without waiting for anything."""

    def answer_from_memory(self, scope: Scope) -> WholeAnswer | None:
        """The response that a call with this scope would send. None, and nothing has happened, if it needs the call."""


def lines_of(headers: Iterable[Header]) -> bytes:
    """Headers as they are written."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def headers_of(lines: bytes) -> list[Header]:
    """The headers in lines that were written so."""
    parts = [line.partition(b": ") for line in lines.split(b"\r\n")[:-1]]
    return [(name, value) for name, _, value in parts]
