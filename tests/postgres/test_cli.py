"""The command line, command by command: what goes to stdout, what to stderr, and the exit status."""

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from aftercommit import __version__
from aftercommit.cli import cli
from aftercommit.postgres.shape import Shape
from aftercommit.schema import migrate
from aftercommit.settings import Settings
from aftercommit.testing.postgres import with_database
from tests.support.consuming import numbered, place_in_log
from tests.support.programs import CLEANED
from tests.support.shop import Shop

pytestmark = pytest.mark.newest

APP = "tests.support.shop_app:outbox"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No database but the one that a test names, and nobody's embedded server."""
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path / "home"))


def run(*arguments: str, **options: Any) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(cli, arguments, **options)
    assert "\x1b" not in result.output, "piped output has no colours"
    return result


def fails(status: int, *arguments: str) -> str:
    """The one line that a failing command prints; nothing else may be printed."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture
def empty(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database, as DATABASE_URL of the commands."""
    monkeypatch.setenv("DATABASE_URL", database)
    return database


class TestMigrate:
    def test_up_prints_what_it_did_and_has_nothing_to_say_the_second_time(self, empty: str) -> None:
        first = run("migrate", "up")
        second = run("migrate", "up")

        assert first.exit_code == 0
        assert first.stdout.splitlines()[0] == "applied 0001_engine"
        assert (second.exit_code, second.stdout) == (0, "")
        assert second.stderr == "schema 'aftercommit' is up to date\n"

    def test_up_as_json_is_one_document(self, empty: str) -> None:
        document = json.loads(run("migrate", "up", "--json").stdout)

        assert document["outbox"] == "aftercommit"
        assert "applied 0001_engine" in document["done"]

    def test_up_makes_the_tables_that_the_application_declares(self, empty: str) -> None:
        assert run("migrate", "up", "--app", APP).exit_code == 0

        assert run("migrate", "check", "--app", APP).exit_code == 0
        with psycopg.connect(empty) as connection:
            connection.execute("select tenant_id from shop.outbox")

    @pytest.mark.thorough
    def test_all_outboxes_of_an_application_are_migrated_and_checked(self, empty: str) -> None:
        site = "systems.site:application"
        assert "investigation_events" in fails(3, "migrate", "check", "--app", site)

        done = json.loads(run("migrate", "up", "--app", site, "--json").stdout)
        status = run("migrate", "status", "--app", site)

        assert [each["outbox"] for each in done] == ["investigation_events", "tasks_events"]
        assert status.stdout.count("0001_engine") == 2
        assert run("migrate", "check", "--app", site).exit_code == 0
        assert run("migrate", "sql", "--app", site).stdout.count("create schema") == 2
        assert "tasks_events" in run("migrate", "grants", "worker", "--app", site).stdout

    def test_check_finds_a_schema_that_was_never_migrated(self, empty: str) -> None:
        assert "run `aftercommit migrate up --app module:outbox`" in fails(3, "migrate", "check")
        assert "run `aftercommit migrate up --schema shop`" in fails(3, "migrate", "check", "--schema", "shop")
        assert f"run `aftercommit migrate up --app {APP}`" in fails(3, "migrate", "check", "--app", APP)

    def test_check_finds_a_schema_that_drifted(self, shop: Shop) -> None:
        with psycopg.connect(shop.dsn) as connection:
            connection.execute("drop view shop.event_log")

        line = fails(3, "migrate", "check", "--app", APP, "--dsn", shop.dsn)

        assert "event_log is missing or differs" in line

    def test_without_app_the_migrations_alone_are_compared_and_that_is_said(self, shop: Shop) -> None:
        """The shop has a scope and views, which are no drift because nobody has shown us the declaration."""
        where = ("--schema", "shop", "--dsn", shop.dsn)
        not_compared = "declarations were not compared: give --app module:outbox\n"

        checked = run("migrate", "check", *where)
        shown = run("migrate", "status", *where)
        document = json.loads(run("migrate", "status", "--json", *where).stdout)

        assert (checked.exit_code, checked.stderr) == (0, f"schema 'shop' is up to date\n{not_compared}")
        assert (shown.exit_code, shown.stderr) == (0, not_compared)
        assert "differs" not in shown.stdout
        assert (document["current"], document["declarations_compared"], document["differences"]) == (True, False, [])
        of_app = run("migrate", "status", "--json", "--app", APP, "--dsn", shop.dsn)
        assert (json.loads(of_app.stdout)["declarations_compared"], of_app.stderr) == (True, "")

    def test_without_app_a_migration_that_is_missing_is_still_found(self, shop: Shop) -> None:
        shop.rows("delete from migration where version = (select max(version) from migration)")

        assert "lacks migration" in fails(3, "migrate", "check", "--schema", "shop", "--dsn", shop.dsn)

    def test_status_tells_applied_from_pending(self, empty: str) -> None:
        before = json.loads(run("migrate", "status", "--json").stdout)
        run("migrate", "up")
        after = json.loads(run("migrate", "status", "--json").stdout)

        assert (before["current"], before["applied"]) == (False, [])
        assert "0001_engine" in before["pending"]
        assert (after["current"], after["pending"], after["differences"]) == (True, [], [])
        assert re.search(r"^0001_engine +applied$", run("migrate", "status").stdout, re.MULTILINE)

    def test_sql_is_a_script_that_does_the_same_and_needs_no_database(self, database: str) -> None:
        printed = run("migrate", "sql", "--app", APP)
        again = run("migrate", "sql", "--app", APP)

        assert (printed.exit_code, printed.stderr) == (0, "")
        assert printed.stdout == again.stdout
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(printed.stdout.encode())
        assert run("migrate", "check", "--app", APP, "--dsn", database).exit_code == 0

    def test_half_a_script_is_never_printed(self, empty: str) -> None:
        assert "there is no migration 9999" in fails(1, "migrate", "sql", "--from", "9999")

    def test_grants_are_statements_that_the_owner_can_run(self, shop: Shop) -> None:
        printed = run("migrate", "grants", "app user", "--app", APP)

        assert printed.exit_code == 0
        assert 'to "app user";' in printed.stdout
        assert run("migrate", "grants").exit_code == 2


