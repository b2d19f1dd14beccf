"""How much a test tries: in the suite enough to find the fault it is for, in `make long` as much as a campaign."""

import os
from typing import Final, TypeVar

Size = TypeVar("Size")

# `make long` sets it, and runs the tests marked `long` or `sized` and those that draw examples.
LONG: Final = os.environ.get("AFTERCOMMIT_TEST_LONG") == "1"


def size(suite: Size, long: Size) -> Size:
    """One size for the suite, another for a campaign."""
    return long if LONG else suite


def examples(long: int) -> int:
    """How many examples a property is tried with: so many in a campaign, a tenth of them in the suite."""
    return size(max(10, long // 10), long)
