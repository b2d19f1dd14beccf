"""What an operator sees of the lives of a log, and says about them: `status`, `doctor`, `restored`; and what counts."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from aftercommit.cli import cli
from aftercommit.client.bookmark_table import PostgresBookmark
from aftercommit.clock import utc_now
from aftercommit.contrib.telegram import Link, open_store
from aftercommit.operate import Repair
from aftercommit.operate.doctor import Finding, diagnose
from aftercommit.operate.health import problems
from aftercommit.operate.overview import Overview, overview
from aftercommit.postgres import lives
from aftercommit.schema.partitions import existing, retain
from tests.feed.journal import until
from tests.support.programs import CLEANED
from tests.support.relays import relay_on
from tests.support.shop import Shop


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CLEANED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AFTERCOMMIT_HOME", str(tmp_path / "home"))


async def appended(shop: Shop, count: int) -> None:
    """So many events in the log, more than before."""
    wanted = shop.value("select count(*) from log") + count
    async with relay_on(shop):
        for number in range(count):
            shop.place("o-1", number)
        await until(lambda: shop.value("select count(*) from log") == wanted)


async def begin(shop: Shop) -> lives.Life:
    async with await psycopg.AsyncConnection.connect(shop.dsn, autocommit=True) as connection:
        return await lives.begin(connection, shop.outbox.shape, "a test wanted it")


def run(shop: Shop, *arguments: str, **options: Any) -> Result:
    # In a thread of its own: a command runs an event loop, and so do the tests.
    with ThreadPoolExecutor(1) as thread:
        given = [*arguments, "--dsn", shop.dsn, "--schema", "shop"]
        return thread.submit(CliRunner().invoke, cli, given, **options).result()


def look(shop: Shop) -> Overview:
    with shop.connect(autocommit=True) as connection:
        return overview(connection, shop.outbox.shape)


def doctor(shop: Shop, check: str) -> list[Finding]:
    return [each for each in diagnose(shop.database, lambda _: shop.outbox.shape) if each.check == check]


async def test_lags_rates_and_the_doctor_count_events_and_not_the_positions_between_two_lives(shop: Shop) -> None:
    await appended(shop, 5)
    shop.rows("insert into consumer (name, position, declared_by) values ('slow', 2, '*')")
    life = await begin(shop)
    await appended(shop, 4)

    seen = look(shop)

    assert seen.head == life.base + 4
    assert [(each.lag, each.lost, each.is_ahead) for each in seen.consumers] == [(7, 0, False)]
    assert seen.delivered_rate == pytest.approx(9 / 60)
    assert seen.life is not None
    assert (seen.life.number, seen.life.previous_last, seen.life.reason) == (2, 5, "a test wanted it")
    for check in ("log", "partitions", "life"):
        assert [each.level for each in doctor(shop, check)] == ["ok"], doctor(shop, check)


async def test_a_new_life_without_an_event_is_nothing_to_worry_about(shop: Shop) -> None:
    await appended(shop, 3)
    await begin(shop)
    await begin(shop)

    assert [each.level for each in doctor(shop, "log")] == ["ok"]
    assert shop.value("select gaps::text from head").count("[") == 1


async def test_status_shows_the_life_that_a_restore_began(shop: Shop) -> None:
    await appended(shop, 1)
    assert "life of the log" not in run(shop, "status").output
    life = await begin(shop)

    shown = run(shop, "status").output

    assert "life of the log" in shown
    assert str(life.base) in shown
    assert "a test wanted it" in shown
    assert json.loads(run(shop, "status", "--json").stdout)["life"]["number"] == 2


async def test_restored_asks_before_it_begins_a_life_and_dry_run_changes_nothing(shop: Shop) -> None:
    await appended(shop, 2)

    refused = run(shop, "restored", input="n\n")
    assert refused.exit_code == 1
    dry = run(shop, "restored", "--dry-run")
    assert dry.exit_code == 0
    assert "life 1 ends at position 2" in dry.output
    assert shop.value("select count(*) from life") == 1

    done = run(shop, "restored", "--yes", "--json", "--reason", "snapshot of Monday")
    told = json.loads(done.stdout)
    assert (told["number"], told["previous_last"], told["reason"]) == (2, 2, "snapshot of Monday")
    above = json.loads(run(shop, "restored", "--yes", "--json", "--above", str(4 * 10**15)).stdout)
    assert above["base"] == 4 * 10**15 + 1


async def test_a_log_that_is_younger_than_its_consumers_is_seen(shop: Shop) -> None:
    await appended(shop, 3)
    shop.rows("insert into consumer (name, position, declared_by) values ('ahead', 7, '*')")

    found = [each.found for each in problems(look(shop))]
    assert any("has read up to 7, past the end of the log" in each for each in found), found

    assert run(shop, "restored", "--yes").exit_code == 0
    assert not look(shop).consumers[0].is_ahead


async def test_the_doctor_does_not_compare_places_of_other_logs_with_this_one(shop: Shop) -> None:
    await appended(shop, 3)
    bookmark = PostgresBookmark(shop.dsn, "billing")
    bookmark.save("2026-01-01T00:00:00.000Z#042")
    bookmark.close()
    state = open_store(shop.dsn)
    state.prepare()
    state.put_link(Link(700000002, "2", "Grace", "en", "52", utc_now()))
    state.close()

    assert [each.level for each in doctor(shop, "life")] == ["ok"]


async def test_the_doctor_sees_a_server_on_which_the_next_life_has_not_begun(shop: Shop) -> None:
    await appended(shop, 1)
    shop.rows("update life set timeline = 4711")

    [finding] = doctor(shop, "life")

    assert finding.level == "problem"
    assert "was 4711" in finding.found
    assert "start a relay" in (finding.remedy or "")


async def test_a_time_is_sought_across_the_jump(shop: Shop) -> None:
    await appended(shop, 3)
    life = await begin(shop)
    moment = shop.value("select clock_timestamp()")
    await appended(shop, 3)
    shop.rows("insert into consumer (name, position, declared_by) values ('reader', 0, '*')")

    sought = await Repair(shop.outbox, shop.database, by="me").seek("reader", moment, dry_run=True)

    assert 3 <= sought.after <= life.base
    assert sought.events == 3


async def test_retention_drops_the_partitions_of_a_life_that_is_over_and_none_are_made_between(shop: Shop) -> None:
    await appended(shop, 3)
    await begin(shop)
    await appended(shop, 3)
    with shop.connect(autocommit=True) as connection:
        assert len(existing(connection, shop.outbox.shape)) == 6
        moment = shop.value("select clock_timestamp()")
        dropped = retain(connection, shop.outbox.shape, older_than=moment)
        assert dropped.partitions == ("log_000000", "log_000001", "log_000002")
        assert dropped.reason == "it is not full"
    assert shop.value("select count(*) from log") == 3
