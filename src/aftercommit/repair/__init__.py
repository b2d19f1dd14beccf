"""Repair: dead letters are looked at, retried, edited and discarded; events are replayed. Nothing here runs by itself.

Handlers are called by the live workers and relays alone, and no checkpoint is moved: what an operator wants handled is
put before them as a letter that is due, or as a row of the outbox.
"""

from aftercommit.repair.actions import Repaired
from aftercommit.repair.desk import Repair
from aftercommit.repair.driver import Driver, Progress
from aftercommit.repair.letters import Attempt, Deed, Letter, LetterDetail, LetterGroup, LetterPage
from aftercommit.repair.operations import TO_OWNER, TO_TRANSPORT, Dealt, ItemProblem, Operation
from aftercommit.repair.replay import Preview
from aftercommit.repair.seeking import Place, Sought
from aftercommit.repair.selection import RELAY, Selection

__all__ = [
    "RELAY",
    "TO_OWNER",
    "TO_TRANSPORT",
    "Attempt",
    "Dealt",
    "Deed",
    "Driver",
    "ItemProblem",
    "Letter",
    "LetterDetail",
    "LetterGroup",
    "LetterPage",
    "Operation",
    "Place",
    "Preview",
    "Progress",
    "Repair",
    "Repaired",
    "Selection",
    "Sought",
]
