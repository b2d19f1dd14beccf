"""The connection of a bookmark in PostgreSQL."""

from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from aftercommit.client import PostgresBookmark


@pytest.mark.parametrize(("given", "expected"), [({}, "30000"), ({"tcp_user_timeout": 5000}, "5000")])
def test_a_server_that_is_gone_without_a_word_is_noticed(
    database: str, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: str
):
    """A save that hung as long as the system's own patience lasts would hold up its reader for a quarter of an hour."""
    made = []
    connect = psycopg.connect

    def connecting(*arguments: Any, **options: Any) -> psycopg.Connection[Any]:
        made.append(connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(psycopg, "connect", connecting)
    bookmark = PostgresBookmark(make_conninfo(database, **given), "reader")
    bookmark.save("1")
    assert made[-1].info.get_parameters()["tcp_user_timeout"] == expected
    assert bookmark.load() == "1"
    bookmark.close()
