"""Monitoring and repair of an outbox: overview, health, doctor, dead letters and replays. The command line uses it."""

from aftercommit.operate.blockers import Blocker, find_blockers
from aftercommit.operate.doctor import Finding, Level, diagnose
from aftercommit.operate.health import HealthLimits, HealthProblem, problems
from aftercommit.operate.overview import (
    ConsumerState,
    DeadLetterCount,
    LifeState,
    OperationState,
    Overview,
    RelayState,
    UpkeepState,
    VersionWait,
    overview,
)
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
    "Blocker",
    "ConsumerState",
    "DeadLetter",
    "DeadLetterCount",
    "FailedAttempt",
    "Finding",
    "HealthLimits",
    "HealthProblem",
    "ItemOutcome",
    "ItemProblem",
    "LetterDetail",
    "LetterGroup",
    "LetterPage",
    "Level",
    "LifeState",
    "Operation",
    "OperationState",
    "OperatorAction",
    "Overview",
    "Preview",
    "RelayState",
    "Repair",
    "RepairResult",
    "ReplayDriver",
    "ReplayProgress",
    "SeekResult",
    "SeekTarget",
    "Selection",
    "UpkeepState",
    "VersionWait",
    "diagnose",
    "find_blockers",
    "overview",
    "problems",
]
