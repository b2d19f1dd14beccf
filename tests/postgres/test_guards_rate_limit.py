"""Rate limits across processes: the bound that is documented, the database's clock, and life without a database."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aftercommit.feed.access import rate_limit
from aftercommit.feed.access.rate_limit import Rate, RateLimiter
from aftercommit.postgres.database import Database
from aftercommit.testing.fault_proxy import FaultProxy
from aftercommit.testing.signals import Signals
from tests.shop import Shop

REPOSITORY = Path(__file__).resolve().parents[2]
# A window that ends long after this test, whenever it is run.
LONG = max(range(43_200, 86_401, 3_600), key=lambda seconds: seconds - time.time() % seconds)
STUCK = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def limiter_of(shop: Shop, signals: Signals | None = None, **options: Any) -> RateLimiter:
    return RateLimiter(shop.database, shop.outbox, probe=signals, **options)


async def exchanged(limiter: RateLimiter, signals: Signals) -> None:
    """Until everything that was let through so far is known to the others."""
    limiter._hurry.set()
    await signals.until(lambda: not limiter._unsent, "not everything was exchanged")


@pytest.mark.contract("L9")
async def test_what_one_process_lets_through_counts_for_the_others(shop: Shop):
    rate, here, there = Rate("user", 100, LONG), Signals(), Signals()
    async with limiter_of(shop, here) as one, limiter_of(shop, there) as two:
        for _ in range(60):
            assert one.take("user", "ann", rate).allowed
        await exchanged(one, here)
        assert two.take("user", "ann", rate).allowed
        await exchanged(two, there)

        passed = sum(two.take("user", "ann", rate).allowed for _ in range(60))

        assert passed == 39
        assert two.take("user", "bob", rate).allowed
    assert shop.value("select taken from rate_window where key = 'ann'") == 100


@pytest.mark.contract("L9")
async def test_several_processes_stay_within_the_documented_bound(shop: Shop):
    processes, requests = 4, 400
    with Started(processes, shop.dsn, requests) as running:
        for program in running:
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "ready\n"
        for program in running:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        found = [json.loads((await asyncio.to_thread(program.communicate, None, 100))[0]) for program in running]

    passed, most = sum(each["passed"] for each in found), max(each["most"] for each in found)
    assert [each["sent"] for each in found] == [each["passed"] for each in found]
    assert requests <= passed <= requests + (processes - 1) * most
    assert shop.value("select taken from rate_window") == passed


@pytest.mark.contract("L9")
async def test_what_passes_while_an_exchange_is_under_way_is_unseen_as_well(shop: Shop):
    rate, here, there = Rate("user", 100, LONG), Signals(), Signals()
    async with limiter_of(shop, here, interval=60.0) as one, limiter_of(shop, there, interval=60.0) as two:
        # Rows are written in the order of their keys: while the first cannot be, what is behind it is under way.
        two.take("user", "a", rate)
        await exchanged(two, there)
        with shop.connect() as other:
            other.execute("select from shop.rate_window where key = 'a' for update")
            two.take("user", "a", rate)
            passed = taken(two, rate, 10)
            await shop.value_becomes(STUCK, 1)
            passed += taken(two, rate, 10)
            for _ in range(10):
                passed += taken(one, rate, 10)
                await exchanged(one, here)

            # `one` has heard of all that was added up, and twice ten were not.
            assert passed == 100 + 20
            assert taken(one, rate, 1) == 0
        await exchanged(two, there)
        assert taken(two, rate, 1) == 0
    assert {detail["count"] for detail in here.details["rates.exchanged"]} == {10}
    assert [detail["count"] for detail in there.details["rates.exchanged"]] == [1, 11, 10]
    assert shop.value("select taken from rate_window where key = 'ann'") == 120


def taken(limiter: RateLimiter, rate: Rate, times: int) -> int:
    """How many of so many requests pass."""
    return sum(limiter.take("user", "ann", rate).allowed for _ in range(times))


class Started:
    """Programs that do not outlive the test."""

    def __init__(self, count: int, dsn: str, requests: int) -> None:
        command = [sys.executable, "-m", "tests.postgres.rate_process", dsn, str(requests)]
        self.programs = [
            subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]

    def __enter__(self) -> list["subprocess.Popen[str]"]:
        return self.programs

    def __exit__(self, *problem: object) -> None:
        for program in self.programs:
            if program.poll() is None:
                program.kill()
            program.communicate()


async def test_one_exchange_carries_all_keys_and_requests_cause_none(shop: Shop):
    signals = Signals()
    async with limiter_of(shop, signals, interval=60.0) as limiter:
        for number in range(500):
            limiter.take("user", str(number), Rate("user", 100, LONG))
            limiter.take("logs", "INV-1", Rate("resource", 10_000, LONG))
        await exchanged(limiter, signals)

    assert signals.counts["rates.exchanged"] == 1
    assert signals.totals["rates.exchanged"] == 1000
    assert shop.value("select count(*) from rate_window") == 501


async def test_a_key_that_is_used_hard_does_not_wait_for_the_interval(shop: Shop):
    signals = Signals()
    async with limiter_of(shop, signals, interval=60.0) as limiter:
        for _ in range(9):
            limiter.take("user", "ann", Rate("user", 100, LONG))
        assert not limiter._hurry.is_set()
        limiter.take("user", "ann", Rate("user", 100, LONG))

        await signals.wait_total("rates.exchanged", 10)


async def test_windows_are_told_by_the_clock_of_the_database(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 5_000_000)
    signals = Signals()
    now = f"floor(extract(epoch from now()) / {LONG})"
    before = shop.value(f"select {now}")
    async with limiter_of(shop, signals, interval=60.0) as limiter:
        await signals_up(limiter)
        limiter.take("user", "ann", Rate("user", 100, LONG))
        await exchanged(limiter, signals)

    assert shop.value(f"select number between %s and {now} from rate_window", [before])


async def signals_up(limiter: RateLimiter) -> None:
    """Until the limiter has heard the database's clock."""
    before = limiter._offset
    async with asyncio.timeout(60):
        while limiter._offset == before:  # noqa: ASYNC110 - no point is reached before the first exchange
            await asyncio.sleep(0.01)


