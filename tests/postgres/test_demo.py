"""The order example and `aftercommit up`: what a newcomer meets first has to work anywhere and leave nothing behind."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from aftercommit.contrib.telegram import open_store
from aftercommit.demo import orders
from aftercommit.embedded.postmaster import find_postmaster
from aftercommit.engine import Engine
from aftercommit.postgres.database import Database
from aftercommit.schema import migrate
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from tests.support.investigations import eventually
from tests.support.programs import CLEANED, PATIENCE, Program, running
from tests.support.shop import Shop

pytestmark = pytest.mark.newest

TOTALS_THAT_DIFFER = """
    with expected as (
        select customer_id, count(*) as placed, count(*) filter (where status in ('paid', 'shipped')) as paid,
               coalesce(sum(amount_cents) filter (where status in ('paid', 'shipped')), 0) as paid_cents,
               count(*) filter (where status = 'shipped') as shipped,
               count(*) filter (where status = 'cancelled') as cancelled
        from demo_shop.orders group by customer_id
    )
    select count(*) from expected full join demo_shop.customer_totals total using (customer_id)
    where (expected.placed, expected.paid, expected.paid_cents, expected.shipped, expected.cancelled)
        is distinct from (total.placed, total.paid, total.paid_cents, total.shipped, total.cancelled)
"""

CONSUMING = """
from aftercommit import Outbox
outbox = Outbox('mine')
done = outbox.declare('thing.done')

@outbox.on(done, consumer='income')
async def count(event): pass
"""
NEW_CONSUMER = """
outbox.consumer('added', start='earliest')

