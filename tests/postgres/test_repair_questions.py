"""Questions of operators: they give what a naive query gives, and say where they counted or looked at a part only."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from aftercommit.operate.repair import actions, letters, looking, replay
from aftercommit.operate.repair.repair import Repair
from aftercommit.operate.repair.selection import FAILING, OPEN, Selection
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import migrate
from aftercommit.testing.postgres import PostgresServerForTests
from tests.postgres.test_plans import Plan, walk
from tests.support.engine import connected, migrate_up

SHAPE = Shape()
SCOPED = Shape(scope={"tenant_id": str, "region": str})
START = datetime(2026, 3, 1, tzinfo=UTC)
STATUSES = ("retrying", "waiting", "parked", "resolved", "discarded")
LOG = """
    insert into aftercommit.log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,
                                 occurred_at, correlation_id, payload, retry_count, created_at)
    select position, %(start)s + position * interval '1 second', id, position, 1, kind, position % 7, type, 1,
           created_at, correlation, payload::json, 0, created_at
    from unnest(%(positions)s::bigint[], %(ids)s::uuid[], %(kinds)s::text[], %(types)s::text[],
                %(correlations)s::text[], %(payloads)s::text[], %(created)s::timestamptz[])
        as event (position, id, kind, type, correlation, payload, created_at)
""".replace(" % 7", " %% 7")
LETTERS = """
    insert into aftercommit.dead_letter_events (event_id, consumer_name, status, event_type, schema_version,
        aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, position, created_at, error,
        error_class, attempts, next_retry_at, first_seen_at, last_seen_at)
    select gen_random_uuid(), owner, status, 'type-' || n %% 3, 1, 'order', n %% 5, now(), 'c', '{}', n, n, now(),
           error, error_class, 1, case when status = 'retrying' then now() + interval '1 day' end,
           %(start)s + n * interval '1 second', %(start)s + n * interval '2 seconds'
    from unnest(%(owners)s::text[], %(statuses)s::text[], %(errors)s::text[], %(classes)s::text[])
        with ordinality as letter (owner, status, error, error_class, n)
