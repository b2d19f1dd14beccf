"""The application's clock, in UTC. Leases and retries use the database's clock instead."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The present moment as an aware datetime in UTC."""
    return datetime.now(UTC)
