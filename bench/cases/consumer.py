"""A log consumer with a handler per event, beside a follower that somebody writes by hand."""

from typing import Any
from uuid import UUID

import psycopg

from bench import engines, loops, shop
from bench.figures import Finding, Sample, Verdict
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage

NAME = "consumer"
TITLE = "Log consumer"
ABOUT = (
    "A consumer follows the log from its beginning and awaits a handler that does nothing for every event. The raw "
    "follower reads pages of 1,000 with psycopg, payloads decoded to dicts, awaits the same handler for each event "
    "and moves one cursor row per page in the same transaction; the second one also writes an inbox row per event and "
    "skips what it knew."
)
EVENTS = 60_000
PAGE = 1000
WITH_INBOX, WITHOUT = 0.90, 0.80

APPEND = """
    with moved as (delete from {schema}.outbox returning *),
    tip as (
        update {schema}.head set position = position + (select count(*) from moved), ts = clock_timestamp()
        returning position, ts
    )
    insert into {schema}.log (position, ts, {columns})
    select tip.position - count(*) over () + row_number() over (order by seq), tip.ts, {columns} from moved, tip
"""
COLUMNS = (
    "id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at, correlation_id, "
    "causation_id, payload, retry_count, created_at, tenant_id"
)
RESET = "truncate bench.processed_events; delete from bench.consumer; update public.follower set position = 0"
FOLLOWER = "create table public.follower (position bigint not null); insert into public.follower values (0)"
PAGE_OF_LOG = """
    select position, id, event_type, aggregate_id, correlation_id, occurred_at, payload
    from bench.log where position > %s order by position limit %s
"""
INBOX = """
    insert into bench.processed_events (event_id, consumer_name)
    select event_id, 'raw' from unnest(%b::uuid[]) as event (event_id)
    on conflict do nothing returning event_id
"""
MOVE = "update public.follower set position = %s"


def run(stage: Stage, peers: Peers) -> Finding:
    """Two followers by hand, and our consumer with and without its inbox."""
    dsn = stage.database("bench_consumer")
    events = stage.sizes.count(EVENTS, least=PAGE)
    prepare(stage, dsn, events)
    group = stage.measure(
        "log consumer, no-op handler",
        "ev/s",
        [
            Contestant("raw follower", lambda: _raw(stage, dsn, inbox=False)),
            Contestant("raw follower, inbox", lambda: _raw(stage, dsn, inbox=True)),
            Contestant("aftercommit, inbox=False", lambda: _worker(stage, dsn, events, inbox=False)),
            Contestant("aftercommit", lambda: _worker(stage, dsn, events, inbox=True), note="inbox written"),
            *_eventsourcing(peers, events),
        ],
    )
    group.baseline = "raw follower"
    # Like with like: with an inbox row per event on both sides, and with the checkpoint alone on both.
    pairs = (
        ("aftercommit", "raw follower, inbox", WITH_INBOX),
        ("aftercommit, inbox=False", "raw follower", WITHOUT),
    )
    verdicts = [
        Verdict(f"log consumer: {ours} as a share of {floor}", "at least", least, group[ours].ratio_to(group[floor]))
        for ours, floor, least in pairs
    ]
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _eventsourcing(peers: Peers, events: int) -> list[Contestant]:
    """The one peer with a log to be followed; by hand, a page of 500 at a time."""
    peer = peers.find("eventsourcing")
    if peer is None:
        return []
    note = "by hand, one tracking record per page of 500"
    return [Contestant(peer.name, lambda: peer.drain(events, "follow"), peer.language, note)]


def prepare(stage: Stage, dsn: str, events: int) -> None:
    """So many events in the log, and a cursor for the raw follower."""
    shop.prepare(dsn, shop.OURS)
    with stage.connect(dsn) as connection:
        shop.fill(connection, shop.OURS, events)
        connection.execute(APPEND.format(schema=shop.OURS, columns=COLUMNS).encode())
        connection.execute(FOLLOWER)
        connection.execute("vacuum analyze")


def _reset(stage: Stage, dsn: str) -> None:
    with stage.connect(dsn) as connection:
        connection.execute(RESET)
        connection.execute("checkpoint")


def _worker(stage: Stage, dsn: str, events: int, *, inbox: bool) -> Sample:
    _reset(stage, dsn)
    return engines.worker(stage, dsn, events, inbox=inbox)


def _raw(stage: Stage, dsn: str, *, inbox: bool) -> Sample:
    _reset(stage, dsn)
    return loops.run(_follow(stage, dsn, inbox))


async def _take(payload: dict[str, Any]) -> None:
    """The handler of the raw follower: nothing."""


async def _follow(stage: Stage, dsn: str, inbox: bool) -> Sample:
    connection = await psycopg.AsyncConnection.connect(dsn)
    async with connection:
        with stage.watch() as watch:
            position = 0
            while True:
                rows = await (await connection.execute(PAGE_OF_LOG, (position, PAGE))).fetchall()
                if not rows:
                    break
                fresh = await _fresh(connection, [row[1] for row in rows]) if inbox else None
                for row in rows:
                    if fresh is None or row[1] in fresh:
                        await _take(row[6])
                position = rows[-1][0]
                await connection.execute(MOVE, (position,))
                await connection.commit()
                watch.events += len(rows)
    return watch.taken


async def _fresh(connection: psycopg.AsyncConnection[Any], ids: list[UUID]) -> set[UUID]:
    cursor = await connection.execute(INBOX, (ids,))
    return {event_id for (event_id,) in await cursor.fetchall()}
