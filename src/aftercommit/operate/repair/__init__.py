"""Repair: dead letters are looked at, retried, edited and discarded; events are replayed. Nothing here runs by itself.

Live workers and relays call the handlers. What an operator wants handled is put before them as a letter that is due, or
as a row of the outbox. `seek` moves a consumer's checkpoint.
"""

from aftercommit.operate.repair.actions import RepairResult
from aftercommit.operate.repair.driver import ReplayDriver, ReplayProgress
from aftercommit.operate.repair.letters import (
    DeadLetter,
    FailedAttempt,
    LetterDetail,
    LetterGroup,
    LetterPage,
    OperatorAction,
)
from aftercommit.operate.repair.operations import TO_OWNER, TO_TRANSPORT, ItemOutcome, ItemProblem, Operation
from aftercommit.operate.repair.repair import Repair
from aftercommit.operate.repair.replay import Preview
from aftercommit.operate.repair.seeking import SeekResult, SeekTarget
from aftercommit.operate.repair.selection import RELAY, Selection

__all__ = [
    "RELAY",
    "TO_OWNER",
    "TO_TRANSPORT",
    "DeadLetter",
    "FailedAttempt",
    "ItemOutcome",
    "ItemProblem",
    "LetterDetail",
    "LetterGroup",
    "LetterPage",
    "Operation",
    "OperatorAction",
    "Preview",
    "Repair",
    "RepairResult",
    "ReplayDriver",
    "ReplayProgress",
    "SeekResult",
    "SeekTarget",
    "Selection",
]
