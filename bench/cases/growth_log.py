"""A log of ten million events beside a small twin: publish, drain, consume, pages, previews of a replay, retention."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from aftercommit import Database, Engine, Outbox
from aftercommit.access.bearer import BearerAccess
from aftercommit.access.tokens import TokenVerifier, mint
from aftercommit.feed import ByScope, Feed, LogEvent
from aftercommit.feed.app import FeedApp
from aftercommit.schema import migrate
from aftercommit.testing.signals import Signals
from bench import engines, feed_logs, growing, loops, shop
from bench.figures import Finding
from bench.growing import Play, Values
from bench.peers.peer import Peers
from bench.stage import ContestantFailed, Stage, say

NAME = "growth-log"
TITLE = "Growth: a long log"
ABOUT = (
    "Two logs of the same shape, a small one and a long one, both written by SQL: tenants with 200 events each in "
    "the small one, ten events to a correlation, a thousand events of a rare type, a thousand of the last hour. "
    "Rates are those of bulk publish, of the relay and of a consumer that begins at the end. A cold page is the "
    "first of a tenant that nobody has asked for, a warm one the same again, a deep one begins behind the tenant's "
    "first event; they are asked for without a network. Previews are `replay start --dry-run`, in this process, and "
    "beside them a count by plain SQL. The sweep removes old rows of the inbox."
)
SMALL, LARGE = 100_000, 10_000_000
PER_STATEMENT = 250_000
EVENTS, PER_CALL, INBOX_ROWS = 10_000, 1_000, 10_000
MATCHES = 1_000
# More than a server has in memory of a strand that it has just loaded.
OF_A_TENANT = 200
RARE, PATH, PERMISSION = "order.returned", "/tenants/{tenant_id}/orders", "orders:read"
MOST_MS, FLAT, RATE_FLAT, PAGE_FLAT = 300.0, 2.0, 0.7, 2.0
RATES: Final = ("bulk publish", "drain", "consumer at the end")
PAGES: Final = ("cold page", "warm page", "deep page")
QUESTIONS: Final = ("replay --type", "replay --correlation", "replay --since", "status")
SWEEP: Final = "sweep of the inbox"
UNITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(RATES, "ev/s"), **dict.fromkeys((*PAGES, *QUESTIONS), "ms"), SWEEP: "µs/row",
}  # fmt: skip
FILL: Final = """
    insert into bench.log (
        position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
        correlation_id, payload, retry_count, created_at, tenant_id
    )
    select n, moment, uuidv7(), n, mod(n, 64), 'order', 'o-' || mod(n, 5000),
           case when mod(n, %(rare_every)s) = 0 then 'order.returned' else 'order.placed' end, 1, moment,
           'c-' || n / 10,
           json_build_object(
               'order_id', 'o-' || mod(n, 5000), 'number', n, 'customer', 'customer-' || mod(n, 997), 'currency', 'EUR',
               'total', 12500, 'expedited', false, 'channel', 'web', 'note', %(note)s::text
           ),
           0, moment, 't-' || mod(n, %(tenants)s)
    from generate_series(%(first)s::bigint, %(last)s::bigint) n,
         lateral (
             select %(now)s::timestamptz - (%(rows)s - n) * interval '1 millisecond'
                    - case when n > %(rows)s - %(recent)s then interval '10 minutes' else interval '3 hours' end
                    as moment
         ) at
"""
HEAD: Final = "update bench.head set position = %(last)s, ts = %(now)s"
SEQUENCE: Final = "select setval(pg_get_serial_sequence('bench.outbox', 'seq'), %(last)s)"
OLD_INBOX: Final = """
    insert into bench.processed_events (event_id, consumer_name, processed_at)
    select id, 'swept', now() - interval '60 days' from bench.log where position <= %s
