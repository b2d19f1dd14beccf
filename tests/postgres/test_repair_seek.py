"""A checkpoint that is moved by hand: to where, past whom, and what is handled then."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aftercommit.cli import cli
from aftercommit.errors import ConsumerNameTaken, RepairError
from aftercommit.operate import SeekTarget, Selection
from aftercommit.operate.repair import seeking
from tests.postgres.test_repair_races import Held
from tests.support.consuming import append, checkpoint, inbox, letters, numbered, place_in_log, settled, worker_on
from tests.support.repairing import Fragile, desk, forget_inbox_before
from tests.support.shop import OrderPlaced, Shop


async def five_handled(shop: Shop, **options: Any) -> Fragile:
    """A consumer that has handled five events."""
    fragile = Fragile(shop, **options)
    place_in_log(shop, *numbered(5))
    await fragile.work()
    return fragile


def run(shop: Shop, *arguments: str, answer: str | None = None) -> Result:
    """The command line on the shop's database."""
    return CliRunner().invoke(cli, ["consumers", *arguments, "--dsn", shop.dsn], input=answer)


class TestPlaces:
    @pytest.mark.parametrize(("to", "position"), [("start", 0), ("end", 5), (2, 2), (0, 0), (5, 5)])
    async def test_a_checkpoint_goes_where_it_is_told_and_it_is_on_record(
        self, shop: Shop, to: SeekTarget, position: int
    ) -> None:
        await five_handled(shop)
        sought = await desk(shop).seek("index", to, reason="again, please")
        assert (sought.before, sought.after, checkpoint(shop, "index")) == (5, position, position)
        assert (sought.events, sought.handled, sought.unknown) == (5 - position, 5 - position, 0)
        (operation,) = await desk(shop).operations(["seek"])
        assert (operation.id, operation.status, operation.target) == (sought.operation_id, "done", "index")
        assert (operation.requested_by, operation.reason) == ("tester", "again, please")
        assert operation.detail == {"from": 5, "to": position, "forced": False}

    @pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7])
    async def test_a_moment_is_the_place_before_what_was_published_then_or_later(self, shop: Shop, at: int) -> None:
        Fragile(shop)
        await five_handled_at_hours(shop)
        sought = await desk(shop).seek("index", datetime(2026, 3, 1, at, tzinfo=UTC), dry_run=True)
        assert sought.after == min(at - 1, 5)

    async def test_start_is_the_first_event_that_is_kept(self, shop: Shop) -> None:
        await five_handled(shop)
        shop.rows("delete from log where position <= 3")
        assert (await desk(shop).seek("index", "start")).after == 3
        with pytest.raises(RepairError, match=r"position 2 is not in the log, which has 4 to 5"):
            await desk(shop).seek("index", 2)

    @pytest.mark.parametrize(
        ("to", "said"),
        [
            (6, "position 6 is not in the log, which has 1 to 5"),
            (-1, "position -1 is not in the log"),
            (True, "True is not a place in the log"),
            ("middle", "'middle' is not a place in the log"),
            (datetime(2026, 3, 1, tzinfo=UTC).replace(tzinfo=None), "has no time zone"),
        ],
    )
    async def test_a_place_that_is_none_is_refused(self, shop: Shop, to: Any, said: str) -> None:
        await five_handled(shop)
        with pytest.raises(RepairError, match=said):
            await desk(shop).seek("index", to)
        assert checkpoint(shop, "index") == 5
        assert shop.value("select count(*) from operation") == 0

    async def test_only_a_consumer_of_the_log_has_a_checkpoint(self, shop: Shop) -> None:
        await five_handled(shop)
        with pytest.raises(
            RepairError, match=r"'mailer' has no checkpoint: only .* follow the log .* Known consumers: index"
        ):
            await desk(shop).seek("mailer", "start")


async def five_handled_at_hours(shop: Shop) -> None:
    """Five events, published at one, two, three, four and five o'clock, and a consumer at the end of them."""
    place_in_log(shop, *numbered(5))
    shop.rows("update log set ts = '2026-03-01T00:00Z'::timestamptz + position * interval '1 hour'")
    shop.rows("insert into consumer (name, position, declared_by) values ('index', 5, 'order.placed')")


