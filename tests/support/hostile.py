"""Handlers that misuse their connection, each in one way: as a last act, beside their work, or instead of returning."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

# What a handler leaves open stays referenced, or garbage collection would tidy up after it.
KEPT: list[Any] = []
# More rows than buffers between server and client hold, or the statement may have ended before anybody cancels it.
MANY = "select generate_series(1, 1000000000)"
FAILS = "select 1 / 0"
HANGS = "select pg_sleep(600)"
SCRATCH = "create temporary table if not exists scratch (n int) on commit drop"

AsyncAct = Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]
SyncAct = Callable[[psycopg.Connection[Any]], None]


async def leave_stream(connection: psycopg.AsyncConnection[Any]) -> None:
    """asyncio closes the generator later, which cancels the statement."""
    async for _ in connection.cursor().stream(MANY):
        break


async def keep_stream(connection: psycopg.AsyncConnection[Any]) -> None:
    rows = connection.cursor().stream(MANY)
    await anext(rows)
    KEPT.append(rows)


async def raise_inside_stream(connection: psycopg.AsyncConnection[Any]) -> None:
    async for _ in connection.cursor().stream(MANY):
        raise ValueError("cannot use this row")


async def start_failing_task(connection: psycopg.AsyncConnection[Any]) -> None:
    KEPT.append(asyncio.create_task(_swallow(connection, FAILS)))


async def start_hanging_task(connection: psycopg.AsyncConnection[Any]) -> None:
    KEPT.append(asyncio.create_task(_swallow(connection, HANGS)))


async def start_late_task(connection: psycopg.AsyncConnection[Any]) -> None:
    async def later() -> None:
        await asyncio.sleep(0.02)
        await _swallow(connection, FAILS)

    KEPT.append(asyncio.create_task(later()))


async def hang_beside_hanging_task(connection: psycopg.AsyncConnection[Any]) -> None:
    await start_hanging_task(connection)
    await asyncio.sleep(0)
    await connection.execute("select 1")


async def ignore_cancellation(connection: psycopg.AsyncConnection[Any]) -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        await asyncio.sleep(600)


async def leave_copy_in(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(SCRATCH)
    copy = connection.cursor().copy("copy scratch from stdin")
    await copy.__aenter__()
    KEPT.append(copy)


async def leave_copy_out(connection: psycopg.AsyncConnection[Any]) -> None:
    copy = connection.cursor().copy(f"copy ({MANY}) to stdout")
    await (await copy.__aenter__()).read()
    KEPT.append(copy)


async def leave_pipeline(connection: psycopg.AsyncConnection[Any]) -> None:
    pipeline = connection.pipeline()
    await pipeline.__aenter__()
    await connection.execute("select 1")
    KEPT.append(pipeline)


async def leave_failing_pipeline(connection: psycopg.AsyncConnection[Any]) -> None:
    pipeline = connection.pipeline()
    await pipeline.__aenter__()
    await connection.execute(FAILS)
    KEPT.append(pipeline)


async def leave_named_cursor(connection: psycopg.AsyncConnection[Any]) -> None:
    cursor = connection.cursor("mine")
    await cursor.execute(MANY)
    await cursor.fetchone()
    KEPT.append(cursor)


async def cancel_itself(connection: psycopg.AsyncConnection[Any]) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def interrupt(connection: psycopg.AsyncConnection[Any]) -> None:
    raise KeyboardInterrupt


async def exit_program(connection: psycopg.AsyncConnection[Any]) -> None:
    raise SystemExit(1)


def leave_stream_sync(connection: psycopg.Connection[Any]) -> None:
    for _ in connection.cursor().stream(MANY):
        break


def keep_stream_sync(connection: psycopg.Connection[Any]) -> None:
    rows = connection.cursor().stream(MANY)
    next(rows)
    KEPT.append(rows)


def start_failing_thread(connection: psycopg.Connection[Any]) -> None:
    _start(connection, FAILS)


def start_hanging_thread(connection: psycopg.Connection[Any]) -> None:
    _start(connection, HANGS)


def start_late_thread(connection: psycopg.Connection[Any]) -> None:
    threading.Timer(0.02, _swallow_sync, (connection, FAILS)).start()


def hang_beside_hanging_thread(connection: psycopg.Connection[Any]) -> None:
    _start(connection, HANGS)
    connection.execute("select 1")


def leave_copy_in_sync(connection: psycopg.Connection[Any]) -> None:
    connection.execute(SCRATCH)
    copy = connection.cursor().copy("copy scratch from stdin")
    copy.__enter__()
    KEPT.append(copy)


def leave_pipeline_sync(connection: psycopg.Connection[Any]) -> None:
    pipeline = connection.pipeline()
    pipeline.__enter__()
    connection.execute(FAILS)
    KEPT.append(pipeline)


def interrupt_sync(connection: psycopg.Connection[Any]) -> None:
    raise KeyboardInterrupt


def exit_program_sync(connection: psycopg.Connection[Any]) -> None:
    raise SystemExit(1)


async def _swallow(connection: psycopg.AsyncConnection[Any], statement: str) -> None:
    try:
        await connection.execute(statement.encode())
    except psycopg.Error as problem:
        KEPT.append(problem)


def _swallow_sync(connection: psycopg.Connection[Any], statement: str) -> None:
    try:
        connection.execute(statement.encode())
    except psycopg.Error as problem:
        KEPT.append(problem)


def _start(connection: psycopg.Connection[Any], statement: str) -> None:
    """A thread that is at work on the connection when this returns."""
    thread = threading.Thread(target=_swallow_sync, args=(connection, statement), daemon=True)
    thread.start()
    while thread.is_alive() and not connection.lock.locked():
        pass


# With what the dead letter says; None where the event is handled all the same.
ASYNC_ACTS: dict[AsyncAct, str | None] = {
    leave_stream: "still in use when the handler returned",
    keep_stream: "still in use when the handler returned",
    raise_inside_stream: "cannot use this row",
    start_failing_task: "still in use when the handler returned",
    start_hanging_task: "still in use when the handler returned",
    start_late_task: None,
    hang_beside_hanging_task: "took longer than",
    ignore_cancellation: "took longer than",
    leave_copy_in: "still in use when the handler returned",
    leave_copy_out: "still in use when the handler returned",
    leave_pipeline: "still in use when the handler returned",
    leave_failing_pipeline: "still in use when the handler returned",
    leave_named_cursor: None,
    cancel_itself: "was cancelled",
    interrupt: "raised KeyboardInterrupt",
    exit_program: "raised SystemExit",
}
SYNC_ACTS: dict[SyncAct, str | None] = {
    leave_stream_sync: "the transaction is aborted",
    keep_stream_sync: "still in use when the handler returned",
    start_failing_thread: "",
    start_hanging_thread: "still in use when the handler returned",
    start_late_thread: None,
    hang_beside_hanging_thread: "took longer than",
    leave_copy_in_sync: "still in use when the handler returned",
    leave_pipeline_sync: "still in use when the handler returned",
    interrupt_sync: "raised KeyboardInterrupt",
    exit_program_sync: "raised SystemExit",
}
