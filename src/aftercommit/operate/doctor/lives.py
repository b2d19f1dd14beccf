"""Check of the log's life: whether a restore has ended it and the next one has not begun.

The check of the consumers compares their checkpoints with the end of the log. Bookmarks and the places of bots in the
same database cannot be compared: they do not say to which log they belong.
"""

from collections.abc import Iterator

import psycopg

from aftercommit.operate.doctor.findings import Check, CheckContext, CheckProblem, problem
from aftercommit.postgres import lives

_RESTORED = "start a relay, which begins the new life, or run `aftercommit restored`"


def _life(context: CheckContext) -> Iterator[CheckProblem]:
    for number, *told in context.rows("present_life"):
        identity = [_told(context, question) for question in ("server_identifier", "server_timeline")]
        reason = lives.difference(lives.Server(*told[:4]), lives.Server(*identity, *told[4:]))
        if reason is not None:
            yield problem(f"{reason}; life {number} of the log is over, and the next has not begun", _RESTORED)


def _told(context: CheckContext, question: str) -> int | None:
    """What the server says about itself, where this user may ask."""
    try:
        with context.connection.transaction():
            return next((int(row[0]) for row in context.rows(question)), None)
    except (*lives.NOT_TOLD, psycopg.errors.InternalError_):
        return None


LIVES = (Check("life", "no restore went unnoticed", _life),)