@pytest.mark.contract("L9")
async def test_without_the_database_limits_hold_here_and_counts_are_told_later(shop: Shop):
    rate, signals = Rate("user", 100, LONG), Signals()
    async with FaultProxy(shop.dsn) as proxy:
        limiter = RateLimiter(Database(proxy.dsn), shop.outbox, interval=rate_limit.SHORTEST, probe=signals)
        async with limiter:
            limiter.take("user", "ann", rate)
            await exchanged(limiter, signals)
            proxy.faults.black_hole = True
            proxy.reset()

            assert sum(limiter.take("user", "ann", rate).allowed for _ in range(200)) == 99
            await signals.wait("database.lost")
            assert not limiter.take("user", "ann", rate).allowed

            proxy.heal()
            await exchanged(limiter, signals)

    assert shop.value("select taken from rate_window") == 100


async def test_after_a_crash_of_the_server_nobody_starts_from_nothing(shop: Shop):
    rate, signals = Rate("user", 100, LONG), Signals()
    async with limiter_of(shop, signals) as limiter:
        for _ in range(90):
            limiter.take("user", "ann", rate)
        await exchanged(limiter, signals)
        # What PostgreSQL does with an unlogged table after a crash.
        shop.rows("truncate rate_window")
        assert limiter.take("user", "ann", rate).allowed
        await exchanged(limiter, signals)

        assert sum(limiter.take("user", "ann", rate).allowed for _ in range(50)) == 9


@pytest.mark.parametrize("key", ["\x00", "\ud800", "k" * 300, "", "ü" * 255, "a'b\"c%s"], ids=repr)
async def test_any_key_can_be_counted(shop: Shop, key: str):
    signals, rate = Signals(), Rate("user", 2, LONG)
    async with limiter_of(shop, signals) as limiter, limiter_of(shop) as other:
        limiter.take("n" * 300, key, rate)
        limiter.take("n" * 300, key, rate)
        await exchanged(limiter, signals)
        other.take("n" * 300, key, rate)
        await until(lambda: not other._unsent)
        await until(lambda: not other.take("n" * 300, key, rate).allowed)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no point of the service tells
            await asyncio.sleep(0.01)


async def test_long_names_with_the_same_beginning_are_counted_apart(shop: Shop):
    signals, rate = Signals(), Rate("user", 5, LONG)
    async with limiter_of(shop, signals) as limiter:
        for ending in ("a", "b"):
            limiter.take("n" * 120 + ending, "ann", rate)
        await exchanged(limiter, signals)

    assert shop.rows("select taken from rate_window") == [(1,), (1,)]


async def test_old_windows_are_removed(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate_limit, "FORGET_SECONDS", 0.0)
    shop.rows(
        "insert into rate_window values ('user', 'old', 86400, extract(epoch from now())::bigint / 86400 - 4, 1),"
        " ('user', 'last', 86400, extract(epoch from now())::bigint / 86400 - 1, 1)"
    )
    async with limiter_of(shop):
        await shop.value_becomes("select count(*) from rate_window", 1)

    assert shop.rows("select key from rate_window") == [("last",)]


async def test_two_processes_that_count_the_same_keys_never_wait_in_a_circle(shop: Shop):
    keys = [str(number) for number in range(300)]
    here, there = Signals(), Signals()
    rate = Rate("user", 1_000_000, LONG)
    options = {"interval": rate_limit.SHORTEST}
    async with limiter_of(shop, here, **options) as one, limiter_of(shop, there, **options) as two:
        for _ in range(10):
            for key in keys:
                one.take("user", key, rate)
            for key in reversed(keys):
                two.take("user", key, rate)
            await asyncio.gather(here.next("rates.exchanged"), there.next("rates.exchanged"))

    assert here.counts["database.lost"] == there.counts["database.lost"] == 0
    assert shop.value("select sum(taken) from rate_window") == 2 * 10 * 300
