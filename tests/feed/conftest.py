"""A journal with a database of its own and a running relay."""

from collections.abc import AsyncIterator, Iterator

import pytest

from aftercommit.testing.postgres import PostgresServerForTests
from tests.feed.journal import Journal, prepare_journal


@pytest.fixture
def journal_dsn(postgres_server: PostgresServerForTests) -> Iterator[str]:
    """The connection URI of a migrated journal."""
    dsn = postgres_server.clone(postgres_server.template("journal", prepare=prepare_journal))
    yield dsn
    postgres_server.drop(dsn)


@pytest.fixture
async def journal(journal_dsn: str) -> AsyncIterator[Journal]:
    """A journal whose lines are appended as soon as they are committed."""
    journal = Journal(journal_dsn)
    async with journal.relay:
        yield journal
