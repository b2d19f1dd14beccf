"""`status`: the whole picture of an outbox in one look, cheap at any volume, and every problem with its remedy."""

import io
import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from aftercommit.cli import cli
from aftercommit.cli.durations import rough_duration
from aftercommit.cli.figures import RateTracker
from aftercommit.cli.overview_reader import OverviewReader
from aftercommit.cli.screen import Screen
from aftercommit.clock import utc_now
from aftercommit.errors import DatabaseUnavailable
from aftercommit.operate import blockers
from aftercommit.operate.health import HealthLimits, problems
from aftercommit.operate.overview import ConsumerState, DeadLetterCount, Overview, overview
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from tests.support.engine import wait_until, waits_for_a_lock
from tests.support.programs import CLEANED, running
from tests.support.shop import OrderPlaced, Shop

APPEND = """
    insert into log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at,
                     correlation_id, payload, retry_count, created_at, tenant_id)
    select n, now() - make_interval(secs => (%s - n) * %s::float8), gen_random_uuid(), n, n %% 64, 'order', n %% 500,
           'order.placed', 1, now(), 'c', '{}', 0, now() - make_interval(secs => (%s - n) * %s::float8 + 1), 'acme'
    from generate_series(1, %s) n
"""


LOCK = "lock table outbox in access exclusive mode"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path / "home"))


