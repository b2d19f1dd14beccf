"""The relay moves a backlog from outbox to log, beside a raw loop that deletes and inserts the same rows."""

from bench import engines, shop
from bench.figures import Finding, Sample, Verdict
from bench.peers.peer import Peers
from bench.stage import Contestant, Stage

NAME = "drain"
TITLE = "Relay drain to the log"
ABOUT = (
    "A backlog goes from the outbox to the log. The raw loop is one statement per 1,000 rows (DELETE … RETURNING into "
    "INSERT, in the order of seq, with positions from a counter of its own) on tables with the same columns and "
    "indexes; it has no leases, no fence, no metrics, and loses its place when it dies."
)
EVENTS = 100_000
BATCH = 1000
TARGET = 0.90

RESET = "truncate {schema}.log, {schema}.outbox; update {schema}.head set position = 0"
RAW_BATCH = """
    with due as (
        select ctid as place from bench_raw.outbox
        where status = 'pending' and next_retry_at is null order by seq limit %(batch)s
    ),
    moved as (delete from bench_raw.outbox where ctid = any(array(select place from due)) returning *)
    insert into bench_raw.log (
        position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
        correlation_id, causation_id, payload, retry_count, created_at, tenant_id
    )
    select %(position)s + row_number() over (order by seq), now(), id, seq, lane, aggregate_type, aggregate_id,
           event_type, schema_version, occurred_at, correlation_id, causation_id, payload, retry_count, created_at,
           tenant_id
    from moved
"""


def run(stage: Stage, peers: Peers) -> Finding:
    """The relay and the loop in turns."""
    dsn = stage.database("bench_drain")
    shop.prepare(dsn, shop.OURS, shop.RAW)
    events = stage.sizes.count(EVENTS, least=BATCH)
    contestants = [
        Contestant("raw loop", lambda: _raw(stage, dsn, events)),
        Contestant("aftercommit relay", lambda: ours(stage, dsn, events)),
    ]
    group = stage.measure("drain to the log", "ev/s", contestants)
    ratio = group["aftercommit relay"].ratio_to(group["raw loop"])
    return Finding(
        NAME, TITLE, ABOUT, [group], [Verdict("relay drain: share of the raw loop", "at least", TARGET, ratio)]
    )


def ours(stage: Stage, dsn: str, events: int) -> Sample:
    """One drain by the relay, from a fresh backlog and an empty log."""
    refill(stage, dsn, shop.OURS, events)
    return engines.relay(stage, dsn, events)


def refill(stage: Stage, dsn: str, schema: str, events: int) -> None:
    """An empty log and a backlog."""
    with stage.connect(dsn) as connection:
        connection.execute(RESET.format(schema=schema).encode())
        shop.fill(connection, schema, events)


def _raw(stage: Stage, dsn: str, events: int) -> Sample:
    refill(stage, dsn, shop.RAW, events)
    with stage.connect(dsn) as connection, stage.watch() as watch:
        while watch.events < events:
            cursor = connection.execute(RAW_BATCH, {"batch": BATCH, "position": watch.events})
            watch.events += cursor.rowcount
    return watch.taken
