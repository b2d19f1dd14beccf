"""The exit statuses of the command line; wrong usage is 2, which click says by itself."""

from typing import Final

FAILED: Final = 1
# The schema is not what the code needs, or a look found something that needs a person.
NOT_AS_IT_SHOULD_BE: Final = 3
# Only a part was done; the message says of which.
PARTIAL: Final = 4
INTERRUPTED: Final = 130
