"""Publish a thousand events per call, beside binary COPY and unnest into the same table."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import asyncpg
import psycopg

from bench import loops, shop
from bench.figures import Finding, Sample, Verdict, against, best
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage

NAME = "bulk"
TITLE = "Bulk publish"
ABOUT = (
    "1,000 events per call and transaction on one connection. COPY is binary, unnest sends one array per column; both "
    "make an id and dump the payload for every event, as a careful person's code does. With `ready text` COPY finds "
    "the payload dumped already."
)
PER_CALL = 1000
CALLS = 40
TARGET = 0.80
TO_PEERS = 1.2
YARDSTICK = "graphile-worker"

COLUMNS = ", ".join(shop.COLUMNS)
COPY = f"copy bench_raw.outbox ({COLUMNS}) from stdin (format binary)"
# In binary, json is its text: said to be text, psycopg sends it as it is and does not dump it once more.
COPY_TYPES = ("uuid", "varchar", "varchar", "varchar", "varchar", "text", "varchar")
UNNEST = """
    insert into bench_raw.outbox ({columns})
    select * from unnest(
        {0}::uuid[], {1}::varchar[], {2}::varchar[], {3}::varchar[], {4}::varchar[], {5}::text[]::json[], {6}::varchar[]
    )
"""
UNNEST_PSYCOPG = UNNEST.format(*["%b"] * 7, columns=COLUMNS).encode()
UNNEST_ASYNCPG = UNNEST.format(*(f"${number}" for number in range(1, 8)), columns=COLUMNS)

Events = list[shop.OrderPlaced]
Way = Callable[[Any, Events], Any]
MakeRow = Callable[[shop.OrderPlaced], tuple[Any, ...]]


def run(stage: Stage, peers: Peers) -> Finding:
    """One group with psycopg, one with asyncpg, and one with peers."""
    dsn = stage.database("bench_bulk")
    shop.prepare(dsn, shop.OURS, shop.RAW)
    calls = [_events(number) for number in range(stage.sizes.count(CALLS, least=2))]
    psycopg_way, asyncpg_way = Blocking(stage, dsn, calls), Asynchronous(stage, dsn, calls)
    finding = Finding(NAME, TITLE, ABOUT)
    for way in (psycopg_way, asyncpg_way):
        group = stage.measure(f"bulk publish, {way.driver}", "ev/s", way.contestants())
        ratio = group["aftercommit"].ratio_to(group["COPY"])
        finding.groups.append(group)
        finding.verdicts.append(Verdict(f"{group.title}: share of binary COPY", "at least", TARGET, ratio))
    ours = [
        Contestant("aftercommit, psycopg", lambda: psycopg_way.play("aftercommit")),
        Contestant("aftercommit, asyncpg", lambda: asyncpg_way.play("aftercommit")),
    ]
    theirs = peers.contestants(lambda peer: peer.bulk(len(calls), PER_CALL))
    group = stage.measure("bulk publish beside peers", "ev/s", [*ours, *theirs])
    group.absent.update(peers.absent)
    finding.groups.append(group)
    for each in ours:
        what = f"bulk publish: {each.name}, times {YARDSTICK}"
        finding.verdicts.append(against(what, "at least", TO_PEERS, group[each.name], group.find(YARDSTICK)))
        what = f"bulk publish: {each.name}, times the best peer"
        finding.verdicts.append(against(what, "at least", TO_PEERS, group[each.name], best(group.peers())))
    return finding


def _events(call: int) -> Events:
    first = call * PER_CALL % len(shop.EVENTS)
    return shop.EVENTS[first : first + PER_CALL]


def _empty(stage: Stage, dsn: str) -> None:
    with stage.connect(dsn) as connection:
        connection.execute("truncate bench.outbox, bench_raw.outbox")
        connection.execute("checkpoint")


class Bulk(ABC):
    """One driver: the same calls in several ways, each call a transaction."""

    driver: str
    ways: dict[str, Way]

    def __init__(self, stage: Stage, dsn: str, calls: list[Events]) -> None:
        self._stage, self._dsn, self._calls = stage, dsn, calls

    def contestants(self) -> list[Contestant]:
        """Every way."""
        return [Contestant(name, partial(self.play, name)) for name in self.ways]

    def play(self, way: str) -> Sample:
        """One round, from empty tables."""
        _empty(self._stage, self._dsn)
        return self._play(self.ways[way])

    @abstractmethod
    def _play(self, way: Way) -> Sample: ...


class Blocking(Bulk):
    """psycopg."""

    driver = "psycopg"

    def __init__(self, stage: Stage, dsn: str, calls: list[Events]) -> None:
        super().__init__(stage, dsn, calls)
        outbox = shop.declared()
        self.ways = {
            "COPY": lambda connection, events: _copy(connection, events, shop.by_hand),
            "COPY, ready text": lambda connection, events: _copy(connection, events, shop.with_ready_payload),
            "unnest": lambda connection, events: connection.execute(UNNEST_PSYCOPG, _columns(events)),
            "aftercommit": lambda connection, events: outbox.publish(connection, events, tenant_id=shop.TENANT),
        }

    def _play(self, way: Way) -> Sample:
        with psycopg.connect(self._dsn) as connection, self._stage.watch() as watch:
            for events in self._calls:
                way(connection, events)
                connection.commit()
                watch.events += len(events)
        return watch.taken


class Asynchronous(Bulk):
    """asyncpg."""

    driver = "asyncpg"

    def __init__(self, stage: Stage, dsn: str, calls: list[Events]) -> None:
        super().__init__(stage, dsn, calls)
        outbox = shop.declared()
        self.ways = {
            "COPY": lambda connection, events: _copy_records(connection, events, shop.by_hand),
            "COPY, ready text": lambda connection, events: _copy_records(connection, events, shop.with_ready_payload),
            "unnest": lambda connection, events: connection.execute(UNNEST_ASYNCPG, *_columns(events)),
            "aftercommit": lambda connection, events: outbox.publish(connection, events, tenant_id=shop.TENANT),
        }

    def _play(self, way: Way) -> Sample:
        return loops.run(self._run(way))

    async def _run(self, way: Way) -> Sample:
        connection = await asyncpg.connect(self._dsn)
        with self._stage.watch() as watch:
            for events in self._calls:
                async with connection.transaction():
                    await way(connection, events)
                watch.events += len(events)
        await connection.close()
        return watch.taken


def _copy(connection: psycopg.Connection[Any], events: Events, row: MakeRow) -> None:
    with connection.cursor() as cursor, cursor.copy(COPY.encode()) as copy:
        copy.set_types(COPY_TYPES)
        for event in events:
            copy.write_row(row(event))


async def _copy_records(connection: Any, events: Events, row: MakeRow) -> None:
    records = [row(event) for event in events]
    await connection.copy_records_to_table("outbox", schema_name=shop.RAW, columns=shop.COLUMNS, records=records)


def _columns(events: Events) -> list[list[Any]]:
    return [list(column) for column in zip(*map(shop.by_hand, events), strict=True)]
