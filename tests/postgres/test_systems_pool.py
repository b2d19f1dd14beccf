"""The connections of the systems' routes: they notice a server that is gone, and can read what any server says."""

from datetime import datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from aftercommit import Database
from systems.host.http import pool_of


async def test_a_server_that_is_gone_without_a_word_is_noticed(database: str):
    async with pool_of(Database(database), "tasks") as pool, pool.connection() as connection:
        told = connection.info.get_parameters()
        assert (told["tcp_user_timeout"], told["keepalives_idle"], told["connect_timeout"]) == ("30000", "10", "10")
        assert told["application_name"] == "tasks"


async def test_what_the_address_says_counts(database: str):
    dsn = make_conninfo(database, tcp_user_timeout=5000, connect_timeout=3)
    async with pool_of(Database(dsn), "tasks") as pool, pool.connection() as connection:
        told = connection.info.get_parameters()
        assert (told["tcp_user_timeout"], told["connect_timeout"]) == ("5000", "3")


@pytest.mark.parametrize("style", ["German", "SQL, DMY", "Postgres"])
async def test_times_are_read_however_a_database_writes_them(database: str, style: str):
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set datestyle to {style}'.encode())
    async with pool_of(Database(database), "tasks") as pool, pool.connection() as lent:
        row = await (await lent.execute("select '2025-11-12T10:30:05Z'::timestamptz")).fetchone()
        assert row is not None
        assert isinstance(row[0], datetime)
        assert row[0].timestamp() == 1762943405
