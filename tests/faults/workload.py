"""What the processes of a run work on: two outboxes, their consumers, and the business tables beside them.

`book` goes through the log transport to log consumers of different manners, three of them divided; `post` goes over the
bus, with strict ordering, to two consumers with an inbox. Every event tells its aggregate's own number, so that order
can be checked, and repeats its scope in the payload, so that a foreign one can be seen.
"""

import os
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg

from aftercommit.backoff import Exponential
from aftercommit.consumer import Park
from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from tests.support import hostile

BOOK: Final = "book"
POST: Final = "post"
TENANTS: Final = ("acme", "globex", "initech")
REGIONS: Final = ("north", "south")
SCOPE: Final[dict[str, type[Any]]] = {"tenant_id": str, "region": str}
# Each with consumers that share a worker process.
WORKERS: Final = {
    "first": ("strict", "wide", "divided-bare"),
    "second": ("batch", "blocking", "divided"),
    "third": ("bare", "wide-strict", "divided-strict"),
    "joint": ("joint-1", "joint-2", "joint-3"),
}
# The most connections for handlers, where it is not the usual number: these consumers share transactions.
CONNECTIONS: Final = {"joint": 1}
# These work in the processes of the relays, which hand new events to them.
BESIDE_RELAY: Final = ("beside",)
CONSUMERS: Final = {
    BOOK: (*(name for names in WORKERS.values() for name in names), *BESIDE_RELAY),
    POST: ("mail", "parcel"),
}
STRICT: Final = frozenset({"strict", "wide-strict", "divided-strict", "mail", "parcel"})
POISON: Final = "poison"

# Given the fault "handlers", the first attempt at one event in so many ends with a misuse of the connection. One misuse
# is left out: who ignores a cancellation holds up the consumer for longer than events may take to flow again.
MISUSES: Final = 400
_ACTS: Final = [act for act in hostile.ASYNC_ACTS if act is not hostile.ignore_cancellation]
_SYNC_ACTS: Final = list(hostile.SYNC_ACTS)

Reach = Callable[[str], Awaitable[None]]
Act = TypeVar("Act")


@dataclass(frozen=True)
class Moved:
    """Something moved on an account. `fails`: how many attempts at it fail; -1: none will succeed."""

    account: str
    number: int
    op: str
    part: int
    tenant: str
    region: str
    fails: int = 0
    filler: str = ""


class NotThisTime(Exception):
    """What a handler raises for an event that is to be tried again."""


async def _no_point(point: str) -> None:
    """In processes without a probe, points are passed by."""


@dataclass
class Points:
    """Where handlers say how far they are, so that a process can be killed there."""

    reach: Reach = _no_point
    reach_now: Callable[[str], None] = lambda point: None
    # Is told of each misuse; without it handlers behave.
    misused: Callable[[str], None] | None = None

    async def misuse(self, consumer: str, event: Event[Moved], connection: psycopg.AsyncConnection[Any]) -> None:
        """The first attempt at some events ends with something that is not a handler's to do."""
        if self.misused is not None and (act := _misuse(consumer, event, _ACTS)) is not None:
            self.misused(act.__name__)
            await act(connection)

    def misuse_now(self, consumer: str, event: Event[Moved], connection: psycopg.Connection[Any]) -> None:
        """The same in a thread."""
        if self.misused is not None and (act := _misuse(consumer, event, _SYNC_ACTS)) is not None:
            self.misused(act.__name__)
            act(connection)


