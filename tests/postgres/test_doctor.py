"""`doctor`: silent about a healthy outbox; each bad state, made for real, is found and comes with its remedy."""

import asyncio
import itertools
import json
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg import sql

from aftercommit.cli import cli
from aftercommit.clock import utc_now
from aftercommit.operate import blockers
from aftercommit.operate.doctor import Finding, diagnose, server
from aftercommit.operate.doctor.diagnosis import CHECKS
from aftercommit.operate.health import HealthLimits, problems
from aftercommit.operate.overview import overview
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate
from aftercommit.testing.postgres import PostgresServerForTests, with_database
from tests.support.engine import begin_detaching, wait_until
from tests.support.pgbouncer import PgBouncer
from tests.support.programs import CLEANED
from tests.support.relays import relay_on
from tests.support.shop import OrderPlaced, Shop, shop_outbox

APP = "tests.support.shop_app:outbox"
# As a server is set up for work, and able to do what the tests find fault with.
SETTINGS = {
    "max_prepared_transactions": "5",
    "wal_level": "logical",
    "max_connections": "100",
    "shared_buffers": "64MB",
}
SHAPE = shop_outbox().shape


@pytest.fixture(scope="module")
def durable_server() -> Iterator[PostgresServerForTests]:
    version = int(os.environ.get("AFTERCOMMIT_TEST_POSTGRES") or 18)
    with PostgresServerForTests(version=version, settings=SETTINGS) as server:
        server.template("shop", prepare=_migrate)
        yield server


def _migrate(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, SHAPE)


@pytest.fixture
def shop(durable_server: PostgresServerForTests) -> Iterator[Shop]:
    dsn = durable_server.clone("shop")
    yield Shop(dsn)
    durable_server.drop(dsn)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification is late on a busy machine, and arrives all the same."""
    monkeypatch.setattr(server, "_PROVING_SECONDS", 60.0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is open is worth a look."""
    monkeypatch.setattr(blockers, "WORTH_A_LOOK_SECONDS", 0.0)


def look(shop: Shop, dsn: str | None = None, **options: Any) -> list[Finding]:
    database = Database(dsn or shop.dsn, listen_dsn=options.pop("listen_dsn", None))
    return diagnose(database, lambda connection: SHAPE, **options)


def found(shop: Shop, check: str, **options: Any) -> list[Finding]:
    """What one check found; nothing else may have failed to look."""
    findings = look(shop, **options)
    assert not [each for each in findings if "the check failed" in each.found], findings
    return [each for each in findings if each.check == check]


def only(shop: Shop, check: str, **options: Any) -> Finding:
    (finding,) = found(shop, check, **options)
    assert (finding.remedy is None) == (finding.level == "ok")
    return finding


def change(shop: Shop, statement: str) -> None:
    """A statement that cannot run in a transaction or in the shop's schema."""
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def hold_lanes(shop: Shop, count: int = 64) -> None:
    """A relay that is alive, on paper."""
    relay = uuid4()
    shop.rows("insert into relay (id, name, listening) values (%s, 'relay one', false)", [relay])
    shop.rows(
        "update lane set relay = %s, token = gen_random_uuid(), leased_until = now() + '30 min' where lane < %s",
        [relay, count],
    )


@pytest.mark.thorough
async def test_a_healthy_outbox_gives_no_cause_for_a_word(shop: Shop) -> None:
    async with relay_on(shop):
        shop.publish(*(OrderPlaced("o", number) for number in range(20)))
        await shop.signals.wait_total("relay.appended", 20)
        findings = await asyncio.to_thread(look, shop, declared=())

    assert [each for each in findings if each.level != "ok"] == []
    assert [each.check for each in findings] == ["connection", *(check.name for check in CHECKS)]


