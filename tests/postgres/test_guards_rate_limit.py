"""Rate limits across processes: the bound that is documented, the database's clock, and life without a database."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aftercommit.access import rate_limiter
from aftercommit.access.key_count import Allowance, Rate
from aftercommit.access.rate_limiter import RateLimiter
from aftercommit.postgres.database import Database
from aftercommit.testing.fault_proxy import FaultProxy
from aftercommit.testing.signals import Signals
from tests.support.shop import Shop

REPOSITORY = Path(__file__).resolve().parents[2]
DAY = 86_400
TOTAL = "select coalesce(sum(each), 0)::int from rate_log, unnest(taken) as each"
STUCK = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
# Programs know the database's clock by an estimate.
INEXACT = 0.05


def limiter_of(shop: Shop, signals: Signals | None = None, **options: Any) -> RateLimiter:
    return RateLimiter(shop.database, shop.outbox, probe=signals, **options)


async def exchanged(limiter: RateLimiter, signals: Signals) -> None:
    """Until everything that was let through so far is known to the others."""
    limiter._hurry.set()
    await signals.until(lambda: not limiter._active, "not everything was exchanged")


async def taken(limiter: RateLimiter, rate: Rate, times: int, key: str = "ann") -> int:
    """How many of so many requests pass, all at once."""
    found = await asyncio.gather(*(limiter.take("user", key, rate) for _ in range(times)))
    return sum(each.allowed for each in found)


@pytest.mark.contract("L9", "E6")
async def test_what_one_process_lets_through_counts_for_the_others(shop: Shop):
    rate = Rate("user", 100, DAY)
    async with limiter_of(shop) as one, limiter_of(shop) as two:
        assert await taken(one, rate, 60) == 60

        assert await taken(two, rate, 60) == 40
        assert (await two.take("user", "bob", rate)).allowed
    assert shop.value(f"{TOTAL} where key = 'ann'") == 100


@pytest.mark.contract("L9", "E6")
@pytest.mark.parametrize(("requests", "at_once"), [(100, 40), (1000, 200)])
async def test_bursts_over_several_processes_stay_within_the_documented_bound(shop: Shop, requests: int, at_once: int):
    rate = Rate("resource", requests, DAY)
    async with limiter_of(shop) as one, limiter_of(shop) as two:
        passed = 0
        for _ in range(3 * requests // at_once):
            halves = await asyncio.gather(*(taken(each, rate, at_once // 2) for each in (one, two)))
            passed += sum(halves)

        assert requests <= passed <= requests + rate.share
        # Known to both by now: the next is refused from memory.
        assert [await taken(each, rate, 10) for each in (one, two)] == [0, 0]


@pytest.mark.thorough
@pytest.mark.contract("E6")
async def test_in_any_stretch_of_time_several_processes_let_no_more_through_than_the_bound(shop: Shop):
    """Real processes ask as fast as they can, for several windows: also across what would be the turn of one."""
    processes, rate = 3, Rate("user", 100, 2)
    with Started(processes, shop.dsn, rate) as running:
        for program in running:
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "ready\n"
        for program in running:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        told = [json.loads((await asyncio.to_thread(program.communicate, None, 100))[0]) for program in running]

    passed = [each for program in told for each in program]
    width = rate.seconds - INEXACT
    # A program may be held up after it was let through: what counts is asked and answered within the window.
    most = max(sum(begin <= asked and got <= begin + width for asked, got in passed) for begin, _ in passed)
    assert most <= rate.requests + (processes - 1) * rate.share
    assert len(passed) >= 2 * rate.requests


@pytest.mark.contract("E6")
async def test_a_request_that_arrives_during_an_exchange_waits_for_its_answer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    """The exchange may grant all that is left to requests that waited: one that passes meanwhile exceeds the limit."""
    monkeypatch.setattr(rate_limiter, "ASK_SECONDS", 60.0)
    rate, signals = Rate("user", 3, DAY), Signals()
    async with limiter_of(shop, signals) as limiter:
        passed = [(await limiter.take("user", "ann", rate)).allowed]
        await exchanged(limiter, signals)
        with shop.connect() as first, shop.connect() as second:
            first.execute("select from shop.rate_log for update")
            async with asyncio.TaskGroup() as tasks:

                def asks() -> "asyncio.Task[Allowance]":
                    return tasks.create_task(limiter.take("user", "ann", rate))

                waiting = [asks()]
                await shop.value_becomes(STUCK, 1)
                waiting.append(asks())
                # The next exchange waits for this lock, which is next in the queue.
                queued = asyncio.create_task(asyncio.to_thread(second.execute, "select from shop.rate_log for update"))
                await shop.value_becomes(STUCK, 2)
                first.commit()
                await queued
                await signals.wait_total("rates.exchanged", 2)
                await shop.value_becomes(STUCK, 1)
                waiting.append(asks())
                await asyncio.sleep(0)
                second.commit()
            passed += [each.result().allowed for each in waiting]

    assert sum(passed) == 3


@pytest.mark.contract("E6")
async def test_what_a_process_decides_alone_during_an_exchange_comes_on_top(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rate_limiter, "ASK_SECONDS", 0.01)
    rate, signals = Rate("user", 1000, DAY), Signals()
    async with limiter_of(shop, signals) as earlier:
        # Where the key is new, a process trusts its own log for a while.
        await earlier.take("user", "ann", rate)
        await exchanged(earlier, signals)
    async with limiter_of(shop, signals, interval_seconds=60.0) as limiter:
        await limiter.take("user", "ann", rate)
        await exchanged(limiter, signals)
        with shop.connect() as other:
            other.execute("select from shop.rate_log for update")
            await limiter.take("user", "ann", rate)
            limiter._hurry.set()
            await shop.value_becomes(STUCK, 1)
            for _ in range(3):
                await limiter.take("user", "ann", rate)
        await signals.wait_total("rates.exchanged", 3)

        assert (await limiter.take("user", "ann", rate)).remaining == 1000 - 7


class Started:
    """Programs that do not outlive the test."""

    def __init__(self, count: int, dsn: str, rate: Rate) -> None:
        command = [sys.executable, "-m", "tests.support.rate_process", dsn, str(rate.requests), str(rate.seconds)]
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


@pytest.mark.thorough
@pytest.mark.contract("E6")
async def test_who_stays_within_the_limit_is_never_refused_whichever_process_answers(shop: Shop):
    rate, passed = Rate("user", 20, 1), 0
    async with limiter_of(shop) as one, limiter_of(shop) as two:
        began = time.monotonic()
        for number in range(60):
            # A little slower than allowed: what keeps this test waiting must not make it faster later.
            await asyncio.sleep(max(0.0, began + number * 0.055 - time.monotonic()))
            late = time.monotonic() - began - number * 0.055
            began += late
            passed += (await (one, two)[number % 2].take("user", "ann", rate)).allowed

    assert passed == 60


async def test_what_is_given_back_is_free_for_all(shop: Shop):
    rate, here, there = Rate("user", 100, DAY), Signals(), Signals()
    async with limiter_of(shop, here) as one, limiter_of(shop, there) as two:
        assert await taken(one, rate, 100) == 100
        for _ in range(30):
            one.give_back("user", "ann", rate)
        await exchanged(one, here)

        assert await taken(two, rate, 50) == 30


async def test_one_exchange_carries_all_keys_and_requests_cause_none(shop: Shop):
    signals = Signals()
    async with limiter_of(shop, signals, interval_seconds=60.0) as limiter:
        for number in range(500):
            await limiter.take("user", str(number), Rate("user", 100, DAY))
            await limiter.take("logs", "INV-1", Rate("resource", 100_000, DAY))
        await exchanged(limiter, signals)

    assert signals.counts["rates.exchanged"] == 1
    assert signals.totals["rates.exchanged"] == 1000
    assert shop.value("select count(*) from rate_log") == 501


async def test_moments_are_told_by_the_clock_of_the_database(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 5_000_000)
    signals = Signals()
    async with limiter_of(shop, signals, interval_seconds=60.0) as limiter:
        await until(lambda: abs(limiter._offset + time.monotonic() - real()) < 60)
        await limiter.take("user", "ann", Rate("user", 100, DAY))
        await exchanged(limiter, signals)

    assert shop.value("select abs(extract(epoch from now()) - moments[1] / 1000000) < 60 from rate_log")


@pytest.mark.thorough
@pytest.mark.contract("E6")
async def test_a_clock_that_is_set_back_freezes_nobody_for_longer_than_a_window(shop: Shop):
    rate = Rate("user", 10, 2)
    async with limiter_of(shop) as limiter:
        assert await taken(limiter, rate, 20) == 10
        # As if all of it had been written before the clock was set back by an hour.
        shop.rows("update rate_log set moments = array(select each + 3600000000 from unnest(moments) as each)")
    async with limiter_of(shop) as limiter:
        # The first is let through on the share of this process; then it hears of the others.
        assert await taken(limiter, rate, 5) == 1
        refused = await limiter.take("user", "ann", rate)
        assert 0 < refused.retry_after <= 2
        # The window counts from when this limiter heard of them, which is before now.
        began = time.monotonic()
        await until(lambda: time.monotonic() > began + 2.1)
        assert await taken(limiter, rate, 9) == 9


@pytest.mark.contract("L9")
async def test_without_the_database_limits_hold_here_and_are_told_later(shop: Shop):
    rate, signals = Rate("user", 100, DAY), Signals()
    async with FaultProxy(shop.dsn) as proxy:
        limiter = RateLimiter(Database(proxy.dsn), shop.outbox, interval_seconds=rate_limiter.SHORTEST, probe=signals)
        async with limiter:
            await limiter.take("user", "ann", rate)
            await exchanged(limiter, signals)
            proxy.faults.black_hole = True
            proxy.reset()

            began = time.monotonic()
            assert await taken(limiter, rate, 200) == 99
            assert time.monotonic() - began < 20 * rate_limiter.ASK_SECONDS
            await signals.wait("database.lost")
            assert not (await limiter.take("user", "ann", rate)).allowed

            proxy.heal()
            await exchanged(limiter, signals)

    assert shop.value(TOTAL) == 100


async def test_a_limiter_that_nobody_asks_notices_that_its_database_is_gone(shop: Shop):
    signals = Signals()
    async with FaultProxy(shop.dsn) as proxy:
        limiter = RateLimiter(Database(proxy.dsn), shop.outbox, probe=signals)
        async with limiter:
            await limiter.up.wait()
            proxy.reset()
            await signals.wait("database.lost")


@pytest.mark.contract("L9")
async def test_a_database_that_hangs_keeps_those_who_ask_waiting_once(shop: Shop):
    rate, signals = Rate("user", 100, DAY), Signals()
    async with FaultProxy(shop.dsn) as proxy:
        limiter = RateLimiter(Database(proxy.dsn), shop.outbox, interval_seconds=60.0, probe=signals)
        async with limiter:
            await limiter.take("user", "ann", rate)
            await exchanged(limiter, signals)
            proxy.faults.black_hole = True

            assert await taken(limiter, rate, 50) == 50
            began = time.monotonic()
            assert await taken(limiter, rate, 100) == 49
            assert time.monotonic() - began < rate_limiter.ASK_SECONDS
            proxy.heal()


async def test_after_a_crash_of_the_server_nobody_starts_from_nothing(shop: Shop):
    rate, signals = Rate("user", 100, DAY), Signals()
    async with limiter_of(shop, signals) as limiter:
        assert await taken(limiter, rate, 90) == 90
        await exchanged(limiter, signals)
        # What PostgreSQL does with an unlogged table after a crash.
        shop.rows("truncate rate_log")
        assert (await limiter.take("user", "ann", rate)).allowed
        await exchanged(limiter, signals)

        assert await taken(limiter, rate, 50) == 9


@pytest.mark.parametrize("key", ["\x00", "\ud800", "k" * 300, "", "ü" * 255, "a'b\"c%s"], ids=repr)
async def test_any_key_can_be_counted(shop: Shop, key: str):
    signals, rate = Signals(), Rate("user", 2, DAY)
    async with limiter_of(shop, signals) as limiter, limiter_of(shop) as other:
        assert await taken(limiter, rate, 2, key) == 2
        await exchanged(limiter, signals)
        # One on its own share, and then it has heard.
        await taken(other, rate, 2, key)
        assert await taken(other, rate, 2, key) == 0


async def test_long_names_with_the_same_beginning_are_counted_apart(shop: Shop):
    signals, rate = Signals(), Rate("user", 5, DAY)
    async with limiter_of(shop, signals) as limiter:
        for ending in ("a", "b"):
            await limiter.take("n" * 120 + ending, "ann", rate)
        await exchanged(limiter, signals)

    assert shop.rows("select taken from rate_log") == [([1],), ([1],)]


async def test_old_logs_are_removed(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate_limiter, "FORGET_SECONDS", 0.0)
    ago = "array[(extract(epoch from now()) * 1000000)::bigint - {} * 1000000::bigint]"
    shop.rows(
        f"insert into rate_log values ('user', 'old', 60, 0, {ago.format(61)}, '{{1}}'),"
        f" ('user', 'none', 60, 0, '{{}}', '{{}}'), ('user', 'last', 86400, 0, {ago.format(61)}, '{{1}}')"
    )
    async with limiter_of(shop):
        await shop.value_becomes("select count(*) from rate_log", 1)

    assert shop.rows("select key from rate_log") == [("last",)]


@pytest.mark.thorough
async def test_two_processes_that_count_the_same_keys_never_wait_in_a_circle(shop: Shop):
    keys = [str(number) for number in range(300)]
    here, there = Signals(), Signals()
    rate = Rate("user", 1_000_000, DAY)
    options = {"interval_seconds": 0.02}
    async with limiter_of(shop, here, **options) as one, limiter_of(shop, there, **options) as two:
        for _ in range(10):
            for key in keys:
                await one.take("user", key, rate)
            for key in reversed(keys):
                await two.take("user", key, rate)
            await asyncio.gather(here.next("rates.exchanged"), there.next("rates.exchanged"))

    assert here.counts["database.lost"] == there.counts["database.lost"] == 0
    assert shop.value(TOTAL) == 2 * 10 * 300


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no point of the service tells
            await asyncio.sleep(0.01)