def _misuse(consumer: str, event: Event[Moved], acts: Sequence[Act]) -> Act | None:
    """The same each time: dice thrown again for each event of a slice that is handled again would hold up everybody."""
    number = zlib.crc32(f"{consumer}/{event.payload.op}/{event.payload.part}".encode())
    return acts[number // MISUSES % len(acts)] if event.attempt == 1 and number % MISUSES == 0 else None


def declare(points: Points | None = None) -> dict[str, Outbox]:
    """Both outboxes with all consumers, declared anew."""
    points = points or Points()
    book = Outbox(BOOK, scope=SCOPE, max_attempts=100_000, backoff=Exponential(base=0.05, maximum=0.3))
    post = Outbox(
        POST, scope=SCOPE, ordering="strict", max_attempts=100_000, backoff=Exponential(base=0.05, maximum=0.3)
    )
    for outbox in (book, post):
        outbox.declare("account.moved", Moved, aggregate="account", key="account")
    _declare_book(book, points)
    for name in CONSUMERS[POST]:
        # Behind the bus the relay retries too: few attempts here, and it is the relay's turn.
        short = Exponential(base=0.01, maximum=0.02)
        _by_event(post, points, name, retry_count=1, backoff=short, concurrency=2, timeout=2.0)
    return {BOOK: book, POST: post}


def _declare_book(book: Outbox, points: Points) -> None:
    # An event that is begun again after a kill counts as a start; here it is always the harness that killed.
    patient: dict[str, Any] = {
        "retry_count": 100_000,
        # The server gives up a silent transaction by this: a stopped worker must not hold its consumer for long.
        "timeout": 2.0,
        "backoff": Exponential(base=0.03, maximum=0.2),
        "start": "earliest",
    }
    _by_event(book, points, "strict", ordering="strict", **patient)
    _by_event(book, points, "wide", concurrency=4, **patient)
    _by_event(book, points, "wide-strict", concurrency=3, ordering="strict", **patient)
    _by_event(book, points, "bare", inbox=False, **patient)
    for name in (*WORKERS["joint"], *BESIDE_RELAY):
        _by_event(book, points, name, **patient)
    _by_event(book, points, "divided", concurrency=2, lanes=4, **patient)
    _by_event(book, points, "divided-strict", ordering="strict", lanes=3, **patient)
    _by_event(book, points, "divided-bare", inbox=False, lanes=2, **patient)

    batch = book.consumer("batch", **patient)

    @batch.on(Moved, batch=True)
    async def take_batch(events: list[Event[Moved]], connection: psycopg.AsyncConnection[Any]) -> Any:
        await points.reach("handler.begun")
        if len(events) == 1 and (answer := _verdict(events[0])) is not None:
            return answer
        if any(event.payload.fails for event in events) and len(events) > 1:
            raise NotThisTime("one of a batch, and nobody says which")
        async with connection.cursor() as cursor:
            await cursor.executemany(_EFFECT, [_effect("batch", event) for event in events])
        await points.reach("handler.written")
        for event in events:
            await points.misuse("batch", event, connection)
        return None

    blocking = book.consumer("blocking", **patient)

    @blocking.on(Moved)
    def take_blocking(event: Event[Moved], connection: psycopg.Connection[Any]) -> Any:
        points.reach_now("handler.begun")
        connection.execute(_EFFECT, _effect("blocking", event))
        points.reach_now("handler.written")
        answer = _verdict(event)
        points.misuse_now("blocking", event, connection)
        return answer


def _by_event(outbox: Outbox, points: Points, name: str, **options: Any) -> None:
    consumer = outbox.consumer(name, **options)

    @consumer.on(Moved)
    async def take(event: Event[Moved], connection: psycopg.AsyncConnection[Any]) -> Any:
        await points.reach("handler.begun")
        # Before the verdict, so that a failed attempt has something to undo.
        await connection.execute(_EFFECT, _effect(name, event))
        await points.reach("handler.written")
        answer = _verdict(event)
        await points.misuse(name, event, connection)
        return answer


def _verdict(event: Event[Moved]) -> Park | None:
    fails = event.payload.fails
    if fails < 0:
        return Park("poison, as the harness asked for")
    # Behind the bus attempts are counted anew at each delivery, so there it is chance that ends it.
    again = event.attempt <= fails if event.position is not None else fails > 0 and random.random() < 0.6
    if again:
        raise NotThisTime(f"attempt {event.attempt} of {fails + 1}")
    return None


def _effect(consumer: str, event: Event[Moved]) -> tuple[Any, ...]:
    moved, scope = event.payload, event.scope
    foreign = (scope["tenant_id"], scope["region"]) != (moved.tenant, moved.region)
    return (consumer, moved.op, moved.part, event.aggregate_id, moved.number, foreign, os.getpid(), time.time())


# No unique key: an effect that happens twice must be seen twice.
_EFFECT: Final = """
    insert into shop.effect (consumer, op, part, account, number, is_foreign, pid, process_time)
    values (%s, %s, %s, %s, %s, %s, %s, %s)
"""

TABLES: Final = """
    create schema shop;
    create table shop.account (outbox text, id text, version integer not null default 0, primary key (outbox, id));
    create table shop.entry (
        outbox text not null, op text not null, part integer not null, account text not null, number integer not null
    );
    create table shop.effect (
        id bigint generated always as identity, consumer text not null, op text not null, part integer not null,
        account text not null, number integer not null, is_foreign boolean not null, pid integer not null,
        process_time float8 not null, at timestamptz not null default clock_timestamp()
    );
    create table shop.intrusion (at timestamptz not null default clock_timestamp(), what text not null);
"""

# The database watches over the leases: whoever writes under another's, or takes one that has not run out, is noted.
WATCH_LOG: Final = """
    create function {schema}.note_intruder() returns trigger language plpgsql as $$
    begin
        insert into shop.intrusion (what)
        select 'append of position ' || new.position || ' under lane ' || lane.lane || ', held by ' || relay.name
               || ', by ' || current_setting('application_name')
        from {schema}.lane join {schema}.relay on relay.id = lane.relay
        where lane.lane = new.lane and relay.name <> current_setting('application_name');
        return null;
    end $$;
    create trigger note_intruder after insert on {schema}.log for each row execute function {schema}.note_intruder();
    -- The last lease of each relay: a takeover removes the row of the relay that lost its last lane.
    create table {schema}.last_lease (relay uuid primary key, leased_until timestamptz not null);
    create function {schema}.note_lease() returns trigger language plpgsql as $$
    begin
        insert into {schema}.last_lease values (new.id, new.leased_until)
        on conflict (relay) do update set leased_until = excluded.leased_until;
        return null;
    end $$;
    create trigger note_lease after insert or update on {schema}.relay
        for each row execute function {schema}.note_lease();
    create function {schema}.note_early_takeover() returns trigger language plpgsql as $$
    declare
        ends timestamptz := old.leased_until;
    begin
        if tg_table_name = 'lane' then
            ends := least(ends, (select leased_until from {schema}.last_lease where relay = old.relay));
        end if;
        if old.token is not null and new.token is not null and old.token <> new.token
           and ends > clock_timestamp() and new.leased_until > '-infinity' then
            insert into shop.intrusion (what) values (
                tg_table_name || ' ' || (to_jsonb(new) ->> tg_argv[0]) || ' taken '
                || round(extract(epoch from ends - clock_timestamp())::numeric, 3) || ' s before the lease ran out');
        end if;
        return null;
    end $$;
    create trigger note_early_takeover after update on {schema}.lane
        for each row execute function {schema}.note_early_takeover('lane');
    create trigger note_early_takeover after update on {schema}.consumer
        for each row execute function {schema}.note_early_takeover('name');
"""


def prepare(dsn: str, accounts: int) -> None:
    """All tables of a run, and the accounts."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES)
        for name, outbox in declare().items():
            outbox.migrate(connection)
            connection.execute(WATCH_LOG.replace("{schema}", name).encode())
            connection.execute(
                "insert into shop.account (outbox, id) select %s, 'account-' || n from generate_series(1, %s) n",
                (name, accounts),
            )
