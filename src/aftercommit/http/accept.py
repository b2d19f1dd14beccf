"""Tells browsers from programs by the Accept header."""

import re
from collections.abc import Mapping
from typing import Final

_HTML: Final = "text/html"
_JSON: Final = "application/json"
_QUALITY: Final = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", re.ASCII)


def prefers_html(accept: str) -> bool:
    """Whether this Accept header prefers HTML to JSON, as a browser's does. No preference counts as a program."""
    if "text/" not in accept.lower():
        # The fast path: almost every request is a poll.
        return False
    ranges: dict[str, float] = {}
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        given = [value for name, _, value in (part.partition("=") for part in parameters) if name.strip() == "q"]
        quality = given[0].strip() if given else "1"
        if _QUALITY.fullmatch(quality):
            ranges[kind] = max(ranges.get(kind, 0.0), float(quality))
    return _quality_of(_HTML, ranges) > _quality_of(_JSON, ranges)


def _quality_of(kind: str, ranges: Mapping[str, float]) -> float:
    """The quality of the most specific range that matches."""
    fitting = (kind, f"{kind.partition('/')[0]}/*", "*/*")
    return next((ranges[each] for each in fitting if each in ranges), 0.0)
