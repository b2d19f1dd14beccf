"""Durations as options write them: `90d`, `36h`, `15m`, `45s`, `2w`, `1.5h`."""

import re
from datetime import timedelta

EXAMPLES = "30d, 36h, 15m, 45s or 2w"

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_duration(text: str) -> timedelta | None:
    """Read a duration; None if the text is not one. OverflowError if it is too long for a timedelta."""
    match = _WRITTEN.fullmatch(text.strip())
    return timedelta(**{_UNITS[match[2]]: float(match[1])}) if match else None


def shown_duration(time: timedelta) -> str:
    """Write a duration in the largest unit that expresses it exactly."""
    seconds = time.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def rough_duration(seconds: float) -> str:
    """Write a duration roughly, in the unit that reads best."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
