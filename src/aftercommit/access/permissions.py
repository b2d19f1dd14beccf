"""Permissions as text: `investigation:INV-1:read`. Colons separate segments; a granted `*` matches any one segment.

Pure. Only granted permissions can have wildcards. A required permission is compared literally, and `permission_for`
encodes a key with a colon or an asterisk as one segment, so such a key cannot match more than itself.
"""

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from aftercommit.errors import DeclarationError

ANY = "*"
# Limits for the permissions of one token, which every request reads.
MOST = 1000
LONGEST = 300

_SEGMENT = re.compile(r"\*|(?:[^:\s*%]|%[0-9A-F]{2})+")
_SPECIAL = re.compile(r"[:*%\s\x00-\x1f\x7f]")


class Permissions:
    """The permissions of a reader: patterns like `investigation:*:read`. An invalid pattern grants nothing."""

    __slots__ = ("_exact", "_wide", "digest", "granted")

    def __init__(self, granted: Iterable[str] = ()) -> None:
        """Invalid patterns (a partial wildcard, an empty segment) are kept in `granted`, and grant nothing."""
        self.granted = tuple(sorted(set(granted)))
        usable = [pattern for pattern in self.granted if problem_of(pattern) is None]
        self._exact = frozenset(pattern for pattern in usable if ANY not in pattern)
        wide = [re.escape(pattern).replace(r"\*", "[^:]+") for pattern in usable if ANY in pattern]
        self._wide = re.compile("|".join(wide)) if wide else None
        self.digest = hashlib.sha256("\n".join(self.granted).encode("utf-8", "replace")).hexdigest()[:16]

    def allow(self, permission: str) -> bool:
        """Whether a pattern matches: the same number of segments, each equal or `*`."""
        if permission in self._exact:
            return True
        return self._wide is not None and self._wide.fullmatch(permission) is not None

    def name(self, permission: str) -> bool:
        """Whether this permission was granted by name, not by a wildcard. For rights that need an explicit grant."""
        return permission in self._exact

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Permissions) and self.granted == other.granted

    def __hash__(self) -> int:
        return hash(self.granted)

    def __repr__(self) -> str:
        return f"Permissions({list(self.granted)!r})"


def permission_for(template: str, **values: Any) -> str:
    """Fill in a template like `investigation:{key}:read`; each value becomes one segment."""
    return template.format(**{name: segment(str(value)) for name, value in values.items()})


@lru_cache(maxsize=4096)
def segment(value: str) -> str:
    """A value as one segment: colons, asterisks, percent signs and white space are percent-encoded."""
    return _SPECIAL.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)


def problem_of(pattern: str) -> str | None:
    """Why this pattern is not valid, or None."""
    if not isinstance(pattern, str) or not pattern:
        return "it is empty"
    if len(pattern) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    for each in pattern.split(":"):
        if not each:
            return "it has an empty segment"
        if not _SEGMENT.fullmatch(each):
            return f"its segment {each!r:.60} is neither a name nor a single *"
    return None


def checked(patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns; DeclarationError if one is not valid."""
    found = tuple(dict.fromkeys(patterns))
    for pattern in found:
        problem = problem_of(pattern)
        if problem is not None:
            raise DeclarationError(
                f"permission {pattern!r:.100} is not valid: {problem}. Write it like investigation:INV-1:read or "
                "investigation:*:read; in names, write : as %3A, * as %2A and % as %25"
            )
    if len(found) > MOST:
        raise DeclarationError(f"{len(found)} permissions are too many: grant at most {MOST}, or use * for a segment")
    return found
