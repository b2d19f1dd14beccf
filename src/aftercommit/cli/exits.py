"""The exit statuses of the command line. For wrong usage, click exits with 2."""

from typing import Final

FAILED: Final = 1
# The schema does not match the code, or `status` or `doctor` found a problem.
NOT_AS_IT_SHOULD_BE: Final = 3
# Only a part was done; the message says which.
PARTIAL: Final = 4
INTERRUPTED: Final = 130
