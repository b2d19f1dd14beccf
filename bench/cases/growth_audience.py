"""A filter that nothing matches, among the events of one reader: what a page costs, in a short and in a long log."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg

from aftercommit import Database, Outbox
from aftercommit.feed import POSITION, ByAudience, Cursor, Equals, Feed, Limits, LogEvent
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.schema import migrate
from bench import growing, loops
from bench.figures import Finding
from bench.growing import Values
from bench.peers.peer import Peers
from bench.stage import Stage

NAME = "growth-audience"
TITLE = "Growth: a filter without a match in an audience"
ABOUT = (
    "One reader is in the audience of every event, and reads with a filter that matches none of them. A page looks at "
    "a bounded number of events, and returns how far it looked. The figures are those of the first five pages, which "
    "end before the end of either log."
)
SMALL, LARGE = 60_000, 600_000
PAGES, LIMIT = 5, 100
# What an event costs may not depend on how many there are, and a page has to end.
MOST_RATIO, MOST_LOOKED_AT = 1.5, 10_000
UNITS = {"per event looked at": "µs", "looked at by a page": "events"}
SCHEMA = "bench_audience"
READER = "ada"
FILL = f"""
    insert into {SCHEMA}.log (
        position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
        correlation_id, payload, retry_count, created_at, audience
    )
    select n, now(), uuidv7(), n, 1, 'task', 'task-' || mod(n, 1000), 'task.changed', 1, now(), 'c-' || n,
           json_build_object('task_id', 'task-' || mod(n, 1000), 'kind', 'note'), 0, now(), array[%(reader)s::text]
    from generate_series(1, %(events)s::bigint) n
"""
HEARD = f"insert into {SCHEMA}.audience (reader, position) select %(reader)s, position from {SCHEMA}.log"
HEAD = f"update {SCHEMA}.head set position = %(events)s, ts = now()"


class TaskChanged(msgspec.Struct, frozen=True):
    """Something about a task is different now."""

    task_id: str
    kind: str


def item(event: LogEvent[TaskChanged]) -> dict[str, Any]:
    """The event as readers get it."""
    return {"id": event.position, "kind": event.payload.kind}


def declared() -> Feed:
    """The feed, with its outbox declared anew."""
    outbox = Outbox(SCHEMA, audience=True)
    outbox.declare("task.changed", TaskChanged, aggregate="task", key="task_id")
    filters, limits = (Equals("kind", facet="kind"),), Limits(default=LIMIT, least=1, most=1000)
    return Feed("mine", outbox, select=ByAudience(), cursor=POSITION, facets={"kind": "kind"}, filters=filters,
                item=item, limits=limits)  # fmt: skip


def run(stage: Stage, peers: Peers) -> Finding:
    """A short and a long log in turns."""
    small = stage.sizes.count(SMALL, least=SMALL)
    sizes = {f"{count:,} events": _playing(stage, count) for count in (small, max(2 * small, stage.sizes.count(LARGE)))}
    group = growing.measure(stage, "filter without a match", UNITS, sizes)
    verdicts = [
        growing.ratio(group, "per event looked at", "at most", MOST_RATIO),
        growing.value(group, "looked at by a page", "at most", MOST_LOOKED_AT),
    ]
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _playing(stage: Stage, events: int) -> Callable[[], Values]:
    dsn = stage.database(f"bench_growth_audience_{events}")
    with stage.connect(dsn) as connection:
        _prepare(connection, events)
    return lambda: loops.run(_read(dsn))


def _prepare(connection: psycopg.Connection[Any], events: int) -> None:
    migrate.up(connection, declared().outbox.shape)
    for statement in (FILL, HEARD, HEAD):
        connection.execute(statement.encode(), {"reader": READER, "events": events})
    connection.execute("vacuum analyze")
    connection.execute("checkpoint")


async def _read(dsn: str) -> Values:
    feed = declared()
    chosen = feed.chosen({"kind": "nothing-has-this-kind"})
    async with FeedHub(Database(dsn), [feed]) as hub:
        strand = await hub.strand(feed, READER)
        place, began = Cursor(0), time.perf_counter()
        for _ in range(PAGES):
            page = await hub.page(strand, place, LIMIT, chosen)
            assert not page.entries
            place = page.next or place
        seconds = time.perf_counter() - began
    return {"per event looked at": seconds * 1e6 / place.number, "looked at by a page": place.number / PAGES}