class TestStatus:
    def test_it_says_how_to_make_an_outbox_where_there_is_none(self, empty: str) -> None:
        assert "run `aftercommit migrate up --app module:outbox`" in fails(3, "status")
        assert "run `aftercommit migrate up --app module:outbox`" in fails(3, "status", "--schema", "shop")

    def test_an_idle_outbox_is_healthy(self, shop: Shop) -> None:
        result = run("status", "--dsn", shop.dsn)

        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[:2] == [
            "outbox  pending  oldest (s)  retrying  failed  log head",
            "shop    0        0.0         0         0       0",
        ]

    def test_events_that_nobody_carries_are_a_problem(self, shop: Shop) -> None:
        shop.place("o-1")

        result = run("status", "--dsn", shop.dsn, "--json")

        document = json.loads(result.stdout)
        assert result.exit_code == 3
        assert (document["outbox"], document["pending"], document["head"]) == ("shop", 1, 0)
        assert document["problems"] == [
            f"1 event waits and no relay is alive: start `aftercommit relay --dsn '{shop.dsn}' --app module:outbox`"
        ]
        assert result.stderr == f"problem: {document['problems'][0]}\n"

    def test_events_that_wait_too_long_are_a_problem(self, shop: Shop) -> None:
        shop.place("o-1")
        shop.rows("update outbox set created_at = created_at - interval '90 seconds'")

        assert re.search(r"has waited \d+ s, more than 60 s", run("status", "--dsn", shop.dsn).stderr)
        assert "has waited" not in run("status", "--dsn", shop.dsn, "--max-age", "3600").stderr

    def test_a_consumer_that_is_behind_without_a_worker_is_a_problem_unless_it_is_paused(self, shop: Shop) -> None:
        place_in_log(shop, *numbered(5))
        shop.rows("insert into consumer (name, position, declared_by) values ('index', 2, 'x')")

        assert "consumer 'index' is 3 events behind" in run("status", "--dsn", shop.dsn).stderr
        shop.rows("update consumer set paused = true")
        assert run("status", "--dsn", shop.dsn).exit_code == 0

    def test_dead_letters_are_counted_by_owner_and_status(self, shop: Shop) -> None:
        shop.rows(
            "insert into dead_letter_events (event_id, consumer_name, status, event_type, schema_version,"
            " aggregate_type, aggregate_id, occurred_at, correlation_id, payload, seq, created_at, error, error_class,"
            " attempts, tenant_id) select gen_random_uuid(), 'index', 'parked', 'order.placed', 1, 'order', 'o', now(),"
            " 'c', '{}', n, now(), 'e', 'E', 1, 'acme' from generate_series(1, 3) n"
        )

        document = json.loads(run("status", "--dsn", shop.dsn, "--json").stdout)

        assert document["dead_letters"] == [{"owner": "index", "status": "parked", "count": 3}]

    def test_names_from_the_database_cannot_paint_over_the_terminal(self, shop: Shop) -> None:
        shop.rows("insert into consumer (name, position, declared_by) values (%s, 0, 'x')", ["\x1b[2Jgone\r"])

        result = run("consumers", "list", "--dsn", shop.dsn)

        assert "�[2Jgone�" in result.stdout

    def test_one_of_several_outboxes_has_to_be_chosen(self, shop: Shop) -> None:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            migrate.up(connection, Shape("billing"))

        assert "several outboxes (billing, shop): choose one with --schema" in fails(1, "status", "--dsn", shop.dsn)
        assert run("status", "--dsn", shop.dsn, "--schema", "billing").stdout.splitlines()[1].startswith("billing")


