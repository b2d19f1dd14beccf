"""Looks an outbox over from end to end: named checks, each with what was found and what to do about it.

Changes nothing in the database; a notification to itself is the most it sends. Each check stands alone: one that cannot
look says so, and the others go on.
"""

from aftercommit.operate.doctor.diagnosis import diagnose
from aftercommit.operate.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "diagnose"]
