"""Kinds of trouble with the feed: no answer, an error, or a refusal. Pure.

People in a chat see the kind in their language; the operator also sees what to do.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from aftercommit.client.machine import UNAUTHORIZED
from aftercommit.contrib.telegram.redaction import Clean
from aftercommit.contrib.telegram.settings import CREDENTIAL, FEED
from aftercommit.text import OF_APP

_VALID_TOKEN: Final = (
    f"set {CREDENTIAL} to a valid token (`aftercommit token create bot --may act-as-user {OF_APP}` makes one) and "
    "restart the bot"
)

# The word for the time before the first check has ended.
STILL_ASKING: Final = "still_asking"


class Kind(StrEnum):
    """Kinds of trouble, named like their words in the text tables."""

    NO_ANSWER = "no_answer"
    ERROR = "error_answer"
    LIMITED = "asked_to_wait"
    CREDENTIAL_REFUSED = "credential_refused"
    CREDENTIAL_MISSING = "credential_missing"
    PERMISSION_REFUSED = "permission_refused"


# Description and remedy, for the operator.
_SAID: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.NO_ANSWER: ("the feed does not answer", f"check that it runs, and that {FEED} is its address"),
    Kind.ERROR: ("the feed answers with an error", f"check its log, and that {FEED} is the address of the events"),
    Kind.LIMITED: (
        "the feed asks the bot to wait",
        "if this happens often, raise the feed's limit for the bot, or set a slower `pace` in the bot's file",
    ),
    Kind.CREDENTIAL_REFUSED: ("the feed refuses the bot's credential", _VALID_TOKEN),
    Kind.CREDENTIAL_MISSING: ("the feed needs a credential, and the bot has none", _VALID_TOKEN),
    Kind.PERMISSION_REFUSED: (
        "the feed does not let the bot read this",
        f"give the bot's token the permission, or set {CREDENTIAL} to one that has it and restart the bot",
    ),
}


class BackendTrouble(msgspec.Struct, frozen=True):
    """The kind of trouble, and the reason without secrets."""

    kind: Kind
    reason: Clean

    @property
    def remedy(self) -> str:
        """What the operator has to do."""
        return _SAID[self.kind][1]

    def __str__(self) -> str:
        """Description, reason and remedy, for the operator."""
        return f"{_SAID[self.kind][0]} ({self.reason}): {self.remedy}"


def kind_of(status: int, *, has_credential: bool) -> Kind:
    """The kind of trouble behind a status."""
    if status == UNAUTHORIZED:
        return Kind.CREDENTIAL_REFUSED if has_credential else Kind.CREDENTIAL_MISSING
    return {403: Kind.PERMISSION_REFUSED, 429: Kind.LIMITED}.get(status, Kind.ERROR)
