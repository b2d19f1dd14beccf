"""Questions of an operator about dead letters: a thousand of them, and a million."""

from collections.abc import Mapping
from typing import Final

from bench import growing, shop
from bench.figures import Finding
from bench.growing import Play, Values
from bench.peers.peer import Peers
from bench.stage import Stage, say

NAME = "growth-letters"
TITLE = "Growth: dead letters"
ABOUT = (
    "Two databases, one with few dead letters and one with many, of five consumers and twenty errors; a fifth of them "
    "is resolved. The commands of an operator run in this process, so that their times are those beyond the start of "
    "Python; they connect anew each time. A dry run is asked about the parked letters of one consumer. The floor is a "
    "count by plain SQL of the same letters, on a connection that is open."
)
SMALL, LARGE = 1_000, 1_000_000
PER_STATEMENT = 100_000
MOST_MS, FLAT = 300.0, 2.0
CONSUMER = "billing-0"
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "dead list": ("dead", "list"),
    "dead groups": ("dead", "groups"),
    "dead retry --dry-run": ("dead", "retry", "--consumer", CONSUMER, "--dry-run"),
    "status": ("status",),
}
FLOORS: Final[Mapping[str, str]] = {
    "dead list": "select count(*) from bench.dead_letter_events where status <> 'resolved'",
    "dead groups": "select error_class, count(*) from bench.dead_letter_events where status = 'parked' group by 1",
    "dead retry --dry-run": f"""
        select count(*) from bench.dead_letter_events where consumer_name = '{CONSUMER}' and status = 'parked'
    """,
}
FILL: Final = """
    insert into bench.dead_letter_events (
        event_id, consumer_name, status, event_type, schema_version, aggregate_type, aggregate_id, occurred_at,
        correlation_id, payload, seq, position, created_at, error, error_class, attempts, first_seen_at, last_seen_at,
        tenant_id
    )
    select uuidv7(), 'billing-' || mod(n, 5), case when mod(n / 5, 5) = 0 then 'resolved' else 'parked' end,
           'order.placed', 1, 'order', 'o-' || mod(n, 5000), moment, 'c-' || n,
           json_build_object('order_id', 'o-' || mod(n, 5000), 'number', n, 'note', %(note)s::text), n, n, moment,
           'the ledger of account ' || n || ' did not answer within ' || mod(n, 20) || ' s',
           'LedgerError' || mod(n, 20), 4, moment, moment, 'acme'
    from generate_series(%(first)s::bigint, %(last)s::bigint) n,
         lateral (select now() - (%(last)s::bigint - n) * interval '1 millisecond' as moment) at
"""


def run(stage: Stage, peers: Peers) -> Finding:
    """Both databases in turns."""
    large = max(2 * SMALL, stage.sizes.count(LARGE))
    databases = {f"{count:,} letters": _database(stage, count) for count in (SMALL, large)}
    group = growing.measure(
        stage,
        "letters",
        dict.fromkeys(COMMANDS, "ms"),
        {name: _asking(dsn) for name, dsn in databases.items()},
        floor=("plain SQL", lambda: _counted(stage, list(databases.values())[1])),
    )
    verdicts = [growing.value(group, name, "at most", MOST_MS) for name in COMMANDS]
    verdicts += [growing.ratio(group, name, "at most", FLAT) for name in COMMANDS]
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _database(stage: Stage, count: int) -> str:
    dsn = stage.database(f"bench_letters_{count}")
    shop.prepare(dsn, shop.OURS)
    with stage.connect(dsn) as connection:
        for first in range(1, count + 1, PER_STATEMENT):
            say(f"letters · writing {count:,} · {first:,}")
            last = min(count, first + PER_STATEMENT - 1)
            connection.execute(FILL, {"note": shop.NOTE, "first": first, "last": last})
        connection.execute("vacuum analyze bench.dead_letter_events")
        connection.execute("checkpoint")
    return dsn


def _asking(dsn: str) -> Play:
    def ask() -> Values:
        return {name: growing.milliseconds(growing.command, dsn, shop.OURS, *words) for name, words in COMMANDS.items()}

    return ask


def _counted(stage: Stage, dsn: str) -> Values:
    with stage.connect(dsn) as connection:

        def ask(query: str) -> None:
            connection.execute(query.encode()).fetchall()

        return {name: growing.milliseconds(ask, query) for name, query in FLOORS.items()}