class TestServer:
    def test_a_server_that_cannot_be_reached_is_all_there_is_to_say(self, shop: Shop) -> None:
        (finding,) = look(shop, "postgresql://me:s3cret@127.0.0.1:1/x?connect_timeout=5")
        assert (finding.check, finding.level) == ("connection", "problem")
        assert "cannot connect to PostgreSQL" in finding.found
        assert "s3cret" not in str(finding)

    @pytest.mark.parametrize(
        ("setting", "value", "level", "remedy"),
        [
            ("fsync", "off", "problem", "alter system set fsync = on"),
            ("full_page_writes", "off", "problem", "alter system set full_page_writes = on"),
            ("synchronous_commit", "off", "warning", "alter system set synchronous_commit = on"),
            ("autovacuum", "off", "problem", "alter system set autovacuum = on"),
            ("track_counts", "off", "problem", "alter system set track_counts = on"),
        ],
    )
    def test_settings_that_risk_what_is_committed_or_let_tables_grow(
        self, shop: Shop, setting: str, value: str, level: str, remedy: str
    ) -> None:
        check = "autovacuum" if setting in ("autovacuum", "track_counts") else "durability"
        show = f"select setting from pg_settings where name = '{setting}'"
        change(shop, f"alter system set {setting} = {value}")
        try:
            change(shop, "select pg_reload_conf()")
            wait_until(lambda: shop.value(show) == value)
            finding = only(shop, check)
        finally:
            change(shop, f"alter system reset {setting}")
            change(shop, "select pg_reload_conf()")
            wait_until(lambda: shop.value(show) != value)

        assert finding.level == level
        assert finding.found.startswith(f"{setting} is {value}")
        assert finding.remedy is not None
        assert remedy in finding.remedy

    @pytest.mark.parametrize(
        ("setting", "value", "words"),
        [
            ("default_transaction_isolation", "repeatable read", "isolation level of this user is repeatable read"),
            ("default_transaction_read_only", "on", "are read-only"),
        ],
    )
    def test_a_default_under_which_relays_cannot_work(self, shop: Shop, setting: str, value: str, words: str) -> None:
        dsn = (
            f"{shop.dsn}&options=-c%20{setting}%3D{value.replace(' ', chr(92) * 2 + '%20').replace(chr(92) * 2, '%5C')}"
        )
        finding = only(shop, "isolation", dsn=dsn)
        assert finding.level == "problem"
        assert words in finding.found
        assert setting in str(finding.remedy)

    def test_connections_that_run_out(self, shop: Shop) -> None:
        name = shop.value("select current_database()")
        change(shop, f'alter database "{name}" connection limit 4')
        with psycopg.connect(shop.dsn), psycopg.connect(shop.dsn), psycopg.connect(shop.dsn):
            finding = only(shop, "connections")
        assert finding.level in ("warning", "problem")
        assert f"of 4 connections of database {name} are in use" in finding.found
        assert "pooler" in str(finding.remedy)

    @pytest.mark.needs("pgbouncer")
    def test_a_pooler_through_which_notifications_do_not_arrive(
        self, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with PgBouncer(shop.dsn, tmp_path) as pooler:
            with monkeypatch.context() as impatient:
                impatient.setattr(server, "_PROVING_SECONDS", 0.5)
                finding = only(shop, "notifications", dsn=pooler.dsn)
            direct = only(shop, "notifications", dsn=pooler.dsn, listen_dsn=shop.dsn)
        assert finding.level == "warning"
        assert "AFTERCOMMIT_LISTEN_URL" in str(finding.remedy)
        assert direct.level == "ok"

    @pytest.mark.parametrize(("minutes", "level"), [(5, "warning"), (-5, "warning"), (0, "ok")])
    def test_clocks_that_disagree(self, shop: Shop, minutes: int, level: str) -> None:
        finding = only(shop, "clocks", now=lambda: utc_now() + timedelta(minutes=minutes))
        assert finding.level == level
        if minutes:
            (seconds,) = re.findall(r"differ by ([\d.]+) s", finding.found)
            assert float(seconds) == pytest.approx(300, abs=30)

    def test_a_slow_answer_is_no_wrong_clock(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        """It took a minute, and nobody knows whether on the way there or on the way back."""
        minutes = itertools.count(step=60)
        monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: next(minutes)))
        for on_the_way_there in (0, 60):
            then = timedelta(seconds=on_the_way_there)
            assert only(shop, "clocks", now=lambda then=then: utc_now() - then).level == "ok"


