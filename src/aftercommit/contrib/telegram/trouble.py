"""What is wrong with the feed, told as what it is: it is silent, it errs, or it turns the bot away. Pure.

People in a chat hear which of these it is in their language; whoever runs the bot hears what to do about it as well.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from aftercommit.client.machine import UNAUTHORIZED
from aftercommit.contrib.telegram.redaction import Clean
from aftercommit.contrib.telegram.settings import CREDENTIAL, FEED
from aftercommit.text import OF_APP

_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429
_TOKEN_THAT_COUNTS: Final = (
    f"start the bot with {CREDENTIAL} set to a token that counts there, as "
    f"`aftercommit token create bot --may act-as-user {OF_APP}` makes one"
)


# The word for that nothing is wrong yet: the first question is under way.
STILL_ASKING: Final = "still_asking"


class Kind(StrEnum):
    """The cases. Each is the name of the word that the tables have for it."""

    NO_ANSWER = "no_answer"
    ERROR = "error_answer"
    LIMITED = "asked_to_wait"
    CREDENTIAL_REFUSED = "credential_refused"
    CREDENTIAL_MISSING = "credential_missing"
    PERMISSION_REFUSED = "permission_refused"


# What it is, and what to do about it, for whoever runs the bot.
_SAID: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.NO_ANSWER: ("the feed does not answer", f"see that it runs, and that {FEED} is its address"),
    Kind.ERROR: (
        "the feed answers with an error of its own",
        f"see what its log says, and that {FEED} is the address of the events",
    ),
    Kind.LIMITED: (
        "the feed asks the bot to wait",
        "if that happens often, raise the feed's limit for the bot, or let it ask less often by `pace` in its file",
    ),
    Kind.CREDENTIAL_REFUSED: ("the feed refuses the bot's credential", _TOKEN_THAT_COUNTS),
    Kind.CREDENTIAL_MISSING: ("the feed wants a credential, and the bot has none", _TOKEN_THAT_COUNTS),
    Kind.PERMISSION_REFUSED: (
        "the feed does not let the bot read this",
        f"give the bot's token the permission, or start the bot with {CREDENTIAL} set to one that has it",
    ),
}


class BackendTrouble(msgspec.Struct, frozen=True):
    """Which case it is, and why in the words of whoever noticed."""

    kind: Kind
    reason: Clean

    @property
    def remedy(self) -> str:
        """What whoever runs the bot has to do."""
        return _SAID[self.kind][1]

    def __str__(self) -> str:
        """All of it, for whoever runs the bot."""
        return f"{_SAID[self.kind][0]} ({self.reason}): {self.remedy}"


def kind_of(status: int, *, has_credential: bool) -> Kind:
    """The case that an answer with this status is."""
    if status == UNAUTHORIZED:
        return Kind.CREDENTIAL_REFUSED if has_credential else Kind.CREDENTIAL_MISSING
    return {_FORBIDDEN: Kind.PERMISSION_REFUSED, _TOO_MANY: Kind.LIMITED}.get(status, Kind.ERROR)
