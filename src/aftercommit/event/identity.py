"""Event ids: UUIDv7 (RFC 9562), which sort nearly in the order they were made, so indexes stay compact."""

import os
import time
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT = 0x2 << 62
_RANDOM_A = 0xFFF << 64
_RANDOM_B = (1 << 62) - 1


def uuid7() -> UUID:
    """A new UUIDv7: 48 bits of Unix milliseconds, 74 random bits."""
    random = int.from_bytes(os.urandom(10), "big")
    milliseconds = time.time_ns() // 1_000_000
    return UUID(
        int=(milliseconds << 80) | _VERSION_7 | (random & _RANDOM_A) | _VARIANT | (random & _RANDOM_B),
    )