class TestHeldUp:
    def test_a_transaction_that_is_left_open(self, shop: Shop, at_once: None) -> None:
        with psycopg.connect(shop.dsn, application_name="forgotten") as connection:
            shop.outbox.publish(connection, OrderPlaced("o"), tenant_id="acme")
            assert only(shop, "transactions").level == "ok", "by the limit of status it may be open for five minutes"
            finding = only(shop, "transactions", limits=HealthLimits(max_transaction_seconds=0))
            pid = connection.info.backend_pid
        assert finding.level == "problem"
        assert finding.found.startswith(f"process {pid} of user 'postgres' (forgotten), idle in transaction")
        assert "the relays' watermark" in finding.found
        assert f"pg_terminate_backend({pid})" in str(finding.remedy)

    def test_a_prepared_transaction_that_nobody_decides(self, shop: Shop, at_once: None) -> None:
        with psycopg.connect(shop.dsn) as connection:
            transaction = connection.xid(1, "order 17", "shop")
            connection.tpc_begin(transaction)
            shop.outbox.publish(connection, OrderPlaced("o"), tenant_id="acme")
            connection.tpc_prepare()
            name = shop.value("select gid from pg_prepared_xacts where database = current_database()")
            finding = only(shop, "prepared transactions", limits=HealthLimits(max_transaction_seconds=0))
            connection.tpc_rollback()
        assert finding.level == "problem"
        assert "the relays' watermark, because it has published and not committed" in finding.found
        assert finding.remedy == f"commit prepared or rollback prepared '{name}'"

    def test_a_replication_slot_that_nobody_reads(self, shop: Shop) -> None:
        slot = f"forgotten_{uuid4().hex[:8]}"
        shop.rows("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        try:
            finding = only(shop, "replication slots")
        finally:
            shop.rows("select pg_drop_replication_slot(%s)", [slot])
        assert finding.level == "warning"
        assert finding.found.startswith(f"replication slot {slot}, logical, not active holds ")
        assert "unread WAL on disk" in finding.found
        assert f"pg_drop_replication_slot('{slot}')" in str(finding.remedy)


@pytest.fixture
def limited(shop: Shop) -> Iterator[tuple[str, str]]:
    """A role with the grants, and the address under which it comes."""
    role = f"limited_{uuid4().hex[:8]}"
    change(shop, f"create role {role} login")
    for statement in migrate.grants(SHAPE, role):
        change(shop, statement)
    yield role, shop.dsn.replace("postgres@", f"{role}@", 1)
    change(shop, f"drop owned by {role}; drop role {role}")


class TestTables:
    def test_a_database_without_the_tables(self, shop: Shop) -> None:
        findings = look(shop, with_database(shop.dsn, "postgres"))
        migrations = [each for each in findings if each.check == "migrations"]
        assert migrations[0].level == "problem"
        assert "0001_engine is not applied" in migrations[0].found
        assert "aftercommit migrate up" in str(migrations[0].remedy)
        assert findings[-1] == migrations[-1], "of tables that are not there nothing more is said"

    def test_tables_that_drifted_from_what_the_application_declares(self, shop: Shop) -> None:
        shop.rows("drop view event_log")
        (finding, *_) = found(shop, "migrations", declared=())
        assert (finding.level, finding.found) == ("problem", "view event_log is missing or differs")
        assert only(shop, "migrations").level == "ok", "without an application nobody knows what is declared"

    def test_a_user_without_the_privileges(self, shop: Shop, limited: tuple[str, str]) -> None:
        role, dsn = limited
        assert only(shop, "privileges", dsn=dsn).level == "ok"
        change(shop, f"revoke insert on shop.outbox from {role}")
        change(shop, f"revoke execute on function shop.make_partitions() from {role}")

        finding = only(shop, "privileges", dsn=dsn)

        assert finding.level == "problem"
        assert finding.found == f"user '{role}' lacks insert on outbox, execute on make_partitions()"
        assert f"aftercommit migrate grants {role}" in str(finding.remedy)

    def test_a_user_who_is_to_drop_partitions_and_may_not(self, shop: Shop, limited: tuple[str, str]) -> None:
        shop.rows("update upkeep set keep = '30 days' where task = 'log'")
        finding = only(shop, "privileges", dsn=limited[1])
        assert finding.level == "warning"
        assert "aftercommit sweep` as the owner" in str(finding.remedy)

    def test_a_user_who_cannot_see_the_sessions_of_others(self, shop: Shop, limited: tuple[str, str]) -> None:
        finding = only(shop, "transactions", dsn=limited[1])
        assert finding.level == "warning"
        assert finding.remedy == f'grant pg_read_all_stats to "{limited[0]}"'

    def test_a_tip_without_partitions_ahead(self, shop: Shop) -> None:
        shop.rows("alter table log detach partition log_000002")
        finding = only(shop, "partitions")
        assert (finding.level, finding.found) == ("warning", "there are only 2 of 3 partitions ahead of the tip")
        shop.rows("alter table log detach partition log_000000")
        finding = only(shop, "partitions")
        assert (finding.level, finding.found) == ("problem", "there is no partition for the next position, 1")
        assert "aftercommit migrate up" in str(finding.remedy)

    def test_a_gap_between_partitions(self, shop: Shop) -> None:
        shop.rows("alter table log detach partition log_000001")
        gap, ahead = found(shop, "partitions")
        assert gap.level == "problem"
        assert "positions 1000001 to 2000000 have no partition" in gap.found
        assert ahead.level == "warning"

    def test_a_default_partition(self, shop: Shop) -> None:
        shop.rows("create table log_rest partition of log default")
        finding = only(shop, "partitions")
        assert finding.level == "warning"
        assert "log_rest" in finding.found
        assert 'detach partition "shop"."log_rest"' in str(finding.remedy)

    def test_a_detach_that_was_not_finished(self, shop: Shop) -> None:
        with psycopg.connect(shop.dsn) as reader:
            reader.execute("select count(*) from shop.log")
            begin_detaching(shop.dsn, "shop.log", "shop.log_000000")
        assert "the detaching of log_000000 has begun and is not finished" in [
            each.found for each in found(shop, "partitions")
        ]

    def test_a_table_that_autovacuum_leaves_alone(self, shop: Shop) -> None:
        shop.rows("alter table processed_events set (autovacuum_enabled = false)")
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            fill = "insert into shop.processed_events select gen_random_uuid(), 'index' from generate_series(1, 20000)"
            connection.execute(fill)
            connection.execute("delete from shop.processed_events")
            connection.execute("select pg_stat_force_next_flush()")

        switched_off, starved = found(shop, "autovacuum")

        assert (switched_off.level, switched_off.found) == (
            "problem",
            "autovacuum is switched off for processed_events",
        )
        assert switched_off.remedy == 'alter table "shop"."processed_events" reset (autovacuum_enabled)'
        assert starved.level == "warning"
        assert starved.found.startswith("processed_events has 20000 dead rows")
        assert 'vacuum "shop"."processed_events"' in str(starved.remedy)

    def test_an_index_whose_building_was_interrupted(self, shop: Shop) -> None:
        shop.rows("insert into processed_events select gen_random_uuid(), 'twice' from generate_series(1, 2)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            change(shop, "create unique index concurrently broken on shop.processed_events (consumer_name)")
        finding = only(shop, "indexes")
        assert finding.level == "problem"
        assert finding.found == "index broken of processed_events is invalid and not used"
        assert finding.remedy == 'reindex index concurrently "shop"."broken"'

    @pytest.mark.parametrize("head", [19, 21])
    def test_a_head_that_is_not_where_the_log_ends(self, shop: Shop, head: int) -> None:
        fill_log(shop, 20)
        shop.rows("update head set position = %s", [head])
        finding = only(shop, "log")
        assert finding.level == "problem"
        assert finding.found.startswith(f"the head is at {head} and the log ends at 20")

    def test_a_gap_in_the_log_and_time_that_runs_backwards(self, shop: Shop) -> None:
        fill_log(shop, 20)
        shop.rows("delete from log where position = 7")
        shop.rows("update log set ts = ts - interval '1 day' where position = 15")
        findings = found(shop, "log")
        assert {each.level for each in findings} == {"problem"}
        assert "positions 1 to 20 have 19 events and should have 20" in {each.found for each in findings}
        assert "between positions 1 and 20 the time of the log runs backwards" in {each.found for each in findings}


def fill_log(shop: Shop, count: int) -> None:
    shop.rows(
        "insert into log (position, ts, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version,"
        " occurred_at, correlation_id, payload, retry_count, created_at, tenant_id) select n, now(),"
        " gen_random_uuid(), n, 0, 'order', 'o', 'order.placed', 1, now(), 'c', '{}', 0, now(), 'acme'"
        " from generate_series(1, %s) n",
        [count],
    )
    shop.rows("update head set position = %s", [count])


class TestFlow:
    @pytest.mark.thorough
    def test_events_that_nobody_carries(self, shop: Shop) -> None:
        assert only(shop, "relays").level == "warning"
        shop.place()
        finding = only(shop, "relays")
        assert (finding.level, finding.found) == ("problem", "1 event waits and no relay is alive")
        assert finding.remedy == "start `aftercommit relay`"

    def test_a_relay_that_fell_silent(self, shop: Shop) -> None:
        hold_lanes(shop)
        shop.rows("insert into relay (id, name, seen_at) values (%s, 'relay two', now() - interval '60 s')", [uuid4()])
        finding = only(shop, "relays")
        assert finding.level == "warning"
        assert re.match(r"relay two has been silent for (6\d|\d{3})\b", finding.found)

    def test_lanes_that_nobody_takes(self, shop: Shop) -> None:
        hold_lanes(shop, count=60)
        finding = only(shop, "lanes")
        assert finding.level == "warning"
        assert finding.found.startswith("4 lanes have no holder although a relay is alive")

    def test_an_event_that_has_waited_for_long(self, shop: Shop) -> None:
        hold_lanes(shop)
        shop.place()
        shop.rows("update outbox set created_at = now() - interval '10 minutes'")
        finding = only(shop, "lanes")
        assert finding.level == "problem"
        assert re.search(r"of 1 pending event has waited 6\d\d\b", finding.found)

    @pytest.mark.parametrize(
        ("columns", "declared", "level", "words", "remedy"),
        [
            ({"position": 3}, None, "problem", "17 events behind", "start `aftercommit worker index`"),
            ({"position": 3, "paused": True}, None, "warning", "is paused", "aftercommit consumers resume index"),
            ({"position": 20, "paused": True}, None, "warning", "is paused", "aftercommit consumers resume index"),
            ({"position": 3}, ("other",), "warning", "does not declare it", "aftercommit consumers forget index"),
            ({"position": 20}, ("index",), "ok", "all keep up", None),
        ],
    )
    def test_a_consumer_that_is_behind_paused_or_orphaned(
        self, shop: Shop, columns: dict[str, Any], declared: Any, level: str, words: str, remedy: str | None
    ) -> None:
        fill_log(shop, 20)
        row = {"name": "index", "declared_by": "x", "paused": False, **columns}
        shop.rows(f"insert into consumer ({', '.join(row)}) values ({', '.join(['%s'] * 4)})", list(row.values()))

        finding = found(shop, "consumers", declared=declared)[0]

        assert finding.level == level
        assert words in finding.found
        assert (remedy or "None") in str(finding.remedy)

    @pytest.mark.parametrize(
        "limits", [HealthLimits(), HealthLimits(max_age_seconds=3600, max_dead_letters=2, max_lag_events=5)]
    )
    def test_what_is_a_problem_for_status_is_one_here_in_the_same_words(self, shop: Shop, limits: HealthLimits) -> None:
        fill_log(shop, 20)
        shop.publish(*(OrderPlaced("o", number) for number in range(4)))
        shop.rows("update outbox set created_at = now() - interval '10 minutes'")
        shop.rows("update outbox set status = 'failed', retry_count = 1, last_error = 'e' where seq % 2 = 0")
        shop.rows("insert into consumer (name, position, declared_by) values ('index', 3, 'x'), ('mail', 20, 'x')")
        for number, (consumer, status) in enumerate([("index", "parked"), ("mail", "parked"), ("mail", "retrying")], 1):
            shop.rows(
                "insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version,"
                " aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, position, created_at,"
                " error, error_class, attempts, next_retry_at, tenant_id) select id, %s, %s, event_type, 1, 'order',"
                " 'o', now(), 'c', '{}', seq, position, now(), 'e', 'E', 1,"
                " case when %s = 'retrying' then now() - interval '10 minutes' end, 'acme'"
                " from log where position = %s",
                [consumer, status, status, number],
            )
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            status_says = [each.found for each in problems(overview(connection, SHAPE), limits)]

        doctor_says = [each.found for each in look(shop, limits=limits) if each.level == "problem"]

        assert len(status_says) == (7 if limits == HealthLimits() else 3)
        assert sorted(map(timeless, doctor_says)) == sorted(map(timeless, status_says))

    def test_a_consumer_that_has_never_run(self, shop: Shop) -> None:
        finding = only(shop, "consumers", declared=("index",))
        assert finding.level == "warning"
        assert finding.found.startswith("consumer 'index' is declared and has no checkpoint")

    @pytest.mark.thorough
    def test_events_that_failed_and_their_dead_letters(self, shop: Shop) -> None:
        event = shop.place()
        shop.rows("update outbox set status = 'failed', retry_count = 1, last_error = 'e'")
        shop.rows(
            "insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version,"
            " aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, created_at, error, error_class,"
            " attempts, tenant_id) values (%s, '@relay', 'parked', 'order.placed', 1, 'order', 'o', now(), 'c', '{}',"
            " 1, now(), 'e', 'E', 1, 'acme')",
            [event],
        )
        letters, failed = only(shop, "dead letters"), only(shop, "failed events")
        assert (letters.level, letters.found) == ("problem", "1 dead letter of @relay is parked")
        assert "aftercommit dead groups" in str(letters.remedy)
        assert (failed.level, failed.found) == ("problem", "1 event failed for good and is not in the log")
        assert "aftercommit dead retry" in str(failed.remedy)

    def test_an_operation_whose_driver_died(self, shop: Shop) -> None:
        operation = uuid4()
        shop.rows(
            "insert into operation (id, kind, requested_by, target, selection, total, done, driver, driven_until)"
            " values (%s, 'replay', 'anna', 'index', '{}', 10, 4, gen_random_uuid(), now() - interval '1 minute')",
            [operation],
        )
        finding = only(shop, "operations")
        assert finding.level == "problem"
        assert finding.found == f"operation {operation} (replay by anna) stopped at 4 of 10"
        assert f"aftercommit replay resume {operation}" in str(finding.remedy)

    def test_what_retention_could_not_remove(self, shop: Shop) -> None:
        shop.rows(
            """update upkeep set kept_back = '{"consumer ''slow'' has read up to 5 only": 0}' where task = 'log'"""
        )
        finding = only(shop, "retention")
        assert finding.level == "warning"
        assert "consumer 'slow' has read up to 5 only" in finding.found
        assert "aftercommit sweep --even-if-unread" in str(finding.remedy)

    def test_a_retention_that_does_not_run(self, shop: Shop) -> None:
        hold_lanes(shop)
        shop.rows("update upkeep set ran_at = now() - interval '2 hours'")
        finding = only(shop, "retention")
        assert finding.level == "warning"
        assert "retention_failed" in str(finding.remedy)


def timeless(found: str) -> str:
    """Without the seconds, which pass between two looks."""
    return re.sub(r"\d+ s\b", "… s", found)


def run(shop: Shop, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", "--dsn", shop.dsn, *arguments])


class TestCommandLine:
    def test_warnings_are_no_reason_to_fail(self, shop: Shop) -> None:
        result = run(shop)
        assert result.exit_code == 0, result.output
        assert "ok       durability: committed data survives a crash" in result.stdout.splitlines()
        assert "warning  relays: no relay is alive" in result.stdout.splitlines()
        remedy = f"start `aftercommit relay --dsn '{shop.dsn}' --app module:outbox`"
        assert f"         remedy: {remedy}" in result.stdout.splitlines()
        assert result.stderr == "25 findings: ok 24, warnings 1, problems 0\n"

    def test_the_limits_are_those_of_status(self, shop: Shop) -> None:
        hold_lanes(shop)
        shop.place()
        shop.rows("update outbox set created_at = now() - interval '10 minutes'")
        assert run(shop).exit_code == 3
        assert run(shop, "--max-age", "3600").exit_code == 0

    def test_a_problem_is_exit_status_three_and_json_says_the_same(self, shop: Shop) -> None:
        shop.place()
        result = run(shop, "--json")
        assert result.exit_code == 3
        document = json.loads(result.stdout)
        assert not document["healthy"]
        assert [each["check"] for each in document["checks"] if each["level"] == "problem"] == ["relays"]

    def test_the_application_is_compared_with_the_tables(self, shop: Shop) -> None:
        result = run(shop, "--app", APP)
        assert result.exit_code == 0, result.output
        assert "ok       application: outbox 'shop' with 2 event types and 2 consumers" in result.stdout
        assert "consumer 'order-index' is declared and has no checkpoint" in result.stdout

    def test_an_application_that_cannot_be_imported_does_not_keep_it_from_looking(
        self, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_shop.py").write_text("raise ZeroDivisionError('not today')\n")
        monkeypatch.chdir(tmp_path)
        result = run(shop, "--app", "broken_shop:outbox")
        assert result.exit_code == 3
        assert "--app broken_shop:outbox cannot be imported: ZeroDivisionError: not today" in result.stdout
        assert "ok       indexes: all are valid" in result.stdout

    @pytest.mark.thorough
    def test_one_of_several_outboxes_has_to_be_chosen(self, shop: Shop) -> None:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            migrate.up(connection, Shape("billing"))
        result = run(shop)
        assert result.exit_code == 3
        assert "several outboxes (billing, shop): choose one with --schema" in result.stdout
        assert run(shop, "--schema", "billing").exit_code == 0

    def test_a_check_that_cannot_look_says_so_and_the_others_go_on(self, shop: Shop) -> None:
        role = f"stranger_{uuid4().hex[:8]}"
        change(shop, f"create role {role} login")
        try:
            findings = look(shop, shop.dsn.replace("postgres@", f"{role}@", 1))
        finally:
            change(shop, f"drop role {role}")
        assert next(each for each in findings if each.check == "durability").level == "ok"
        (migrations,) = [each for each in findings if each.check == "migrations"]
        assert migrations.level == "problem"
        assert "lacks a privilege in schema 'shop'" in migrations.found

    def test_what_was_found_before_a_check_could_not_go_on_is_told(self, shop: Shop, limited: tuple[str, str]) -> None:
        role, dsn = limited
        change(shop, f"revoke select on shop.upkeep from {role}")
        told = [each for each in look(shop, dsn) if each.check == "privileges"]
        assert [each.level for each in told] == ["problem", "problem"]
        assert f"user '{role}' lacks select on upkeep" in told[0].found
        assert told[1].found.startswith("the check failed: database user")

    @pytest.mark.thorough
    @pytest.mark.parametrize("table", ["log", "upkeep", "migration"])
    def test_a_table_that_somebody_has_locked_is_a_problem_and_holds_nobody_up(self, shop: Shop, table: str) -> None:
        with shop.connect() as other:
            other.execute(f"lock table shop.{table} in access exclusive mode".encode())
            findings = look(shop)
        locked = [each for each in findings if "is locked and cannot be read" in each.found]
        assert {each.level for each in locked} == {"problem"}

    def test_an_empty_head_is_told_with_the_way_to_fill_it(self, shop: Shop) -> None:
        shop.rows("delete from head")
        (told,) = [each for each in look(shop) if each.check == "log"]
        assert told.level == "problem"
        assert told.remedy is not None
        result = CliRunner().invoke(cli, ["status", "--dsn", shop.dsn, "--schema", "shop"])
        assert result.exit_code == 3
        assert told.remedy in result.stderr
        change(shop, told.remedy)
        assert {each.level for each in look(shop) if each.check == "log"} == {"ok"}

    def test_events_that_are_gone_before_a_consumer_has_read_them_are_told(self, shop: Shop) -> None:
        fill_log(shop, 20)
        shop.rows("insert into consumer (name, position, declared_by) values ('slow', 3, 'test')")
        shop.rows("delete from log where position <= 10")
        assert "consumer 'slow' has read up to 3, and the next 7 events are no longer in the log" in {
            each.found for each in found(shop, "consumers")
        }

    def test_a_server_that_cancels_everything_is_a_problem(self, shop: Shop) -> None:
        dsn = f"{shop.dsn}&options=-c%20statement_timeout%3D1"
        result = CliRunner().invoke(cli, ["doctor", "--json", "--dsn", dsn])
        assert json.loads(result.stdout)["checks"]

    def test_an_address_that_cannot_be_read_is_a_finding(self) -> None:
        result = CliRunner().invoke(cli, ["doctor", "--json", "--dsn", "foo bar"])
        assert result.exit_code == 3
        assert "cannot be read" in json.loads(result.stdout)["checks"][0]["found"]

    @pytest.mark.parametrize("style", ["German", "SQL", "Postgres"])
    def test_the_way_a_database_writes_times_does_not_matter(self, shop: Shop, style: str) -> None:
        shop.rows("update upkeep set horizon = now(), ran_at = now()")
        dsn = f"{shop.dsn}&options=-c%20datestyle%3D{style}"
        assert not [each for each in look(shop, dsn) if "the check failed" in each.found]


def test_a_look_changes_nothing(shop: Shop) -> None:
    tables = [row[0] for row in shop.rows("select tablename from pg_tables where schemaname = 'shop'")]
    count = sql.SQL(" union all ").join(
        sql.SQL("select {}, md5(coalesce(string_agg(t::text, ',' order by t::text), '')) from shop.{} t").format(
            table, sql.Identifier(table)
        )
        for table in tables
    )
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        before = connection.execute(count).fetchall()
        look(shop)
        assert connection.execute(count).fetchall() == before
        assert overview(connection, SHAPE).pending == 0
