"""The application's clock: always UTC, always aware. Leases and retries never use it; they use the database's."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The present moment as an aware datetime in UTC."""
    return datetime.now(UTC)