@outbox.on(done, consumer='added')
async def add(event): pass
"""


@pytest.fixture
def demo(postgres_server: PostgresServerForTests) -> Iterator[Shop]:
    """A database with the tables of the example; Shop is only the pair of eyes here."""
    dsn = postgres_server.clone(postgres_server.template("demo", prepare=_prepare))
    yield Shop(dsn)
    postgres_server.drop(dsn)


def _prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate.up(connection, orders.outbox.shape)
        orders.create_tables(connection)
        orders.create_tables(connection)


class TestOrders:
    @pytest.mark.thorough
    async def test_totals_come_out_right_although_the_bank_is_busy_now_and_then(self, demo: Shop) -> None:
        signals = Signals()
        database = Database(demo.dsn)
        async with Engine(orders.outbox, database, probe=signals):
            async with orders.Trickle(database, rate=1000.0, probe=signals):
                await signals.wait("trickle.stepped", 120)
            await demo.value_becomes(TOTALS_THAT_DIFFER, 0)
        failures = "select count(*), min(attempts), bool_and(status = 'resolved') from demo_orders.dead_letter_events"
        ((count, attempts, all_resolved),) = demo.rows(failures)
        assert count >= 1
        assert attempts >= 1
        assert all_resolved
        assert demo.value("select count(*) from demo_orders.log") >= 120
        assert demo.value("select count(*) from demo_orders.outbox") == 0

    async def test_the_same_seed_makes_the_same_customers_buy_the_same_things(
        self, demo: Shop, postgres_server: PostgresServerForTests
    ) -> None:
        other = Shop(postgres_server.clone(postgres_server.template("demo", prepare=_prepare)))
        found = []
        for shop in (demo, other):
            trickle = orders.Trickle(Database(shop.dsn), seed=11)
            async with await Database(shop.dsn).connect(autocommit=False) as connection:
                for _ in range(40):
                    await trickle.step(connection)
            found.append(shop.rows("select * from demo_shop.orders order by number"))
        postgres_server.drop(other.dsn)
        assert found[0] == found[1]
        assert len(found[0]) > 10

    async def test_an_order_and_all_that_happens_to_it_share_a_correlation_id(self, demo: Shop) -> None:
        trickle = orders.Trickle(Database(demo.dsn))
        async with await Database(demo.dsn).connect(autocommit=False) as connection:
            for _ in range(12):
                await trickle.step(connection)
        found = demo.rows("select distinct aggregate_id, correlation_id from demo_orders.outbox order by 1")
        assert found == sorted((number, f"order-{number}") for number, _ in found)

    def test_most_payments_are_confirmed_at_once_and_every_one_in_the_end(self) -> None:
        failures = [orders.bank_failures(str(number)) for number in range(2000)]
        assert set(failures) == {0, 1, 2}
        assert 50 <= sum(count > 0 for count in failures) <= 150
        assert max(failures) <= orders.totals.retry_count


def server_of(home: Path) -> int | None:
    """The postmaster that serves this folder."""
    server = find_postmaster(home / "postgres-18")
    return None if server is None else server.pid


def make_bot_state(home: Path) -> None:
    """What a bot leaves in the database of the server in this folder."""
    server = find_postmaster(home / "postgres-18")
    assert server is not None
    store = open_store(f"user=postgres dbname=postgres host={server.socket_folder} port={server.port}")
    store.prepare()
    store.close()


def consumers(dsn: str) -> list[str]:
    """Those that have a checkpoint."""
    with psycopg.connect(dsn) as connection:
        return [str(name) for (name,) in connection.execute("select name from mine.consumer order by name").fetchall()]


def figures(program: Program, name: str, at_least: int) -> str:
    """The first line in which a figure has reached a value."""

    def look() -> str | None:
        for line in program.stdout:
            values = dict(part.split("=", 1) for part in line.split())
            if int(values.get(name, "0")) >= at_least:
                return line
        return None

    found = program.until(look)
    assert found is not None, f"{name} did not reach {at_least}: {program}"
    return found


class TestUp:
    @pytest.mark.thorough
    def test_everything_runs_in_an_empty_directory_and_stops_without_a_trace(self, tmp_path: Path) -> None:
        home = tmp_path / ".aftercommit"
        with running("up", "--interval", "0.2", "--rate", "50", folder=tmp_path) as up:
            figures(up, "handled", 20)
            assert server_of(home) is not None
            with running("status", "--json", folder=tmp_path) as status:
                assert status.ends() == 0, status
            with running("consumers", "list", folder=tmp_path) as consumers:
                assert consumers.ends() == 0, consumers
            with running("bot", "links", folder=tmp_path) as nothing:
                assert nothing.ends() == 1, nothing
            make_bot_state(home)
            with running("bot", "links", folder=tmp_path) as bot:
                assert bot.ends() == 0, bot
            up.send(signal.SIGTERM)
            assert up.ends() == 0, up
        assert '"outbox": "demo_orders"' in "\n".join(status.stdout)
        assert "customer-totals" in consumers.stdout[1]
        assert "there is no state of a bot in " in str(nothing)
        assert "using the bot's state in " in str(bot)
        assert server_of(home) is None
        assert f"PostgreSQL has stopped; the data is in {home}" in up.stderr
        assert "\x1b" not in str(up)
        assert not [line for line in up.stderr if line.startswith("Traceback")], up

    @pytest.mark.thorough
    def test_a_second_one_attaches_and_goes_on_when_the_first_has_stopped(self, tmp_path: Path) -> None:
        home = tmp_path / ".aftercommit"
        arguments = ("up", "--interval", "0.2", "--rate", "20")
        with running(*arguments, folder=tmp_path) as first:
            figures(first, "handled", 1)
            with running(*arguments, folder=tmp_path) as second:
                attached = second.line("using the PostgreSQL that already runs there", second.stderr)
                figures(second, "published", 1)
                assert f"process {server_of(home)}" in attached
                first.send(signal.SIGINT)
                assert first.ends() == 0, first
                second.line("postgresql_runs_again", second.stderr)
                before = len(second.stdout)
                second.until(lambda: next((line for line in second.stdout[before:] if "pending=" in line), None))
                handled = int(second.stdout[-1].split("handled=")[1].split()[0])
                figures(second, "handled", handled + 5)
                second.send(signal.SIGINT)
                assert second.ends() == 0, second
        assert server_of(home) is None

    @pytest.mark.thorough
    def test_two_interrupts_in_a_row_end_it_at_once_and_leave_no_server_behind(self, tmp_path: Path) -> None:
        home = tmp_path / ".aftercommit"
        with running("up", "--interval", "0.2", folder=tmp_path) as up:
            figures(up, "handled", 1)
            server = server_of(home)
            assert server is not None
            up.send(signal.SIGINT)
            up.line("stopping; press Ctrl-C again to end at once", up.stderr)
            up.send(signal.SIGINT)
            assert up.ends() in (-signal.SIGINT, 0), up
        # It may have been as good as done when the second came.
        assert any("PostgreSQL is stopping" in line or "PostgreSQL has stopped" in line for line in up.stderr), up
        deadline = time.monotonic() + PATIENCE
        while server_of(home) is not None:
            assert time.monotonic() < deadline, "PostgreSQL stays"
            time.sleep(0.02)
        with running("up", "--interval", "0.2", folder=tmp_path) as again:
            figures(again, "handled", 1)
            again.send(signal.SIGINT)
            assert again.ends() == 0, again

    @pytest.mark.thorough
    def test_each_schema_is_one_line_and_what_has_no_consumers_handles_nothing(
        self, database: str, tmp_path: Path
    ) -> None:
        (tmp_path / "my_shop.py").write_text("from aftercommit import Outbox\noutbox = Outbox('mine')\n")
        for said in ("applied", "up to date"):
            with running(
                "up", "--app", "my_shop:outbox", "--dsn", database, "--interval", "0.2", folder=tmp_path
            ) as up:
                figures(up, "pending", 0)
                up.send(signal.SIGTERM)
                assert up.ends() == 0, up
            (line,) = [line for line in up.stderr if line.startswith("schema ")]
            assert line.startswith("schema mine: ")
            assert line.endswith(said)
            assert not [line for line in up.stdout if "handled" in line]

    @pytest.mark.thorough
    def test_a_renamed_consumer_is_refused_before_anything_runs(self, database: str, tmp_path: Path) -> None:
        (tmp_path / "my_shop.py").write_text(CONSUMING)
        (tmp_path / "my_new_shop.py").write_text(CONSUMING.replace("'income'", "'revenue'") + NEW_CONSUMER)
        with running("up", "--app", "my_shop:outbox", "--dsn", database, "--interval", "0.2", folder=tmp_path) as up:
            figures(up, "pending", 0)
            eventually(lambda: consumers(database) or None)
            up.send(signal.SIGTERM)
            assert up.ends() == 0, up
        with running("up", "--app", "my_new_shop:outbox", "--dsn", database, folder=tmp_path) as up:
            assert up.ends() == 1, up
        assert "error: consumer 'revenue' has no checkpoint, while 'income'" in up.stderr[-1]
        assert not [line for line in up.stderr if "running" in line], up
        assert consumers(database) == ["income"]

    @pytest.mark.thorough
    def test_with_a_database_url_no_server_is_started(self, database: str, tmp_path: Path) -> None:
        with running("up", "--interval", "0.2", folder=tmp_path, DATABASE_URL=database) as up:
            figures(up, "handled", 1)
            up.send(signal.SIGTERM)
            assert up.ends() == 0, up
        assert not (tmp_path / ".aftercommit").exists()
        assert up.stderr[0].endswith("(from --dsn or DATABASE_URL)")

    def test_your_application_runs_instead_of_the_example(self, database: str, tmp_path: Path) -> None:
        (tmp_path / "my_shop.py").write_text(
            "from aftercommit import Outbox\noutbox = Outbox('mine')\nthing = outbox.declare('thing.done')\n"
        )
        with running("up", "--app", "my_shop:outbox", "--dsn", database, "--interval", "0.2", folder=tmp_path) as up:
            figures(up, "pending", 0)
            up.send(signal.SIGTERM)
            assert up.ends() == 0, up
        with psycopg.connect(database) as connection:
            schemas = connection.execute("select nspname from pg_namespace where nspname in ('mine', 'demo_shop')")
            assert schemas.fetchall() == [("mine",)]

    def test_a_folder_that_cannot_be_used_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        with running("up", folder=tmp_path, AFTERCOMMIT_HOME=str(tmp_path / "file")) as up:
            assert up.ends() == 1, up
        assert up.stderr[-1].startswith("error: the embedded PostgreSQL cannot use ")
        assert not [line for line in up.stderr if line.startswith("Traceback")], up

    @pytest.mark.thorough
    def test_a_terminal_gets_a_live_panel_and_its_cursor_back(self, database: str, tmp_path: Path) -> None:
        terminal, other_end = pty.openpty()
        fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in CLEANED}
        up = subprocess.Popen(
            [sys.executable, "-m", "aftercommit.cli", "up", "--dsn", database, "--interval", "0.2"],
            cwd=tmp_path,
            env={**environment, "TERM": "xterm-256color"},
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
        )
        os.close(other_end)
        try:
            shown = read_terminal(terminal, b"customer-totals")
            up.send_signal(signal.SIGINT)
            shown += read_terminal(terminal, None)
            assert up.wait(60) == 0
        finally:
            up.kill()
            up.wait()
            os.close(terminal)
        assert "Ctrl-C stops" in shown.decode()
        assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") >= 1


def read_terminal(terminal: int, until: bytes | None) -> bytes:
    """What a program writes to its terminal, until these bytes come or (None) until it closes it."""
    shown, deadline = b"", time.monotonic() + PATIENCE
    while until is None or until not in shown:
        assert time.monotonic() < deadline, shown.decode(errors="replace")
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            received = os.read(terminal, 65536)
        except OSError:
            return shown
        if not received:
            return shown
        shown += received
    return shown
