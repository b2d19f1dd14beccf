"""The servers that clients are tried against: the investigations system, and a journal of the server's own tests."""

from tests.contracts.conftest import investigations, readers_leave
from tests.feed.conftest import journal, journal_dsn

__all__ = ["investigations", "journal", "journal_dsn", "readers_leave"]