class TestWhatIsHandledThen:
    async def test_going_back_handles_what_the_inbox_does_not_know_and_nothing_else(self, shop: Shop) -> None:
        fragile = await five_handled(shop)
        shop.rows("delete from processed_events where event_id = (select id from log where position = 3)")
        sought = await desk(shop).seek("index", "start")
        assert (sought.events, sought.handled, sought.goes_back) == (5, 4, True)
        await fragile.work()
        assert fragile.ledger.numbers() == [0, 1, 2, 3, 4, 2]
        assert checkpoint(shop, "index") == 5

    async def test_without_an_inbox_everything_is_handled_again(self, shop: Shop) -> None:
        fragile = await five_handled(shop, inbox=False)
        assert not (await desk(shop).seek("index", 3)).keeps_inbox
        await fragile.work()
        assert fragile.ledger.numbers() == [0, 1, 2, 3, 4, 3, 4]

    async def test_what_is_passed_over_is_never_handled(self, shop: Shop) -> None:
        fragile = await five_handled(shop)
        place_in_log(shop, ("o-1", 5), ("o-1", 6))
        sought = await desk(shop).seek("index", 6)
        assert (sought.events, sought.handled, sought.goes_back) == (1, 0, False)
        await fragile.work()
        assert fragile.ledger.numbers() == [0, 1, 2, 3, 4, 6]

    @pytest.mark.thorough
    async def test_an_event_with_an_open_letter_goes_the_letters_way(self, shop: Shop) -> None:
        fragile = Fragile(shop, 2)
        place_in_log(shop, *numbered(5))
        await fragile.work()
        await desk(shop).seek("index", "start")
        await fragile.work()
        assert letters(shop) == [("parked", 1)]
        fragile.mend()
        await desk(shop).retry(Selection(consumer="index"))
        await fragile.work()
        assert fragile.ledger.numbers() == [0, 1, 3, 4, 2]

    async def test_it_says_of_how_many_the_inbox_cannot_know(self, shop: Shop) -> None:
        await five_handled(shop)
        shop.rows("update log set created_at = '2020-01-01Z' where position <= 2")
        forget_inbox_before(shop, "2100-01-01Z")
        assert inbox(shop, "index") == 0
        assert (await desk(shop).seek("index", "start", dry_run=True)).unknown == 5


