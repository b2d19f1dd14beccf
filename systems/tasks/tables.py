"""The system's own tables, beside those of its outbox."""

from pathlib import Path
from typing import Any

import psycopg

from aftercommit.postgres.commits import committed

TABLES = Path(__file__).with_name("tables.sql")


def create_tables(connection: psycopg.Connection[Any]) -> None:
    """Create what is missing; harmless to repeat, also by several processes at once."""
    with committed(connection):
        connection.execute(TABLES.read_bytes())
