"""Contents that are the same for everybody, compressed once for those who say that they can read it.

Never for streams, whose pieces have to arrive as they are written, nor for answers that differ between readers.
"""

import gzip
from functools import lru_cache
from typing import Final

LEAST: Final = 512
_KEPT: Final = 64


def compressed(content: bytes, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
    """The content as it goes over the wire, and the headers that say so."""
    headers = {"Vary": "Accept-Encoding"}
    if len(content) < LEAST or not accepts_gzip(accept_encoding):
        return content, headers
    return _gzipped(content), {**headers, "Content-Encoding": "gzip"}


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether somebody who sends this Accept-Encoding can read gzip. What is not named follows `*`."""
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
    # Without a time in it the same content is the same bytes, whichever process has made them.
    return gzip.compress(content, mtime=0)