"""


@pytest.fixture
def dsn(postgres_server: PostgresServerForTests) -> Iterator[str]:
    dsn = postgres_server.clone(postgres_server.template("questions", prepare=lambda dsn: migrate_up(dsn, SHAPE)))
    yield dsn
    postgres_server.drop(dsn)


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(dsn) as connection:
        yield connection


@pytest.fixture
def repair(dsn: str) -> Repair:
    return Repair(SHAPE, Database(dsn), by="test")


def limit_questions(monkeypatch: pytest.MonkeyPatch, counted: int, looked: int) -> None:
    for module in (actions, letters, looking, replay):
        monkeypatch.setattr(module, "COUNTED", counted, raising=False)
        monkeypatch.setattr(module, "LOOKED", looked, raising=False)


def write_letters(connection: psycopg.Connection[Any], seed: int, count: int) -> None:
    chance = random.Random(seed)
    given = {
        "start": START,
        "owners": chance.choices(["@relay", "index", "mail", "totals"], k=count),
        "statuses": chance.choices(STATUSES, k=count),
        "errors": [f"order {n} of host-{chance.choice('abc')}\nline {n}" for n in range(count)],
        "classes": chance.choices(["Timeout", "ValueError"], k=count),
    }
    connection.execute(LETTERS, given)


def write_log(connection: psycopg.Connection[Any], seed: int, count: int) -> None:
    """Events whose times of publication jump: some were carried late, and the clock was set back."""
    chance = random.Random(seed)
    given = {
        "start": START,
        "positions": list(range(1, count + 1)),
        "ids": [chance.randbytes(16).hex() for _ in range(count)],
        "kinds": chance.choices(["order", "user"], k=count),
        "types": [*chance.choices(["placed", "paid", "sent"], [50, 10, 1], k=count - 1), "last"],
        "correlations": [f"c-{chance.randrange(count // 3)}" for _ in range(count)],
        "payloads": [
            chance.choice(['{"a": {"n": "%d"}}', '{"a": {"n": %d}}', '{"a": {"n": "\\u003%d"}}', '{"b": "%d"}'])
            % chance.randrange(10)
            for _ in range(count)
        ],
        "created": [START + timedelta(seconds=n - chance.choice([0, 0, 0, 5, 500, -300])) for n in range(1, count + 1)],
    }
    connection.execute(LOG, given)
    connection.execute("update aftercommit.head set position = %s", [count])
    connection.execute(
        "insert into aftercommit.consumer (name, position, declared_by) values ('index', %s, '*')", [count]
    )


def asked(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


NARROW = [
    Selection(),
    Selection(consumer="mail"),
    Selection(consumer="nobody"),
    Selection(error="host-a"),
    Selection(error_class="Timeout", consumer="index"),
    Selection(types=("type-1",)),
    Selection(aggregate_id="3"),
]


class TestLetters:
    @pytest.mark.parametrize("statuses", [OPEN, FAILING, ("resolved",), STATUSES])
    @pytest.mark.parametrize("selection", NARROW)
    async def test_a_bounded_question_finds_what_an_exact_one_finds(
        self, connection, repair, selection: Selection, statuses: tuple[str, ...]
    ) -> None:
        write_letters(connection, 1, 400)
        selection = replace(selection, statuses=statuses)

        page, exact = [await repair.letters(selection, limit=30, offset=5, exact=each) for each in (False, True)]
        assert page == exact
        groups, all_groups = [await repair.groups(selection, exact=each) for each in (False, True)]
        assert sorted(groups, key=repr) == sorted(all_groups, key=repr)

    async def test_a_list_counts_up_to_a_limit_and_says_so(self, connection, repair, monkeypatch) -> None:
        write_letters(connection, 2, 300)
        limit_questions(monkeypatch, counted=20, looked=1000)

        page = await repair.letters(Selection(statuses=OPEN), limit=5)

        assert (len(page.letters), page.total, page.is_exact, page.looked_at) == (5, 20, False, None)
        exact = await repair.letters(Selection(statuses=OPEN), limit=5, exact=True)
        assert page.letters == exact.letters
        in_table = (
            "select count(*) from aftercommit.dead_letter_events where status in ('retrying', 'waiting', 'parked')"
        )
        assert (exact.total, exact.is_exact) == (asked(connection, in_table), True)

    async def test_a_condition_without_an_index_is_searched_in_part_and_says_so(
        self, connection, repair, monkeypatch
    ) -> None:
        write_letters(connection, 3, 400)
        limit_questions(monkeypatch, counted=1000, looked=40)

        page = await repair.letters(Selection(statuses=("parked",), error="host-a"))

        exact = await repair.letters(Selection(statuses=("parked",), error="host-a"), exact=True)
        assert (page.is_exact, page.looked_at) == (False, 40)
        assert 0 < page.total < exact.total
        assert set(page.letters) < set(exact.letters)

    async def test_a_group_is_counted_up_to_its_share(self, connection, repair, monkeypatch) -> None:
        write_letters(connection, 4, 3000)
        limit_questions(monkeypatch, counted=30, looked=1000)

        groups = await repair.groups(Selection(statuses=FAILING))

        exact = {
            (each.consumer, each.error_class, each.error): each
            for each in await repair.groups(Selection(statuses=FAILING), exact=True)
        }
        assert len(groups) == len(exact)
        for group in groups:
            whole = exact[group.consumer, group.error_class, group.error]
            assert (group.count, group.is_exact) == (30, False)
            assert (group.last_seen_at, group.example) == (whole.last_seen_at, whole.example)

    async def test_a_dry_run_counts_up_to_a_limit_and_the_action_changes_all(
        self, connection, repair, monkeypatch
    ) -> None:
        write_letters(connection, 5, 300)
        limit_questions(monkeypatch, counted=10, looked=1000)
        parked = (
            "select count(*) from aftercommit.dead_letter_events where status = 'parked' and consumer_name = 'mail'"
        )
        count = asked(connection, parked)
        selection = Selection(consumer="mail")

        some = await repair.retry(selection, dry_run=True)
        every = await repair.retry(selection, dry_run=True, exact=True)
        assert ((some.done, some.is_exact), (every.done, every.is_exact)) == ((10, False), (count, True))
        assert (await repair.retry(selection, reason="now")).done == count
        assert asked(connection, parked) == 0

    async def test_letters_from_before_the_migration_have_their_group(self, postgres_server) -> None:
        dsn = postgres_server.clone(postgres_server.template("empty", prepare=lambda dsn: None))
        with connected(dsn) as connection:
            with connection.transaction():
                for statement in migrate.statements(SHAPE, to=7):
                    connection.execute(statement.encode())
            write_letters(connection, 6, 200)
            migrate.up(connection, SHAPE)
        repair = Repair(SHAPE, Database(dsn), by="test")

        groups = await repair.groups(Selection(statuses=FAILING))

        assert sorted(groups, key=repr) == sorted(
            await repair.groups(Selection(statuses=FAILING), exact=True), key=repr
        )
        assert {group.error for group in groups} == {f"order # of host-{host}" for host in "abc"}
        postgres_server.drop(dsn)


class TestPreviews:
    @pytest.mark.parametrize(
        ("selection", "condition"),
        [
            (Selection(types=("sent",)), "event_type = 'sent'"),
            (Selection(types=("paid", "sent")), "event_type in ('paid', 'sent')"),
            (Selection(correlation_id="c-7"), "correlation_id = 'c-7'"),
            (Selection(since=START + timedelta(seconds=300)), "created_at >= '2026-03-01T00:05:00Z'"),
            (Selection(until=START + timedelta(seconds=300)), "created_at < '2026-03-01T00:05:00Z'"),
            (
                Selection(
                    since=START + timedelta(seconds=250), until=START + timedelta(seconds=300), types=("placed",)
                ),
                "created_at between '2026-03-01T00:04:10Z' and '2026-03-01T00:04:59.9Z' and event_type = 'placed'",
            ),
            (Selection(aggregate_type="user"), "aggregate_type = 'user'"),
            (Selection(from_position=40, to_position=90), "position between 40 and 90"),
            (Selection(where={"a.n": "3"}), "payload #>> '{a,n}' = '3'"),
            (Selection(where={"a.n": "3"}, types=("paid",)), "payload #>> '{a,n}' = '3' and event_type = 'paid'"),
        ],
    )
    @pytest.mark.parametrize("to", ["index", "@transport"])
    async def test_a_preview_counts_what_a_naive_query_counts_and_the_replay_takes_the_same(
        self, connection, repair, selection: Selection, condition: str, to: str
    ) -> None:
        write_log(connection, 11, 600)
        naive = connection.execute(
            f"select event_type, count(*) from aftercommit.log where {condition} group by 1".encode()
        ).fetchall()

        found = await repair.preview(selection, to=to)

        assert dict(found.types) == dict(naive)
        assert (found.total, found.is_exact, found.looked_at_all) == (sum(Counter(dict(naive)).values()), True, True)
        operation = await repair.start(found.selection, to=to, expected=found.total)
        chosen = "select array_agg(event_id order by event_id) from aftercommit.operation_event"
        in_log = f"select array_agg(id order by id) from aftercommit.log where {condition}"
        assert (operation.total, asked(connection, chosen)) == (found.total, asked(connection, in_log))

    async def test_a_preview_counts_up_to_a_limit(self, connection, repair, monkeypatch) -> None:
        write_log(connection, 12, 300)
        limit_questions(monkeypatch, counted=25, looked=1000)

        found = await repair.preview(Selection(from_position=1), to="index")

        assert (found.total, found.is_exact) == (25, False)
        assert sum(count for _, count in found.types) == 25
        assert (await repair.preview(Selection(from_position=1), to="index", exact=True)).total == 300

    async def test_a_search_in_payloads_ends_at_a_position_and_goes_on_from_there(
        self, connection, repair, monkeypatch
    ) -> None:
        write_log(connection, 13, 500)
        limit_questions(monkeypatch, counted=1000, looked=120)
        exact = await repair.preview(Selection(where={"a.n": "3"}), to="index", exact=True)

        total, at = 0, 1
        while True:
            found = await repair.preview(Selection(where={"a.n": "3"}, from_position=at), to="index")
            total += found.total
            if found.looked_at_all:
                break
            assert (found.selection.from_position, found.selection.to_position) == (at, at + 119)
            at += 120

        assert (total, at) == (exact.total, 481)

    async def test_what_an_index_does_not_answer_in_time_is_searched_in_part(
        self, connection, dsn, repair, monkeypatch
    ) -> None:
        write_log(connection, 15, 400)
        limit_questions(monkeypatch, counted=1000, looked=100)
        look = looking.within_look
        with connected(dsn, autocommit=False) as other:
            # The first attempt waits for this lock until its time is over; the search begins when it is released.
            other.execute("lock table aftercommit.processed_events in access exclusive mode")

            async def within_look(session: Any, selection: Selection, *, searched: bool = False) -> Any:
                if searched:
                    other.rollback()
                return await look(session, selection, searched=searched)

            monkeypatch.setattr(replay, "within_look", within_look)
            found = await repair.preview(Selection(types=("paid",)), to="index")

        in_part = "select count(*) from aftercommit.log where event_type = 'paid' and position <= 100"
        assert (found.total, found.looked_at_all) == (asked(connection, in_part), False)
        assert (found.selection.from_position, found.selection.to_position) == (1, 100)

    @pytest.mark.parametrize(("name", "looked_at"), [("tenant_id", 400), ("region", 100)])
    async def test_a_scope_without_an_index_is_searched_in_part(
        self, connection, dsn, monkeypatch, name: str, looked_at: int
    ) -> None:
        """The first scope has an index, further ones only where something declares that it reads by them."""
        migrate_up(dsn, SCOPED)
        for column in SCOPED.scope:
            connection.execute(f"alter table aftercommit.log alter column {column} set default 'here'".encode())
        write_log(connection, 16, 400)
        limit_questions(monkeypatch, counted=1000, looked=100)

        repair = Repair(SCOPED, Database(dsn), by="test")
        found = await repair.preview(Selection(scope={name: "here"}), to="index")
        nothing = await repair.preview(Selection(scope={name: "nowhere"}), to="index")

        assert (found.total, found.looked_at_all) == (looked_at, looked_at == 400)
        assert (nothing.total, nothing.looked_at_all) == (0, looked_at == 400)
        exact = await repair.preview(Selection(scope={name: "here"}), to="index", exact=True)
        assert exact.total == 400

    async def test_an_aggregate_is_searched_along_its_own_events(self, connection, repair, monkeypatch) -> None:
        write_log(connection, 14, 700)
        limit_questions(monkeypatch, counted=1000, looked=50)

        found = await repair.preview(Selection(aggregate_id="3", where={"a.n": "3"}), to="index")

        assert not found.looked_at_all
        looked_at = "select count(*) from aftercommit.log where aggregate_id = '3' and position <= "
        assert asked(connection, f"{looked_at}{found.selection.to_position}") == 50


@pytest.fixture(scope="module")
def large(postgres_server: PostgresServerForTests) -> Iterator[psycopg.Connection[Any]]:
    """Enough letters and events that a plan which reads all of them shows."""
    dsn = postgres_server.clone(postgres_server.template("questions", prepare=lambda dsn: migrate_up(dsn, SHAPE)))
    with connected(dsn) as connection:
        write_letters(connection, 21, 30_000)
        write_log(connection, 22, 60_000)
        connection.execute("vacuum analyze")
        yield connection
    postgres_server.drop(dsn)


class TestPlans:
    def explain(self, connection: psycopg.Connection[Any], statement: str, parameters: dict[str, Any]) -> Plan:
        with connection.transaction(force_rollback=True):
            connection.execute(Statements(SHAPE)["preview_plan"])
            cursor = connection.execute(b"explain (analyze, format json) " + statement.encode(), parameters)
            root = cursor.fetchone()[0][0]["Plan"]  # type: ignore[index]
        return Plan(tuple(walk(root)), int(root["Actual Rows"]))

    def test_lines_and_groups_are_found_by_steps_along_an_index(self, large) -> None:
        lines = self.explain(large, Statements(SHAPE).render("letter_lines"), {})
        groups = self.explain(large, Statements(SHAPE).render("letter_groups"), {"consumer": None, "most": 1000})

        assert (lines.indexes, lines.rows) == ({"dead_letter_seen"}, 20)
        assert (groups.indexes, groups.rows) == ({"dead_letter_group"}, 24)
        assert lines.touched < 50
        assert groups.touched < 50

    @pytest.mark.parametrize(
        ("condition", "most"),
        [
            ("event.event_type = 'last'", 2000),
            ("event.correlation_id = 'c-77'", 10_000),
            ("event.created_at >= '2026-03-01T16:35:00Z'", 6000),
        ],
    )
    def test_events_of_the_log_are_found_by_type_correlation_and_time(self, large, condition: str, most: int) -> None:
        query = f"select event.id from aftercommit.log event where {condition} limit 10000"

        plan = self.explain(large, query, {})

        assert plan.whole_scans == []
        # The name of the index on each partition begins with that of its first column.
        assert any("created_at" in name for name in plan.indexes)
        assert plan.rows > 0
        assert plan.touched < most
