"""The fault proxy in front of a real server: each fault does what it says, and nothing after it is healed."""

import asyncio
import struct
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from aftercommit.errors import DeclarationError
from aftercommit.testing.fault_proxy import CommitWatch, FaultProxy

Connection = psycopg.AsyncConnection[tuple[object, ...]]


@pytest_asyncio.fixture
async def proxy(database: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(database) as running:
        yield running


async def connect(proxy: FaultProxy) -> Connection:
    return await psycopg.AsyncConnection.connect(proxy.dsn, prepare_threshold=None, connect_timeout=60)


async def value(connection: Connection) -> object:
    row = await (await connection.execute("select 42")).fetchone()
    assert row is not None
    return row[0]


async def test_without_faults_everything_passes(proxy: FaultProxy):
    async with await connect(proxy) as connection:
        row = await (await connection.execute("select repeat('x', 300000)")).fetchone()

    assert row == ("x" * 300_000,)


async def test_a_byte_at_a_time_is_slow_and_right(proxy: FaultProxy):
    async with await connect(proxy) as connection:
        proxy.connections[0].faults.trickle = True

        assert await value(connection) == 42


async def test_a_delay_can_be_for_one_connection_alone(proxy: FaultProxy):
    slow = await connect(proxy)
    async with await connect(proxy) as quick:
        proxy.connections[0].faults.delay = 60.0
        waiting = asyncio.ensure_future(value(slow))

        assert await value(quick) == 42
        assert not waiting.done()
        proxy.connections[0].reset()
        with pytest.raises(psycopg.OperationalError):
            await waiting


async def test_a_reset_is_an_error_at_once(proxy: FaultProxy):
    connection = await connect(proxy)
    waiting = asyncio.ensure_future(connection.execute("select pg_sleep(60)"))
    await asyncio.sleep(0)

    proxy.reset()

    with pytest.raises(psycopg.OperationalError):
        await asyncio.wait_for(waiting, 60)
    assert connection.broken


async def test_a_black_hole_keeps_what_it_swallowed_until_it_is_healed(proxy: FaultProxy):
    async with await connect(proxy) as connection:
        proxy.faults.black_hole = True
        waiting = asyncio.ensure_future(value(connection))
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        assert not done

        proxy.heal()

        assert await asyncio.wait_for(waiting, 60) == 42


async def test_a_commit_whose_answer_is_cut_has_happened(proxy: FaultProxy, database: str):
    with psycopg.connect(database, autocommit=True) as direct:
        direct.execute("create table written (n integer)")
        connection = await connect(proxy)
        await connection.execute("insert into written values (1)")
        proxy.faults.cut_at_commit = True

        with pytest.raises(psycopg.OperationalError):
            await connection.commit()

        assert direct.execute("select count(*) from written").fetchone() == (1,)
    assert proxy.faults.cut_at_commit is False


async def test_only_a_commit_triggers_the_cut(proxy: FaultProxy):
    async with await connect(proxy) as connection:
        proxy.connections[0].faults.cut_at_commit = True

        await connection.execute("select 'commit', %s", ("COMMIT",))
        await connection.rollback()

        assert await value(connection) == 42
        proxy.heal()
    assert proxy.commits_cut == 0


async def test_a_server_that_is_down_refuses(tmp_path):
    async with FaultProxy(f"postgresql://nobody@/nothing?host={tmp_path}") as proxy:
        with pytest.raises(psycopg.OperationalError):
            await connect(proxy)


async def test_the_address_is_known_once_it_listens(database: str):
    with pytest.raises(DeclarationError, match="not started"):
        _ = FaultProxy(database).dsn


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


STARTUP = struct.pack("!II", 8, 80877103) + struct.pack("!II", 8, 196608)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (message(b"Q", b"COMMIT\0"), True),
        (message(b"Q", b"commit\0"), True),
        (message(b"P", b"\0COMMIT\0\0\0"), True),
        (message(b"P", b"name\0COMMIT\0\0\0"), True),
        (message(b"Q", b"select 'COMMIT'\0"), False),
        (message(b"B", b"\0COMMIT"), False),
        (message(b"d", b"x" * 100_000) + message(b"Q", b"COMMIT\0"), True),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_commit_is_seen_however_the_bytes_are_cut(said: bytes, expected: bool, size: int):
    watch = CommitWatch()
    data = STARTUP + said

    found = [watch.sees_commit(data[start : start + size]) for start in range(0, len(data), size)]

    assert any(found) is expected
    assert sum(found) <= 1