class TestConsumers:
    @pytest.fixture(autouse=True)
    def consumer(self, shop: Shop) -> None:
        shop.rows("insert into consumer (name, position, declared_by) values ('index', 0, 'x')")

    def test_list_shows_checkpoints(self, shop: Shop) -> None:
        (found,) = json.loads(run("consumers", "list", "--dsn", shop.dsn, "--json").stdout)

        expected = {"name": "index", "position": 0, "lag": 0, "lag_seconds": 0.0, "paused": False, "holder": None}
        expected |= {"overdue": 0, "overdue_seconds": 0.0, "lost": 0, "is_ahead": False}
        assert found == expected
        assert run("consumers", "list", "--dsn", shop.dsn).stdout.split() == (
            "consumer position lag lag (s) paused holder index 0 0 0.0 no -".split()
        )

    def test_pause_and_resume(self, shop: Shop) -> None:
        paused = run("consumers", "pause", "index", "--dsn", shop.dsn)
        assert (paused.exit_code, paused.stdout, paused.stderr) == (0, "", "consumer 'index' is paused\n")
        assert shop.value("select paused from consumer") is True
        assert run("consumers", "resume", "index", "--dsn", shop.dsn).exit_code == 0
        assert shop.value("select paused from consumer") is False

    def test_an_unknown_name_is_answered_with_the_known_ones(self, shop: Shop) -> None:
        assert "known consumers are index" in fails(1, "consumers", "pause", "indx", "--dsn", shop.dsn)

    def test_rename_asks_first_and_keeps_the_checkpoint(self, shop: Shop) -> None:
        shop.rows("update consumer set position = 0")
        refused = run("consumers", "rename", "index", "order-index", "--dsn", shop.dsn)
        assert refused.exit_code == 1
        assert "stdin is not a terminal: give --yes" in refused.stderr
        assert shop.rows("select name from consumer") == [("index",)]
        assert run("consumers", "rename", "index", "order-index", "--yes", "--dsn", shop.dsn).exit_code == 0
        assert shop.rows("select name from consumer") == [("order-index",)]

    def test_forget_asks_first_and_a_pipe_is_no_answer(self, shop: Shop) -> None:
        refused = run("consumers", "forget", "index", "--dsn", shop.dsn)
        assert refused.exit_code == 1
        assert "handle everything again" in refused.stderr
        assert shop.value("select count(*) from consumer") == 1

        assert run("consumers", "forget", "index", "--yes", "--dsn", shop.dsn).exit_code == 0
        assert shop.value("select count(*) from consumer") == 0