class TestWorkers:
    async def test_a_consumer_at_work_is_not_moved(self, shop: Shop) -> None:
        fragile = await five_handled(shop)
        async with worker_on(shop, fragile.consumer, lease_seconds=600.0):
            with pytest.raises(ConsumerNameTaken, match=r"is running consumer .*: stop that worker .* force=True"):
                await desk(shop).seek("index", "start")
            assert (await desk(shop).seek("index", "start", dry_run=True)).worker is not None
        assert checkpoint(shop, "index") == 5

    @pytest.mark.thorough
    @pytest.mark.parametrize("remembers", [True, False], ids=["inbox", "no inbox"])
    async def test_by_force_the_worker_begins_anew_from_the_new_place(self, shop: Shop, remembers: bool) -> None:
        """One that rests holds its place in memory as well: it must not go on from there."""
        fragile = await five_handled(shop, inbox=remembers)
        shop.rows("delete from processed_events")
        async with worker_on(shop, fragile.consumer):
            await settled(shop, "index")
            await desk(shop).seek("index", 2, force=True)
            await shop.value_becomes("select count(*)::int from public.ledger", 8)
            await settled(shop, "index")
            place_in_log(shop, ("o-1", 5))
            await settled(shop, "index")
        assert fragile.ledger.numbers() == [0, 1, 2, 3, 4, 2, 3, 4, 5]

    @pytest.mark.parametrize("concurrency", [1, 4])
    async def test_by_force_what_is_in_hand_is_waited_for(
        self, shop: Shop, concurrency: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(seeking, "PATIENCE", 60.0)
        held = Held(shop, concurrency=concurrency)
        held.held = True
        place_in_log(shop, *numbered(2))
        async with worker_on(shop, held.consumer):
            await asyncio.wait_for(held.inside.wait(), 60)
            seeking_back = asyncio.create_task(desk(shop).seek("index", "end", force=True))
            await shop.value_becomes(
                "select count(*)::int from pg_stat_activity where datname = current_database() "
                "and wait_event_type = 'Lock' and query like '%for update%'",
                1,
            )
            held.held = False
            held.gate.set()
            await seeking_back
            place_in_log(shop, ("o-1", 2))
            await settled(shop, "index")
        assert held.ledger.numbers()[-1] == 2
        assert checkpoint(shop, "index") == 3

    async def test_a_handler_that_takes_too_long_is_not_waited_for(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(seeking, "PATIENCE", 0.05)
        held = Held(shop)
        held.held = True
        place_in_log(shop, ("o-1", 1))
        async with worker_on(shop, held.consumer):
            await asyncio.wait_for(held.inside.wait(), 60)
            with pytest.raises(RepairError, match=r"has been handling events for 0.05 s: nothing was moved"):
                await desk(shop).seek("index", "start", force=True)
            held.gate.set()
            await settled(shop, "index")
        assert held.ledger.numbers() == [1]


class TestCommand:
    def test_it_counts_asks_and_moves(self, shop: Shop) -> None:
        asyncio.run(five_handled(shop))
        no = run(shop, "seek", "index", "--to", "2", answer="n\n")
        assert no.exit_code == 1
        assert "3 events in between: all are in the inbox and will be skipped" in no.stderr
        assert no.stderr.endswith("nothing was changed\n")
        assert checkpoint(shop, "index") == 5
        yes = run(shop, "seek", "index", "--to", "2", "--reason", "once more", answer="y\n")
        assert yes.exit_code == 0, yes.output
        assert yes.stdout.splitlines()[0] == "index: 5 -> 2"
        assert "continues after position 2" in yes.stderr
        assert shop.rows("select kind, reason from operation") == [("seek", "once more")]

    def test_a_dry_run_and_json(self, shop: Shop) -> None:
        asyncio.run(five_handled(shop))
        tried = json.loads(run(shop, "seek", "index", "--to", "start", "--dry-run", "--json").stdout)
        assert (tried["before"], tried["after"], tried["events"], tried["dry_run"]) == (5, 0, 5, True)
        assert checkpoint(shop, "index") == 5
        done = json.loads(run(shop, "seek", "index", "--to", "2h", "--yes", "--json").stdout)
        assert (done["after"], done["dry_run"]) == (0, False)
        assert done["operation_id"] is not None

    def test_events_that_would_never_be_handled_are_counted(self, shop: Shop) -> None:
        asyncio.run(five_handled(shop))
        shop.publish(OrderPlaced("o-1", 5))
        append(shop)
        said = run(shop, "seek", "index", "--to", "end", "--dry-run").stderr
        assert "1 event in between: it was not handled and will be skipped" in said

    @pytest.mark.parametrize(("to", "from_there"), [("start", 5), ("end", 0)])
    def test_events_with_an_open_letter_are_counted_apart(self, shop: Shop, to: str, from_there: int) -> None:
        async def work() -> None:
            fragile = Fragile(shop, 1, 3)
            place_in_log(shop, *numbered(5))
            await fragile.work()

        asyncio.run(work())
        shop.rows("delete from processed_events where event_id = (select id from log where position = 5)")
        shop.rows("update consumer set position = %s", (from_there,))
        said = run(shop, "seek", "index", "--to", to, "--dry-run").stderr
        letters, rest = "2 have an open dead letter, which stays", "1 will be handled"
        handled = "2 are in the inbox and will be skipped"
        if to == "end":
            handled, rest = "2 were handled", "1 was not handled and will be skipped"
        assert said.splitlines()[0] == f"5 events in between: {handled}, {letters}, {rest}"

    async def test_an_event_with_an_open_letter_goes_its_way_in_both_directions(self, shop: Shop) -> None:
        fragile = Fragile(shop, 1)
        place_in_log(shop, *numbered(3))
        await fragile.work()
        fragile.mend()
        sought = await desk(shop).seek("index", "start")
        assert (sought.events, sought.handled, sought.lettered, sought.unknown) == (3, 2, 1, 0)
        await fragile.work()
        assert (checkpoint(shop, "index"), fragile.ledger.numbers()) == (3, [0, 2])
        await desk(shop).seek("index", "start")
        await desk(shop).seek("index", "end")
        await desk(shop).retry(Selection(consumer="index"))
        await fragile.work()
        assert fragile.ledger.numbers() == [0, 2, 1]

    def test_who_is_there_already_is_asked_nothing(self, shop: Shop) -> None:
        asyncio.run(five_handled(shop))
        result = run(shop, "seek", "index", "--to", "end")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "consumer 'index' is already at position 5: nothing was moved\n"
        document = json.loads(run(shop, "seek", "index", "--to", "end", "--json").stdout)
        assert (document["before"], document["after"], document["dry_run"]) == (5, 5, False)
        assert shop.value("select count(*) from operation") == 0

    @pytest.mark.parametrize("to", ["middle", "-1", "99999999999999999999", "2026-13-01"])
    def test_a_place_that_is_none_is_wrong_usage(self, shop: Shop, to: str) -> None:
        result = run(shop, "seek", "index", f"--to={to}")
        assert result.exit_code == 2
        assert repr(to) in result.stderr

    def test_the_record_shows_it(self, shop: Shop) -> None:
        asyncio.run(five_handled(shop))
        run(shop, "seek", "index", "--to", "start", "--yes", "--by", "ops")
        listed = CliRunner().invoke(cli, ["replay", "list", "--all", "--json", "--dsn", shop.dsn])
        (operation,) = json.loads(listed.stdout)
        assert (operation["kind"], operation["requested_by"], operation["target"]) == ("seek", "ops", "index")
