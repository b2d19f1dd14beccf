"""Checks an outbox from end to end: named checks, each with a finding and a remedy.

Changes nothing in the database; to check notifications, it sends one to itself. A check that fails reports that, and
the others still run.
"""

from aftercommit.operate.doctor.diagnosis import diagnose
from aftercommit.operate.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "diagnose"]
