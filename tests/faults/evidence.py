"""What is known at the end of a scene: the histories of its processes and the tables as they ended. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.faults import history, workload
from tests.faults.actors import digest


class Part(NamedTuple):
    """One event as its writer knows it."""

    outbox: str
    op: str
    part: int


class Operation(NamedTuple):
    """A transaction of a writer: its outcome (`ok`, `fail`, `info`), the parts it meant to leave behind, when."""

    op: str
    kind: str
    outcome: str
    parts: tuple[int, ...] = ()
    began: float = 0.0
    ended: float = 0.0


class Entry(NamedTuple):
    """A business row, committed with its event."""

    outbox: str
    op: str
    part: int
    account: str
    number: int


class Logged(NamedTuple):
    """An event in the log, or one that stayed in the outbox (position 0, with its status)."""

    outbox: str
    position: int
    op: str
    part: int
    account: str
    number: int
    is_foreign: bool = False
    digest: str = ""
    status: str = "published"


class Poll(NamedTuple):
    """A page that a poller read: from where, and what stood at which position."""

    poller: str
    outbox: str
    after: int
    rows: tuple[tuple[int, str], ...]


class Effect(NamedTuple):
    """What a handler wrote, in the order in which it was written."""

    consumer: str
    op: str
    part: int
    account: str
    number: int
    is_foreign: bool = False


class Letter(NamedTuple):
    """A dead letter."""

    consumer: str
    op: str
    part: int
    status: str


@dataclass
class Evidence:
    """Everything the checkers look at."""

    operations: Sequence[Operation] = ()
    entries: Sequence[Entry] = ()
    log: Sequence[Logged] = ()
    waiting: Sequence[Logged] = ()
    polls: Sequence[Poll] = ()
    effects: Sequence[Effect] = ()
    letters: Sequence[Letter] = ()
    intrusions: Sequence[str] = ()
    ended: Sequence[str] = ()
    stuck: Sequence[str] = ()
    # When the work did not come to its end, what is left of it is `stuck`, and not lost.
    unfinished: bool = False
    # When what was committed was taken back by a restore, from and to; and the positions that no event has since.
    undone: Sequence[tuple[float, float]] = ()
    gaps: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(workload.CONSUMERS))


def collect(folder: Path, dsn: str) -> Evidence:
    """The evidence of a scene that is over."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        log = [row for outbox in workload.CONSUMERS for row in _log(connection, outbox)]
        waiting = [row for outbox in workload.CONSUMERS for row in _outbox(connection, outbox)]
        letters = [row for outbox in workload.CONSUMERS for row in _letters(connection, outbox)]
        entries = connection.execute("select outbox, op, part, account, number from shop.entry").fetchall()
        effects = connection.execute(
            "select consumer, op, part, account, number, is_foreign from shop.effect order by id"
        ).fetchall()
        lowest = (
            "select split_part(name, '#', 1), min(position) from book.consumer "
            "where lanes = 1 or strpos(name, '#') > 0 group by 1"
        )
        checkpoints: dict[str, int] = dict(connection.execute(lowest).fetchall())
        gaps = {outbox: _gaps(connection, outbox) for outbox in workload.CONSUMERS}
        intrusions = connection.execute("select what from shop.intrusion order by at").fetchall()
    return Evidence(
        operations(folder),
        [Entry(*row) for row in entries],
        log,
        waiting,
        polls(folder),
        [Effect(*row) for row in effects],
        letters,
        [row[0] for row in intrusions],
        checkpoints=checkpoints,
        gaps=gaps,
    )


def operations(folder: Path) -> list[Operation]:
    """The last word on each transaction; one that was begun and never ended is anybody's guess."""
    found: dict[str, Operation] = {}
    uncertain: set[str] = set()
    for line in history.read_all(folder, "writer-*.jsonl"):
        if line["f"] != "publish":
            continue
        outcome = "info" if line["type"] == "invoke" else line["type"]
        if line["type"] == "info":
            uncertain.add(line["op"])
        # A second attempt that failed does not undo a first one whose outcome nobody knows.
        if outcome == "fail" and line["op"] in uncertain:
            outcome = "info"
        began = found[line["op"]].began if line["op"] in found else line["at"]
        parts = tuple(line.get("parts", ()))
        found[line["op"]] = Operation(line["op"], line["kind"], outcome, parts, began, line["at"])
    return list(found.values())


def polls(folder: Path) -> list[Poll]:
    """The pages of all pollers, each poller's in the order in which it read them."""
    return [
        Poll(path.stem, line["outbox"], line["after"], tuple((row[0], row[1]) for row in line["rows"]))
        for path in sorted(folder.glob("poller-*.jsonl"))
        for line in history.read(path)
        if line["f"] == "poll"
    ]


_COLUMNS = "id::text, seq, aggregate_id, tenant_id, region, payload::text"


def _log(connection: psycopg.Connection[Any], outbox: str) -> list[Logged]:
    rows = connection.execute(
        f"""
        select position, payload->>'op', (payload->>'part')::int, aggregate_id, (payload->>'number')::int,
               (tenant_id, region) is distinct from (payload->>'tenant', payload->>'region'), {_COLUMNS}
        from {outbox}.log order by position
        """.encode()
    ).fetchall()
    return [Logged(outbox, *row[:6])._replace(digest=digest(row[6:])) for row in rows]


def _outbox(connection: psycopg.Connection[Any], outbox: str) -> list[Logged]:
    rows = connection.execute(
        f"""
        select 0, payload->>'op', (payload->>'part')::int, aggregate_id, (payload->>'number')::int,
               (tenant_id, region) is distinct from (payload->>'tenant', payload->>'region'), '', status
        from {outbox}.outbox order by seq
        """.encode()
    ).fetchall()
    return [Logged(outbox, *row) for row in rows]


def _gaps(connection: psycopg.Connection[Any], outbox: str) -> list[tuple[int, int]]:
    rows = connection.execute(
        f"select lower(gap), upper(gap) - 1 from {outbox}.head, unnest(gaps) gap order by 1".encode()
    ).fetchall()
    return [(low, high) for low, high in rows]


def _letters(connection: psycopg.Connection[Any], outbox: str) -> list[Letter]:
    columns = "consumer_name, payload->>'op', (payload->>'part')::int, status"
    rows = connection.execute(f"select {columns} from {outbox}.dead_letter_events".encode()).fetchall()
    return [Letter(*row) for row in rows]