class TestWrongDatabase:
    def test_no_database_at_all_says_both_ways_to_get_one(self) -> None:
        line = fails(1, "status")
        assert "set DATABASE_URL, give --dsn, or run `aftercommit up`" in line

    def test_serve_proposes_an_up_that_runs_what_is_served_and_not_the_example(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "reading_lamp.py").write_text("async def app(scope, receive, send): pass\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        served = fails(1, "serve", "--app", "systems.site:application")
        assert "run `aftercommit up --app systems.site:application`" in served
        # `up` needs the outbox behind any other ASGI application.
        assert "run `aftercommit up --app module:outbox`" in fails(1, "serve", "--app", "reading_lamp:app")

    def test_an_unreachable_server_is_one_line_without_the_password(self) -> None:
        line = fails(1, "status", "--dsn", "postgresql://me:s3cret@127.0.0.1:1/x?connect_timeout=5")
        assert "cannot connect to PostgreSQL" in line
        assert "s3cret" not in line

    @pytest.mark.parametrize(
        "dsn", ["postgresql+asyncpg://me:s3cret@host/x", "s3cret", "postgresql://me:s3 cret@host/x"]
    )
    def test_an_unreadable_url_is_explained_without_the_password(self, dsn: str) -> None:
        line = fails(1, "status", "--dsn", dsn)
        assert "cannot be read" in line
        assert "cret" not in line

    @pytest.mark.parametrize("command", ["status", "up"])
    def test_an_unreadable_url_is_called_by_what_was_set(self, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert fails(1, command, "--dsn", "nonsense").startswith("error: --dsn cannot be read")
        monkeypatch.setenv("DATABASE_URL", "nonsense")
        assert fails(1, command).startswith("error: DATABASE_URL cannot be read")
        monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/x")
        monkeypatch.setenv("AFTERCOMMIT_LISTEN_URL", "nonsense")
        assert fails(1, command).startswith("error: AFTERCOMMIT_LISTEN_URL cannot be read")

    def test_the_driver_in_a_sqlalchemy_url_is_pointed_at(self) -> None:
        line = fails(1, "status", "--dsn", "postgresql+asyncpg://me@host/x")
        assert "leave out the driver and begin with postgresql://" in line

    def test_a_database_that_does_not_exist_is_refused(self, database: str) -> None:
        line = fails(1, "status", "--dsn", with_database(database, "nowhere"))
        assert "refuses the connection: connection failed" in line
        assert 'database "nowhere" does not exist' in line

    def test_verbose_shows_where_an_error_came_from(self) -> None:
        result = run("-v", "status", "--dsn", "postgresql://127.0.0.1:1/x?connect_timeout=5")
        assert result.exit_code == 1
        assert "Traceback (most recent call last)" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("error: cannot connect")


class TestWrongApplication:
    @pytest.mark.parametrize("command", [("relay",), ("worker",)])
    def test_commands_that_run_declarations_ask_for_them(self, command: tuple[str, ...], shop: Shop) -> None:
        assert "--app package.module:name" in fails(1, *command, "--dsn", shop.dsn)

    @pytest.mark.parametrize(
        ("app", "complaint"),
        [
            ("shop", "should look like package.module:name"),
            ("tests.nowhere:outbox", "there is no module 'tests.nowhere'"),
            ("tests.support.shop_app:outbux", "has no attribute 'outbux'"),
            ("tests.support.shop_app:not_an_outbox", "neither an Application nor an Outbox"),
        ],
    )
    def test_what_cannot_be_found_is_named(self, app: str, complaint: str) -> None:
        assert complaint in fails(1, "migrate", "sql", "--app", app)

    def test_a_module_that_cannot_import_what_it_needs_is_shown_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_app.py").write_text("import not_installed_anywhere\n")
        monkeypatch.chdir(tmp_path)

        result = run("migrate", "sql", "--app", "broken_app:outbox")

        assert isinstance(result.exception, ModuleNotFoundError)
        assert result.exception.name == "not_installed_anywhere"

    def test_a_worker_for_an_unknown_consumer_names_the_known_ones(self, shop: Shop) -> None:
        line = fails(1, "--log-format", "text", "worker", "nobody", "--app", APP, "--dsn", shop.dsn)
        assert "Declared consumers: order-index, slow" in line


class TestUsage:
    def test_options_for_all_commands_stand_before_or_behind_the_name(self, shop: Shop) -> None:
        before = run("--dsn", shop.dsn, "--schema", "shop", "status")
        behind = run("status", "--dsn", shop.dsn, "--schema", "shop")
        assert before.exit_code == behind.exit_code == 0
        assert before.stdout == behind.stdout

    def test_the_nearer_option_wins_and_both_win_over_the_environment(self, shop: Shop) -> None:
        environment = {"DATABASE_URL": "postgresql://127.0.0.1:1/x"}
        result = run("--dsn", "postgresql://127.0.0.1:2/x", "status", "--dsn", shop.dsn, env=environment)
        assert result.exit_code == 0

    @pytest.mark.parametrize("arguments", [("nonsense",), ("status", "--nonsense"), ("relay", "--carriers", "0")])
    def test_wrong_usage_has_its_own_exit_status(self, arguments: tuple[str, ...]) -> None:
        assert run(*arguments).exit_code == 2

    def test_a_wrong_word_in_the_environment_is_wrong_usage(self) -> None:
        result = run("status", env={"AFTERCOMMIT_LOG_FORMAT": "xml"})
        assert result.exit_code == 2
        assert "use json or text" in result.stderr

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        assert Settings.from_environment({"DATABASE_URL": "", "AFTERCOMMIT_APP": ""}) == Settings()

    def test_version_speaks_to_people_and_programs(self) -> None:
        assert run("--version").stdout == f"aftercommit {__version__}\n"
        assert json.loads(run("version", "--json").stdout)["aftercommit"] == __version__
        assert run("version").stdout.startswith("aftercommit ")

    @pytest.mark.parametrize(
        "name", ["", "up", "migrate", "migrate up", "relay", "worker", "consumers", "status", "sweep", "doctor"]
    )
    def test_every_command_explains_itself(self, name: str) -> None:
        result = run(*name.split(), "--help")
        assert result.exit_code == 0
        assert "--dsn" in result.stdout
