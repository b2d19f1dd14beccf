"""Facets: the values of an event that filters compare, computed once.

A facet that names a payload field is read from the stored payload by the same rule as the database function `facet`, so
the ring in memory and the indexes of history agree on every event.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec

from aftercommit.errors import DeclarationError
from aftercommit.event.definition import checked_name
from aftercommit.feed.declaration.entry import LogEvent
from aftercommit.feed.declaration.filters import LONGEST_FACET, UNKNOWN

_LONGEST_NAME: Final = 50
_FIELD: Final = re.compile(r"[^\W\d][\w-]*")
# PostgreSQL cannot store these characters as text. A payload with one has no facets in the database, and none here.
_PAIR: Final = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]")
_UNREADABLE: Final = re.compile(rb"\\u(0000|[dD][89a-fA-F])")
# publish() refuses a payload of this depth, but SQL can insert one. A decoder fails where the interpreter's stack ends:
# at about 1,000 levels in Python 3.11, and 10,000 in some versions of 3.13. So we count the depth ourselves.
_MAX_DEPTH: Final = 500
# A payload that is deeper is longer than this: each level has two brackets.
_LEAST_DEEP: Final = 2 * _MAX_DEPTH
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _STEPS)

Function = Callable[[LogEvent[Any]], str | None]
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Facets:
    """The declared facets of one feed, in order."""

    def __init__(self, feed: str, declared: Mapping[str, str | Function]) -> None:
        """Each facet is a payload field (`"context.tenant"` for a nested one) or a function of the event."""
        self.names = tuple(checked_name(name, "facet", _LONGEST_NAME) for name in declared)
        self.paths = tuple(_path(feed, name, each) for name, each in declared.items())
        self._functions = tuple(None if isinstance(each, str) else each for each in declared.values())
        self._has_paths = any(path is not None for path in self.paths)
        self._decode_texts = _decoder_of_texts(self.paths)

    def of(self, payload: bytes, event: LogEvent[Any] | None) -> tuple[str | None, ...]:
        """The values for one event; without a typed event, those of functions are UNKNOWN."""
        if not self.names:
            return ()
        if self._decode_texts is not None and len(payload) <= _LEAST_DEEP and b"\\u" not in payload:
            try:
                texts = msgspec.structs.astuple(self._decode_texts(payload))
                return tuple([text and text[:LONGEST_FACET] for text in texts])
            except (msgspec.DecodeError, UnicodeDecodeError):
                # A value is not a text, or the payload is not an object.
                pass
        stored = _fields(payload) if self._has_paths else None
        return tuple(
            _at(stored, path) if path is not None else _asked(function, event)
            for path, function in zip(self.paths, self._functions, strict=True)
        )


def _path(feed: str, name: str, declared: str | Function) -> tuple[str, ...] | None:
    if not isinstance(declared, str):
        return None
    path = tuple(declared.split("."))
    # PostgreSQL would take a number for the index of an array.
    if not all(_FIELD.fullmatch(part) for part in path):
        raise DeclarationError(
            f"feed {feed!r}: facet {name!r} is {declared!r:.100}: use field names (letters, digits, _ and -, a letter "
            "or _ first) joined by dots, or a function of the event"
        )
    return path


def _decoder_of_texts(paths: Sequence[tuple[str, ...] | None]) -> Callable[[bytes], msgspec.Struct] | None:
    """Reads all facets in one step, where all are fields of the payload itself. It refuses what is not a text."""
    names = [path[0] for path in paths if path is not None and len(path) == 1]
    if not names or len(set(names)) < len(paths):
        return None
    # A field of the class is named after its place, because the name in the payload can be a keyword.
    places = {f"at_{place}": name for place, name in enumerate(names)}
    fields = [(place, str | None, None) for place in places]
    return msgspec.json.Decoder(msgspec.defstruct("FacetTexts", fields, rename=places, gc=False)).decode


def _asked(function: Function | None, event: LogEvent[Any] | None) -> str | None:
    if function is None:
        return None
    if event is None:
        return UNKNOWN
    value = function(event)
    return None if value is None else str(value)[:LONGEST_FACET]


def _fields(payload: bytes) -> dict[str, msgspec.Raw] | None:
    if b"\\u" in payload and _UNREADABLE.search(_PAIR.sub(b"", payload.replace(b"\\\\", b""))):
        return None
    return None if _is_too_deep(payload) else _object(payload)


def _is_too_deep(payload: bytes) -> bool:
    if payload.count(b"[") + payload.count(b"{") <= _MAX_DEPTH:
        return False
    without_strings = b"".join(_ESCAPE.sub(b"", payload).split(b'"')[::2])
    brackets = without_strings.translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > _MAX_DEPTH


def _object(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _at(fields: dict[str, msgspec.Raw] | None, path: tuple[str, ...]) -> str | None:
    """Like `payload #>> path`: the text of a string, other values as JSON, and None for null."""
    *outer, last = path
    for name in outer:
        inner = fields.get(name) if fields is not None else None
        fields = _object(inner) if inner is not None else None
    raw = fields.get(last) if fields is not None else None
    if raw is None or (text := bytes(raw)) == b"null":
        return None
    if text[:1] != b'"':
        return text.decode()[:LONGEST_FACET]
    # Without an escape, the text is what stands between its quotation marks.
    value = msgspec.json.decode(text, type=str) if b"\\" in text else text[1:-1].decode()
    return value[:LONGEST_FACET]
