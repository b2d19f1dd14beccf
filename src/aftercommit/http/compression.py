"""gzip for content that is the same for every reader, compressed once.

Not for streams, whose events must arrive as they are written, and not for responses that depend on the reader.
"""

import gzip
from functools import lru_cache
from typing import Final

LEAST: Final = 512
_KEPT: Final = 64


def compressed(content: bytes, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
    """The content, compressed if the client accepts gzip, and the headers for it."""
    headers = {"Vary": "Accept-Encoding"}
    if len(content) < LEAST or not accepts_gzip(accept_encoding):
        return content, headers
    return _gzipped(content), {**headers, "Content-Encoding": "gzip"}


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether this Accept-Encoding accepts gzip, by name or by `*`."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        name, _, parameter = part.partition(";")
        weights[name.strip()] = _weight(parameter)
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _weight(parameter: str) -> float:
    name, _, value = parameter.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


@lru_cache(_KEPT)
def _gzipped(content: bytes) -> bytes:
    # mtime=0, so that every process makes the same bytes of the same content.
    return gzip.compress(content, mtime=0)
