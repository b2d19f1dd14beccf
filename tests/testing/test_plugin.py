"""The pytest plugin as its users have it: loaded by being installed, idle unless asked, told by ini or fixture."""

import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from aftercommit.errors import DeclarationError
from aftercommit.testing import PostgresServerForTests
from aftercommit.testing.plugin import load_outbox, load_prepare, server_for
from tests.support.warm import Warm

SHOP = """
    from dataclasses import dataclass
    from aftercommit import Outbox
    outbox = Outbox("shop_events")

    @outbox.event("order.placed", aggregate="order", key="order_id")
    @dataclass
    class OrderPlaced:
        order_id: str

    def make_tables(dsn):
        import psycopg
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table orders (id text)")
"""
INI = """
    [pytest]
    pythonpath = .
    aftercommit_app = shop:outbox
    addopts = -p no:cacheprovider -p no:schemathesis -p no:faker
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with an outbox; our own environment does not reach it."""
    for name in ("AFTERCOMMIT_TEST_POSTGRES", "AFTERCOMMIT_TEST_DSN", "DATABASE_URL", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini(textwrap.dedent(INI))
    pytester.makepyfile(shop=SHOP)
    return pytester


class Run(Protocol):
    """Runs the tests of a project in a process of their own, and counts how they end; or prints what it is asked."""

    def __call__(self, project: pytest.Pytester, *arguments: str, **counts: int) -> pytest.RunResult: ...


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """By a pytest whose own modules are imported already, and what ours import; ours are not."""
    theirs = ("pytest", "xdist.plugin", "pytest_asyncio.plugin", "_hypothesis_pytestplugin")
    with Warm(*theirs, "psycopg", "msgspec") as python:

        def run_in(project: pytest.Pytester, *arguments: str, **counts: int) -> pytest.RunResult:
            began = time.monotonic()
            ran = python.run("-m", "pytest", "-q", *arguments, folder=project.path, environment=os.environ)
            result = pytest.RunResult(
                ran.returncode, ran.stdout.splitlines(), ran.stderr.splitlines(), time.monotonic() - began
            )
            if counts:
                result.assert_outcomes(**counts)
            return result

        yield run_in


@pytest.mark.thorough
def test_a_run_that_uses_no_fixture_imports_nothing_of_ours(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import sys

        def test_nothing_was_imported():
            assert not [name for name in sys.modules if name.split(".")[0] in ("aftercommit", "psycopg", "msgspec")]
    """)
    project.runpytest_subprocess("-q").assert_outcomes(passed=1)


@pytest.mark.thorough
def test_fixtures_are_prefixed_and_none_is_autouse(project: pytest.Pytester, run: Run) -> None:
    result = run(project, "--fixtures")
    ours = [line.split()[0] for line in result.outlines if "_aftercommit_pytest.py" in line]
    assert len(ours) == 8
    assert all(name.startswith("aftercommit_") for name in ours)
    result = run(project, "--help")
    result.stdout.fnmatch_lines(["*--aftercommit-dsn=DSN*", "*--aftercommit-postgres=VERSION*"])


@pytest.mark.thorough
def test_each_test_has_a_database_of_its_own_and_the_template_is_made_once(project: pytest.Pytester, run: Run) -> None:
    project.makeini(textwrap.dedent(INI) + "\naftercommit_prepare = shop:make_tables\n")
    project.makepyfile("""
        import psycopg, pytest, shop

        prepared = []
        original = shop.make_tables

        @pytest.fixture(scope="session")
        def aftercommit_prepare():
            def prepare(dsn):
                prepared.append(dsn)
                original(dsn)
            return prepare

        @pytest.mark.parametrize("number", [1, 2, 3])
        def test_it_is_empty(aftercommit_world, number):
            aftercommit_world.assert_not_published()
            with aftercommit_world.connect() as connection:
                assert connection.execute("select count(*) from orders").fetchone() == (0,)
                connection.execute("insert into orders values ('o-1')")
            aftercommit_world.publish(shop.OrderPlaced("o-1"))
            assert aftercommit_world.drain().appended == 1
            assert len(prepared) == 1
    """)
    run(project, passed=3)


@pytest.mark.thorough
def test_tables_come_from_a_function_or_a_file_of_sql_named_in_the_ini(
    project: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServerForTests
) -> None:
    monkeypatch.setenv("AFTERCOMMIT_TEST_DSN", postgres_server.dsn)
    project.makepyfile("""
        def test_the_table_is_there(aftercommit_world):
            with aftercommit_world.connect() as connection:
                assert connection.execute("select count(*) from orders").fetchone() == (0,)
    """)
    project.makeini(textwrap.dedent(INI) + "\naftercommit_prepare = shop:make_tables\n")
    run(project, passed=1)
    project.makeini(textwrap.dedent(INI) + "\naftercommit_prepare = sql/tables.sql\n")
    project.mkdir("sql").joinpath("tables.sql").write_text("create table orders (id text); create table more ();")
    run(project, passed=1)


@pytest.mark.thorough
def test_workers_of_xdist_do_not_meet_on_a_server_of_yours(
    project: pytest.Pytester, run: Run, postgres_server: PostgresServerForTests
) -> None:
    before = databases(postgres_server)
    project.makepyfile("""
        import pytest
        from shop import OrderPlaced

        @pytest.mark.parametrize("number", range(6))
        def test_alone(aftercommit_world, number, aftercommit_server):
            assert aftercommit_server.embedded is None
            aftercommit_world.publish(OrderPlaced(f"o-{number}"))
            aftercommit_world.drain()
            aftercommit_world.assert_published_in_order(OrderPlaced, only=True)
    """)
    run(project, "-n", "2", "--aftercommit-dsn", postgres_server.dsn, passed=6)
    assert databases(postgres_server) == before


def databases(server: PostgresServerForTests) -> set[Any]:
    import psycopg

    with psycopg.connect(server.dsn, autocommit=True) as connection:
        # Others of our own tests make databases on this server too, but each run names its own.
        return {name for (name,) in connection.execute("select datname from pg_database").fetchall()}


@pytest.mark.thorough
def test_the_embedded_server_is_of_the_version_that_is_told(project: pytest.Pytester, run: Run) -> None:
    project.makepyfile("""
        def test_version(aftercommit_world):
            with aftercommit_world.connect() as connection:
                assert connection.info.server_version // 10000 == 16
    """)
    run(project, "--aftercommit-postgres", "16", passed=1)


@pytest.mark.thorough
def test_an_option_comes_before_the_ini_and_the_ini_before_the_environment(
    project: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeconftest("""
        from contextlib import nullcontext
        from aftercommit.testing import plugin
        plugin.server_for = lambda dsn, version, given_by: nullcontext((dsn, version))
    """)
    project.makepyfile("""
        import os

        def test_told(aftercommit_server):
            assert aftercommit_server == (os.environ["DSN"] or None, os.environ["VERSION"] or None)
    """)

    def told(dsn: str, version: str, *arguments: str) -> None:
        monkeypatch.setenv("DSN", dsn)
        monkeypatch.setenv("VERSION", version)
        run(project, *arguments, passed=1)

    told("", "")
    monkeypatch.setenv("AFTERCOMMIT_TEST_DSN", "host=environment")
    monkeypatch.setenv("AFTERCOMMIT_TEST_POSTGRES", "16")
    told("host=environment", "16")
    project.makeini(textwrap.dedent(INI) + "\naftercommit_dsn = host=ini\naftercommit_postgres = 17\n")
    told("host=ini", "17")
    told("host=option", "18", "--aftercommit-dsn=host=option", "--aftercommit-postgres=18")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "no Outbox to test: set aftercommit_app = package.module:name"),
        ("tests.support.shop", "aftercommit_app = tests.support.shop should look like package.module:name"),
        ("tests.shpo:outbox", "there is no module 'tests.shpo' .*pythonpath"),
        ("tests.support.shop:inbox", "has no attribute 'inbox'"),
        ("tests.support.shop:OrderPlaced", "and not an Outbox"),
    ],
)
def test_an_outbox_that_is_not_there_is_named_with_the_remedy(where: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        load_outbox(where)


def test_what_cannot_prepare_a_database_is_named_with_the_remedy(tmp_path: Path) -> None:
    assert load_prepare("", tmp_path) is None
    with pytest.raises(DeclarationError, match="not a function that takes a DSN"):
        load_prepare("tests.support.shop:SCHEMA", tmp_path)
    with pytest.raises(DeclarationError, match=r"missing\.sql, which does not exist"):
        load_prepare("missing.sql", tmp_path)
    with pytest.raises(DeclarationError, match="'eighteen' is not a major version of PostgreSQL, such as 18"):
        server_for(None, "eighteen")


@pytest.mark.thorough
def test_a_broken_ini_fails_the_tests_that_need_it_and_no_others(project: pytest.Pytester, run: Run) -> None:
    project.makeini(textwrap.dedent(INI).replace("shop:outbox", "shop:inbox"))
    project.makepyfile("""
        def test_needs_it(aftercommit_world): ...
        def test_does_not(): ...
    """)
    result = run(project, passed=1, errors=1)
    result.stdout.fnmatch_lines(["*DeclarationError: aftercommit_app = shop:inbox:*has no attribute 'inbox'"])


@pytest.mark.thorough
def test_two_outboxes_in_one_run_have_a_template_each(
    project: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServerForTests
) -> None:
    monkeypatch.setenv("AFTERCOMMIT_TEST_DSN", postgres_server.dsn)
    project.makepyfile(
        test_one="def test_one(aftercommit_world): assert aftercommit_world.drain().appended == 0",
        test_two="""
            import pytest
            from aftercommit import Outbox

            @pytest.fixture(params=[str, int])
            def aftercommit_outbox(request):
                return Outbox("shop_events", scope={"tenant_id": request.param})

            def test_two(aftercommit_world):
                assert aftercommit_world.drain().appended == 0
        """,
    )
    run(project, passed=3)


def test_an_error_in_a_file_of_sql_names_the_file_and_the_line(tmp_path: Path, aftercommit_dsn: str) -> None:
    (tmp_path / "tables.sql").write_text("create table orders (id text);\n\ncreate tabel more ();\n")
    prepare = load_prepare("tables.sql", tmp_path)
    assert prepare is not None
    with pytest.raises(DeclarationError, match=r"tables\.sql, which fails in line 3: syntax error at or near .tabel"):
        prepare(aftercommit_dsn)
    (tmp_path / "tables.sql").write_text("create table ledger ()")
    with pytest.raises(DeclarationError, match=r'tables\.sql, which fails: relation "ledger" already exists'):
        prepare(aftercommit_dsn)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given_by", ["--aftercommit-dsn", "aftercommit_dsn in pytest's ini file", "AFTERCOMMIT_TEST_DSN"]
)
def test_a_server_that_does_not_answer_is_named_by_the_option_that_gave_it(
    project: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch, given_by: str
) -> None:
    project.makepyfile("def test_any(aftercommit_server): ...")
    arguments = []
    if given_by.startswith("--"):
        arguments = [f"--aftercommit-dsn=host={project.path}"]
    elif given_by.startswith("AFTERCOMMIT"):
        monkeypatch.setenv("AFTERCOMMIT_TEST_DSN", f"host={project.path}")
    else:
        project.makeini(textwrap.dedent(INI) + f"\naftercommit_dsn = host={project.path}\n")

    result = run(project, *arguments, errors=1)

    result.stdout.fnmatch_lines([f"*start it, or leave {given_by} out to use an embedded one*"])


@pytest.mark.thorough
def test_a_crash_that_was_planned_and_never_came_fails_the_test_at_its_end(
    project: pytest.Pytester, run: Run, postgres_server: PostgresServerForTests
) -> None:
    project.makepyfile("""
        import pytest
        from shop import OrderPlaced

        def test_without_a_drain(aftercommit_world):
            aftercommit_world.crash_at("relay.deliver")

        async def noop(): ...

        def test_without_a_drain_in_a_loop(aftercommit_async_world):
            aftercommit_async_world.at("relay.deliver", noop)

        def test_planned_too_late(aftercommit_world):
            aftercommit_world.publish(OrderPlaced("o-1"))
            aftercommit_world.drain()
            aftercommit_world.crash_at("relay.deliver")

        def test_that_it_came(aftercommit_world):
            aftercommit_world.publish(OrderPlaced("o-1"))
            aftercommit_world.crash_at("relay.deliver")
            assert aftercommit_world.drain().crashes == ("relay.deliver",)

        def test_that_it_was_said_already(aftercommit_world):
            aftercommit_world.crash_at("relay.deliver")
            with pytest.raises(AssertionError, match="in this drain"):
                aftercommit_world.drain()

        def test_with_a_reason_of_its_own(aftercommit_world):
            aftercommit_world.crash_at("relay.deliver")
            assert 1 == 2
    """)
    result = run(project, "--aftercommit-dsn", postgres_server.dsn, passed=5, failed=1, errors=3)
    result.stdout.fnmatch_lines(["*'relay.deliver' happened 0 times, not 1, until the test ended: drain(), or give*"])