"""
OF_SWEPT: Final = "select count(*) from bench.processed_events where consumer_name = 'swept'"
COUNTS: Final = {
    "replay --type": "select count(*) from bench.log where event_type = 'order.returned'",
    "replay --correlation": "select count(*) from bench.log where correlation_id = 'c-700'",
    "replay --since": "select count(*) from bench.log where created_at >= now() - interval '2 hours'",
}


def declared() -> Outbox:
    """The shop, with a type of which there are few."""
    outbox = shop.declared()
    outbox.declare(RARE, OrderReturned, aggregate="order", key="order_id")
    return outbox


class OrderReturned(shop.OrderPlaced):
    """A rare event."""


class Twin:
    """One of the two databases."""

    def __init__(self, stage: Stage, rows: int, tenants: int) -> None:
        self.rows = rows
        self.tenants = tenants
        self.dsn = stage.database(f"bench_log_{rows}")
        self._stage = stage
        self._tenant = 0
        shop.prepare(self.dsn, shop.OURS)
        self._fill()
        loops.run(self._register())

    def play(self) -> Values:
        """Every figure once."""
        return {**self._rates(), **loops.run(self._pages()), **self._questions(), SWEEP: self._sweep()}

    def counted(self) -> Values:
        """The floor of the previews."""
        with self._stage.connect(self.dsn) as connection:

            def ask(query: str) -> None:
                connection.execute(query.encode()).fetchall()

            return {name: growing.milliseconds(ask, query) for name, query in COUNTS.items()}

    def _fill(self) -> None:
        now = datetime.now(UTC)
        constant = {
            "note": shop.NOTE, "rows": self.rows, "now": now, "recent": MATCHES, "tenants": self.tenants,
            "rare_every": max(2, self.rows // MATCHES),
        }  # fmt: skip
        with self._stage.connect(self.dsn) as connection:
            for first in range(1, self.rows + 1, PER_STATEMENT):
                say(f"log · writing {self.rows:,} events · {first:,}")
                last = min(self.rows, first + PER_STATEMENT - 1)
                connection.execute("select bench.make_partitions()")
                connection.execute(FILL, {**constant, "first": first, "last": last})
                connection.execute(HEAD, {"last": last, "now": now})
            connection.execute("select bench.make_partitions()")
            connection.execute(SEQUENCE, {"last": self.rows})
            migrate.up(connection, declared().shape)
            connection.execute("vacuum analyze bench.log")
            connection.execute("checkpoint")

    async def _register(self) -> None:
        """The consumer begins at the end of the log as it is now."""
        outbox = engines.with_handler(declared(), start="latest")
        signals = Signals()
        async with Engine(outbox, Database(self.dsn), relay=False, probe=signals):
            await signals.wait("consumer.active")

    def _rates(self) -> Values:
        events = self._stage.sizes.count(EVENTS, least=PER_CALL)
        outbox = declared()
        with self._stage.connect(self.dsn) as connection, self._stage.watch() as watch:
            for first in range(0, events, PER_CALL):
                some = shop.EVENTS[first : first + PER_CALL]
                with connection.transaction():
                    outbox.publish(connection, some, tenant_id="t-0")
                watch.events += len(some)
        drained = engines.relay(self._stage, self.dsn, watch.events)
        consumed = engines.worker(self._stage, self.dsn, watch.events, inbox=True, start="latest")
        return dict(zip(RATES, (watch.taken.rate, drained.rate, consumed.rate), strict=True))

    async def _pages(self) -> Values:
        feed = Feed("orders", declared(), select=ByScope("tenant_id"), item=_item, permission=PERMISSION)
        database = Database(self.dsn)
        app = FeedApp(database, {PATH: feed}, BearerAccess(TokenVerifier(feed_logs.keys()), database, feed.outbox))
        # Never the first tenant, which gets what is published meanwhile.
        self._tenant = self._tenant % (self.tenants - 1) + 1
        path = PATH.format(tenant_id=f"t-{self._tenant}")
        async with app.lifespan():
            # What the first page of a process costs is not the question here.
            await _get(app, PATH.format(tenant_id="t-0"))
            asked = {"cold page": "", "warm page": "", "deep page": f"afterCursor={self._tenant}"}
            found = {}
            for name, query in asked.items():
                began = time.perf_counter()
                await _get(app, path, query)
                found[name] = 1000 * (time.perf_counter() - began)
            return found

    def _questions(self) -> Values:
        replay = ("replay", "start", "--dry-run", "--through-transport")
        until = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
        asked = {
            "replay --type": (*replay, "--type", RARE),
            "replay --correlation": (*replay, "--correlation", "c-700"),
            "replay --since": (*replay, "--since", "2h", "--until", until),
            "status": ("status",),
        }
        return {
            name: growing.milliseconds(growing.command, self.dsn, shop.OURS, *words) for name, words in asked.items()
        }

    def _sweep(self) -> float:
        rows = self._stage.sizes.count(INBOX_ROWS, least=500)
        with self._stage.connect(self.dsn) as connection:
            connection.execute(OLD_INBOX, (rows,))
            taken = growing.milliseconds(growing.command, self.dsn, shop.OURS, "sweep", "--seconds", "120")
            (left,) = connection.execute(OF_SWEPT).fetchone() or (rows,)
            connection.execute("delete from bench.processed_events where consumer_name = 'swept'")
        return 1000 * taken / max(1, rows - left)


def run(stage: Stage, peers: Peers) -> Finding:
    """The twins in turns."""
    small = stage.sizes.count(SMALL, least=2 * MATCHES)
    large = max(5 * small, stage.sizes.count(LARGE))
    twins = [Twin(stage, rows, max(3, small // OF_A_TENANT)) for rows in (small, large)]
    sizes: dict[str, Play] = {f"{twin.rows:,} events": twin.play for twin in twins}
    group = growing.measure(stage, "log", UNITS, sizes, floor=("plain SQL", twins[1].counted))
    verdicts = [growing.ratio(group, name, "at least", RATE_FLAT) for name in RATES]
    verdicts += [growing.ratio(group, name, "at most", PAGE_FLAT) for name in PAGES]
    verdicts += [growing.value(group, name, "at most", MOST_MS) for name in QUESTIONS]
    verdicts += [growing.ratio(group, name, "at most", FLAT) for name in (*QUESTIONS, SWEEP)]
    return Finding(NAME, TITLE, ABOUT, [group], verdicts)


def _item(event: LogEvent[shop.OrderPlaced]) -> Mapping[str, Any]:
    return {"number": event.payload.number, "order_id": event.payload.order_id}


async def _get(app: FeedApp, path: str, query: str = "") -> None:
    """A request without a network."""
    token = mint(feed_logs.keys(), "ada", [PERMISSION], timedelta(hours=12))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {token}".encode())], "client": ("127.0.0.1", 1), "server": None,
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    if statuses != [200]:
        raise ContestantFailed(f"{path}?{query} was answered {statuses}")