@pytest.fixture
def everything_is_worth_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a transaction that has just begun."""
    monkeypatch.setattr(blockers, "WORTH_A_LOOK_SECONDS", 0.0)


def run(shop: Shop, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["status", *arguments], env={"DATABASE_URL": shop.dsn})


def look(shop: Shop) -> Overview:
    with shop.connect(autocommit=True) as connection:
        return overview(connection, shop.outbox.shape)


def fill_log(shop: Shop, count: int, apart: float) -> None:
    """A log whose events were appended at even intervals, the last one just now, each a second after it was written."""
    shop.rows(APPEND, [count, apart, count, apart, count])
    shop.rows("update head set position = %s, ts = now()", [count])


def seconds_since(shop: Shop) -> float:
    """How much time has passed since the last event was appended: so much older is all that was seen."""
    return float(shop.value("select extract(epoch from clock_timestamp() - ts) from head"))


def retry_letters(shop: Shop, due: str) -> None:
    """Every event of the log is a dead letter of the consumer, to be tried again at this distance from now."""
    shop.rows(
        "insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version, aggregate_type,"
        " aggregate_id, occurred_at, correlation_id, payload, seq, position, created_at, error, error_class, attempts,"
        " next_retry_at, tenant_id) select id, 'index', 'retrying', event_type, 1, aggregate_type, aggregate_id, now(),"
        " 'c', payload, seq, position, now(), 'e', 'E', 1, now() + %s::interval, 'acme' from log"
        " on conflict (event_id, consumer_name) do update set next_retry_at = excluded.next_retry_at",
        [due],
    )


def operate(shop: Shop, **columns: Any) -> str:
    operation = str(uuid4())
    row = {"id": operation, "kind": "replay", "requested_by": "anna", "target": "index", "selection": "{}", **columns}
    shop.rows(f"insert into operation ({', '.join(row)}) values ({', '.join(['%s'] * len(row))})", list(row.values()))
    return operation


@contextmanager
def open_transaction(shop: Shop, statement: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shop.dsn, application_name="somebody", **options) as connection:
        connection.execute("set local search_path to shop")
        connection.execute(statement.encode())
        yield connection
        connection.rollback()


class TestFigures:
    def test_rates_of_the_last_minute_are_found_by_halving_the_log(self, shop: Shop) -> None:
        fill_log(shop, 1000, apart=0.5)
        shop.publish(*(OrderPlaced("o", number) for number in range(60)))

        seen = look(shop)

        since = seconds_since(shop)
        assert seen.delivered_rate is not None
        assert seen.published_rate is not None
        assert 2.0 * (1 - since / 60) - 0.2 <= seen.delivered_rate <= 2.2
        assert 3.0 - 2.0 * since / 60 - 0.3 <= seen.published_rate <= 3.3
        assert seen.drain_seconds is None, "more comes in than goes out"

    def test_the_time_to_drain_follows_from_both_rates(self, shop: Shop) -> None:
        fill_log(shop, 1000, apart=0.1)
        shop.publish(*(OrderPlaced("o", number) for number in range(50)))
        shop.rows("update outbox set created_at = created_at - interval '1 hour'")
        shop.rows("update log set created_at = created_at - interval '1 hour'")

        seen = look(shop)

        assert seen.published_rate == 0.0
        assert seen.delivered_rate is not None
        assert 10.0 * (1 - seconds_since(shop) / 60) - 0.2 <= seen.delivered_rate <= 10.2
        assert seen.drain_seconds == pytest.approx(50 / seen.delivered_rate, abs=0.2)

    @pytest.mark.parametrize("count", [0, 1])
    def test_a_young_log_has_rates_too(self, shop: Shop, count: int) -> None:
        fill_log(shop, count, apart=1)
        assert look(shop).delivered_rate == pytest.approx(count / 60)

    def test_lag_is_told_in_events_and_in_seconds(self, shop: Shop) -> None:
        fill_log(shop, 100, apart=2)
        for name, position in (("through", 100), ("behind", 70)):
            shop.rows("insert into consumer (name, position, declared_by) values (%s, %s, 'x')", [name, position])

        behind, through = look(shop).consumers

        assert (behind.lag, through.lag, through.lag_seconds) == (30, 0, 0.0)
        assert 57 <= behind.lag_seconds <= 59 + seconds_since(shop)

    def test_lanes_without_a_holder_are_counted(self, shop: Shop) -> None:
        hold = (
            "update lane set relay = gen_random_uuid(), token = gen_random_uuid(), leased_until = now() + %s::interval"
        )
        shop.rows(hold + " where lane < 40", ["1 hour"])
        shop.rows(hold + " where lane < 5", ["-1 hour"])

        assert look(shop).free_lanes == 24 + 5

    def test_retention_shows_what_it_keeps_and_what_is_held_back(self, shop: Shop) -> None:
        shop.rows("update upkeep set keep = '7 days', removed = 5, ran_at = now(), kept_back = '{\"x\": 2}'")

        (row,) = [line for line in run(shop).stdout.splitlines() if line.startswith("keys")]

        assert row.split() == ["keys", "7d", "5", "0s", "ago", "2", "held", "by", "x"]

    def test_operations_under_way_are_shown_with_their_progress(self, shop: Shop) -> None:
        driven = operate(
            shop, total=10, done=3, failed=1, driver=uuid4(), driven_until=utc_now() + timedelta(minutes=30)
        )
        left = operate(shop, total=5)
        operate(shop, status="done", finished_at="now")

        result = run(shop, "--json")

        shown = {each["id"]: each for each in json.loads(result.stdout)["operations"]}
        assert shown.keys() == {driven, left}
        assert (shown[driven]["through"], shown[driven]["failed"], shown[driven]["driven"]) == (4, 1, True)
        assert result.exit_code == 3
        assert f"operation {left} (replay by anna) stopped at 0 of 5" in result.stderr
        assert driven not in result.stderr


class TestHolders:
    @pytest.mark.parametrize(
        ("statement", "what"),
        [
            (
                "insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id)"
                " values (gen_random_uuid(), 'order', 'o', 'order.placed', 'c', '{}', 'acme')",
                "the relays' watermark, because it has published and not committed",
            ),
            ("update head set ts = ts", "every append to the log, because it has written to the head"),
            ("lock table log in share mode", "readers and writers of table log, which it has locked"),
            ("select count(*) from log", "migrations and the dropping of partitions"),
            ("create table elsewhere ()", "vacuum, which has to keep old row versions for it"),
        ],
    )
    def test_an_open_transaction_is_named_with_what_it_holds_up(
        self, shop: Shop, everything_is_worth_a_look: None, statement: str, what: str
    ) -> None:
        with open_transaction(shop, statement) as connection:
            result = run(shop, "--max-transaction", "0")
            pid = connection.info.backend_pid

        assert result.exit_code == 3
        (problem,) = result.stderr.splitlines()
        assert problem.startswith(f"problem: process {pid} of user ")
        assert re.search(r"\(somebody\), idle in transaction for \d+ s blocks", problem)
        assert what in problem
        assert problem.endswith(f"select pg_terminate_backend({pid})")

    def test_who_waits_for_its_locks_is_named(self, shop: Shop, everything_is_worth_a_look: None) -> None:
        with (
            psycopg.connect(shop.dsn, autocommit=True, application_name="the relay") as waiting,
            psycopg.connect(shop.dsn, autocommit=True) as connection,
            ThreadPoolExecutor(1) as program,
        ):
            with open_transaction(shop, LOCK) as holder:
                reading = program.submit(waiting.execute, "select count(*) from shop.outbox")
                wait_until(lambda: waits_for_a_lock(shop.dsn, "the relay"))
                found = {each.name: each for each in blockers.find_blockers(connection, shop.outbox.shape)}
                blocking, pid = found[str(holder.info.backend_pid)], waiting.info.backend_pid
            reading.result(timeout=60)
        assert f"process {pid} (the relay), waiting for its locks" in blocking.holds

    @pytest.mark.thorough
    def test_a_locked_table_is_not_waited_for_and_its_holder_is_named(self, shop: Shop) -> None:
        with open_transaction(shop, LOCK) as holder:
            result = run(shop)
            pid = holder.info.backend_pid

        assert result.exit_code == 1
        assert "a table of outbox 'shop' is locked and cannot be read: process" in result.stderr
        assert f"select pg_terminate_backend({pid})" in result.stderr

    def test_short_transactions_are_everyday_work(self, shop: Shop) -> None:
        with open_transaction(shop, "select count(*) from log"):
            result = run(shop, "--max-transaction", "0")
        assert (result.exit_code, result.stderr) == (0, "")

    def test_a_transaction_that_holds_nothing_is_left_out(self, shop: Shop, everything_is_worth_a_look: None) -> None:
        with open_transaction(shop, "select 1"):
            assert look(shop).holders == ()


class TestLimits:
    def test_parked_dead_letters_and_failed_events_are_a_problem_unless_allowed(self, shop: Shop) -> None:
        event = shop.place()
        shop.rows("update outbox set status = 'failed', retry_count = 1, last_error = 'e'")
        shop.rows(
            "insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version,"
            " aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, created_at, error, error_class,"
            " attempts, tenant_id) values (%s, '@relay', 'parked', 'order.placed', 1, 'order', 'o', now(),"
            " 'c', '{}', 1, now(), 'e', 'E', 1, 'acme')",
            [event],
        )

        result = run(shop)

        assert result.exit_code == 3
        assert result.stderr.splitlines() == [
            "problem: 1 dead letter of @relay is parked: see `aftercommit dead groups`, then run `aftercommit dead "
            "retry --consumer @relay`, or discard them",
            "problem: 1 event failed for good and is not in the log: see `aftercommit dead list` for the errors; "
            "`aftercommit dead retry --status parked` delivers them again",
        ]
        assert run(shop, "--max-dead", "1").exit_code == 0

    def test_of_many_owners_of_dead_letters_those_with_the_most_are_named(self) -> None:
        letters = tuple(DeadLetterCount(f"consumer{number}", "parked", number) for number in range(1, 41))
        told = [each.found for each in problems(replace(IDLE, dead_letters=letters))]
        assert told == [
            "40 dead letters of consumer40 are parked",
            "39 dead letters of consumer39 are parked",
            "38 dead letters of consumer38 are parked",
            "703 dead letters of 37 other owners are parked",
        ]

    @pytest.mark.parametrize(
        "said",
        [
            *(("status", f"--max-age={seconds}") for seconds in ("nan", "inf", "1e300", "-1")),
            *(("status", "--watch", f"--interval={seconds}") for seconds in ("nan", "inf", "1e300")),
            *(("sweep", f"--seconds={seconds}") for seconds in ("nan", "inf", "1e300")),
        ],
    )
    def test_a_time_that_nobody_can_wait_for_is_wrong_usage(self, said: tuple[str, ...]) -> None:
        result = CliRunner().invoke(cli, [*said, "--dsn", "postgresql://127.0.0.1:1/x"])
        assert result.exit_code == 2, result.output

    def test_a_glance_has_the_same_figures_as_the_overview(self, shop: Shop) -> None:
        shop.place("o-1")
        shop.rows("insert into consumer (name, position, declared_by) values ('recorder', 0, '') returning 1")
        with OverviewReader(shop.database, shop.outbox.shape) as look:
            whole, glanced = look.now(), look.glance(Statements(shop.outbox.shape))
        assert glanced.pending == whole.pending == 1
        assert [each.name for each in glanced.consumers] == [each.name for each in whole.consumers] == ["recorder"]
        same = ("outbox", "retrying", "failed", "head", "dead_letters", "version_waits")
        assert all(getattr(glanced, name) == getattr(whole, name) for name in same)

    def test_a_look_that_the_server_cancels_is_not_taken_for_an_outage(self, shop: Shop) -> None:
        def cancelled(connection: psycopg.Connection[Any]) -> Shape:
            connection.execute("set statement_timeout = 100")
            connection.execute("select pg_sleep(10)")
            raise AssertionError("the server cancels it")

        with OverviewReader(shop.database, cancelled) as look, pytest.raises(DatabaseUnavailable) as error:
            look.now()
        assert "due to statement timeout. Try again, or give the user" in str(error.value)
        assert "cannot connect" not in str(error.value)

    def test_a_session_that_may_only_read_is_told_what_to_do(self, shop: Shop) -> None:
        dsn = f"{shop.dsn}&options=-c%20default_transaction_read_only%3Don"
        result = CliRunner().invoke(cli, ["sweep", "--schema", "shop", "--dsn", dsn])
        assert result.exit_code == 1
        assert result.stderr.startswith("error: this session is read-only")

    @pytest.mark.parametrize(
        ("limits", "words"),
        [
            ((), None),
            (("--max-lag", "29"), "30 events behind ("),
            (("--max-lag", "30"), None),
            (("--max-lag-seconds", "10"), "more than 10 s"),
            (("--max-lag-seconds", "3600"), None),
        ],
    )
    def test_a_lag_is_a_problem_beyond_what_was_said(
        self, shop: Shop, limits: tuple[str, ...], words: str | None
    ) -> None:
        fill_log(shop, 100, apart=2)
        shop.rows(
            "insert into consumer (name, position, declared_by, worker, token, leased_until)"
            " values ('index', 70, 'x', 'w', gen_random_uuid(), now() + interval '30 min')"
        )

        result = run(shop, *limits)

        assert result.exit_code == (0 if words is None else 3)
        assert (words or "") in result.stderr

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ("", "and has no worker: start `aftercommit worker index --app module:outbox`"),
            ("paused = true", "and is paused: run `aftercommit consumers resume index`"),
            ("worker = 'w', token = gen_random_uuid(), leased_until = now() + interval '30 min'", None),
        ],
    )
    def test_retries_that_are_due_and_made_by_nobody_are_a_problem(
        self, shop: Shop, columns: str, words: str | None
    ) -> None:
        fill_log(shop, 60, apart=0)
        shop.rows("insert into consumer (name, position, declared_by) values ('index', 60, 'x')")
        if columns:
            shop.rows(f"update consumer set {columns}")
        retry_letters(shop, due="-10 seconds")
        assert run(shop).exit_code == 0, "somebody may be on the way"
        retry_letters(shop, due="10 minutes")
        assert run(shop).exit_code == 0, "a retry that is not due waits for its time"
        retry_letters(shop, due="-10 minutes")

        result = run(shop)

        assert result.exit_code == (0 if words is None else 3)
        if words is not None:
            assert re.search(r"consumer 'index' has 60 dead letters to retry, due for 6\d\d\b", result.stderr)
            assert words in result.stderr
        assert run(shop, "--max-age", "3600").exit_code == 0

    def test_a_retry_behind_the_bus_is_the_relays_matter(self, shop: Shop) -> None:
        shop.rows("insert into consumer (name, position, declared_by) values ('index', 0, 'x')")
        fill_log(shop, 1, apart=0)
        shop.rows("update consumer set position = 1")
        retry_letters(shop, due="-10 minutes")
        shop.rows("update dead_letter_events set position = null")
        assert look(shop).consumers[0].overdue == 0

    def test_a_paused_consumer_beyond_its_limit_is_to_be_resumed(self) -> None:
        consumer = ConsumerState("index", 1, 30, paused=True, holder=None, lag_seconds=5)
        seen = Overview("shop", 0, 0, 0, 0, 31, (consumer,), (), ())
        assert problems(seen) == []
        (problem,) = problems(seen, HealthLimits(max_lag_events=10))
        assert str(problem).endswith("`aftercommit consumers resume index`")


class TestVolume:
    @pytest.mark.thorough
    def test_a_look_costs_the_same_with_a_long_past(self, shop: Shop) -> None:
        """A look reads indexes, and of the log some forty rows."""
        fill_log(shop, 100_000, apart=0.01)
        shop.rows(
            "insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id,"
            " status, retry_count, last_error) select gen_random_uuid(), 'order', n, 'order.placed', 'c',"
            " json_build_object('n', repeat('x', 300)), 'acme', 'failed', 1, 'e' from generate_series(1, 20000) n"
        )
        shop.rows(
            "insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version,"
            " aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, created_at, error, error_class,"
            " attempts, tenant_id) select id, '@relay', 'parked', event_type, 1, 'order', aggregate_id, now(), 'c',"
            " payload, seq, now(), 'e', 'E', 1, 'acme' from outbox"
        )
        shop.rows("insert into consumer (name, position, declared_by) values ('index', 500, 'x')")
        statements = Statements(shop.outbox.shape)
        with shop.connect(autocommit=True) as connection:
            wait_until(lambda: vacuumed(connection))
            plans = {}
            for name in ("outbox", "minute", "consumers", "dead_letters"):
                statement = b"explain (analyze, format json) " + statements[f"overview_{name}"]
                row = connection.execute(statement, {}).fetchone()
                assert row is not None
                plans[name] = list(walk(row[0][0]["Plan"]))

        large = ("log", "outbox", "dead_letter")
        for name, plan in plans.items():
            scans = [node for node in plan if "Seq Scan" in node["Node Type"] and node["Actual Rows"] > 10]
            assert not [node for node in scans if node["Relation Name"].startswith(large)], name
        assert {"Index Only Scan"} == {
            node["Node Type"] for node in plans["dead_letters"] if "Scan" in node["Node Type"]
        }
        read = sum(
            node["Actual Rows"] * node["Actual Loops"]
            for node in plans["minute"]
            if node.get("Relation Name", "").startswith("log")
        )
        assert read < 60


def vacuumed(connection: psycopg.Connection[Any]) -> bool:
    """Whether vacuum could mark every page; an analyze by autovacuum at the same moment keeps it from that."""
    connection.execute("vacuum analyze")
    left = connection.execute(
        "select count(*) from pg_class where relnamespace = 'shop'::regnamespace and relkind = 'r'"
        " and relallvisible < relpages"
    ).fetchone()
    return left == (0,)


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)


IDLE = Overview("shop", 0, 0.0, 0, 0, 0, (), (), ())


class TestPace:
    def test_rates_come_from_the_differences_between_looks(self) -> None:
        pace = RateTracker()
        first = pace.of(replace(IDLE, pending=10, head=100, published_rate=1.0, delivered_rate=2.0), at=0.0)
        second = pace.of(replace(IDLE, pending=30, head=140), at=2.0)

        assert (first.published_rate, first.delivered_rate) == (1.0, 2.0)
        assert (second.published_rate, second.delivered_rate) == (30.0, 20.0)

    def test_another_life_of_the_log_begins_anew(self) -> None:
        pace = RateTracker()
        pace.of(replace(IDLE, head=100), at=0.0)
        assert pace.of(replace(IDLE, head=5, delivered_rate=0.5), at=2.0).delivered_rate == 0.5


def drawn(screen: Screen, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(screen)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


class TestScreen:
    def test_it_fits_on_the_smallest_terminal_and_cuts_no_problem_away(self) -> None:
        consumers = tuple(ConsumerState(f"consumer-{number}" * 5, 1, number, False, None) for number in range(100))
        seen = replace(IDLE, consumers=consumers)
        wrong = ["something long is wrong " * 8 + "remedy 1", "and another thing: remedy 2"]

        lines = drawn(Screen(seen, wrong, 2.0))

        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert "remedy 1" in " ".join(lines)
        assert lines[-1] == "problem: and another thing: remedy 2"
        assert any("more lines: enlarge the window" in line for line in lines)
        assert "100" not in lines[4]
        assert "99 behind" not in lines[0]

    def test_an_outage_is_the_whole_picture(self) -> None:
        assert drawn(Screen(None, ["cannot connect"], 2.0))[-1] == "problem: cannot connect"

    def test_text_from_the_database_cannot_paint_over_it(self) -> None:
        seen = replace(IDLE, consumers=(ConsumerState("\x1b[2Jgone", 1, 2, False, None),))
        assert "\x1b" not in "".join(drawn(Screen(seen, [], 2.0)))

    @pytest.mark.parametrize(("seconds", "words"), [(-1, "0s"), (5, "5s"), (300, "5m"), (7300, "2h"), (200_000, "2d")])
    def test_times_are_told_in_the_unit_that_reads_best(self, seconds: float, words: str) -> None:
        assert rough_duration(seconds) == words


def test_watching_in_a_pipe_is_one_line_per_look(shop: Shop) -> None:
    with running("status", "--watch", "--interval", "0.1", "--dsn", shop.dsn) as status:
        status.until(lambda: "enough" if len(status.stdout) >= 3 else None)
        status.send(signal.SIGINT)
        assert status.ends() == 0, status
    assert status.stdout[2].startswith("pending=0 oldest=0.0s in=0.0/s out=0.0/s failed=0 head=0 lag=0 ")
