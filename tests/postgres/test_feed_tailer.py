"""The tailer: one reader of the log per process, which goes on after anything and passes over no event silently."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from aftercommit.errors import CursorGone, DatabaseUnavailable
from aftercommit.feed import Cursor, LogEvent
from aftercommit.feed.strands.hub import FeedHub
from aftercommit.postgres import lives
from aftercommit.postgres.listen import Listener
from aftercommit.service import wait_for_any
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from tests.support.feeding import (
    LogRecorded,
    Logs,
    Walker,
    all_feeds,
    caught_up,
    lines,
    log_feed,
    log_outbox,
    numbers_of,
    to_item,
    until,
)


@pytest.fixture
def logs(postgres_server: PostgresServerForTests) -> Iterator[Logs]:
    outbox = log_outbox()
    all_feeds(outbox)
    dsn = postgres_server.clone(postgres_server.template_for(outbox))
    yield Logs(dsn)
    postgres_server.drop(dsn)


def restore_to_two(logs: Logs) -> None:
    """A backup is played back that has only the first two events."""
    with logs.connect() as restore:
        restore.execute("delete from log where position > 2")
        restore.execute("update head set position = 2, ts = (select max(ts) from log)")
        restore.execute("update stream set seq = 2, ts = (select max(ts) from log)")


async def test_a_notification_wakes_the_tailer(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.tailer.POLL", 3600.0)
    signals = Signals()
    listener = Listener(logs.database, signals)
    hub = FeedHub(logs.database, [logs.feed], listener=listener, probe=signals)
    async with logs.relay(), hub, listener:
        await signals.wait("listener.working")
        strand = await hub.strand(logs.feed, "i-1")

        await logs.record(LogRecorded("i-1", 1))
        await caught_up(hub, logs)

        assert strand.head == 1


@pytest.mark.parametrize("boundary", [2**15, 2**31])
async def test_no_position_is_too_large_for_the_numbers_of_a_query(logs: Logs, boundary: int):
    """A driver sends a number in as few bytes as it takes, and what is added to it overflows there."""
    before = boundary - 10
    logs.rows("update head set position = %s", [before])
    everything = logs.feeds["everything"]
    async with logs.relay(), logs.hub(logs.feed, everything) as hub:
        strand = await hub.strand(everything, "")
        for first in range(0, 30, 3):
            await logs.record(*lines("i-1", range(first, first + 3)))
            await caught_up(hub, logs, "everything", "", before + first + 3)
            page = await hub.page(strand, Cursor(before + first), 10)
            assert [entry.position for entry in page.entries] == [before + first + step for step in (1, 2, 3)]
        await caught_up(hub, logs)
    async with logs.hub(everything) as anew:
        strand = await anew.strand(everything, "")
        back = await anew.page_before(strand, Cursor(before + 26), 20)
        assert [entry.position for entry in back.entries] == list(range(before + 6, before + 26))


async def test_one_query_serves_all_feeds_and_reads_only_their_types(logs: Logs):
    signals = Signals()
    others = [log_feed(logs.outbox, f"logs-{number}") for number in range(5)]
    async with logs.relay(), logs.hub(logs.feed, *others, signals=signals) as hub:
        strands = [await hub.strand(feed, "i-1") for feed in (logs.feed, *others)]
        await signals.wait("feed.idle")
        hold = signals.hold("feed.read")
        await hold.wait()
        await logs.record(*lines("i-1", range(20)))
        reads = signals.counts["feed.read"]
        hold.release()
        await signals.wait_total("feed.tailed", 20)

        assert signals.counts["feed.read"] <= reads + 2
        assert {strand.head for strand in strands} == {20}


async def test_an_item_is_made_once_per_event_and_only_for_strands_that_somebody_reads(logs: Logs):
    made: list[int] = []

    def counted(event: LogEvent[Any]) -> dict[str, Any]:
        made.append(event.payload.number)
        return to_item(event)

    feed = log_feed(logs.outbox, "counted", item=counted)
    async with logs.relay(), logs.hub(feed) as hub:
        strand = await hub.strand(feed, "i-1")
        await logs.record(*lines("i-1", range(5)), *lines("i-2", range(100, 105)))
        async with asyncio.timeout(60):
            while strand.head < 5:
                await wait_for_any(20, strand.changed())
        for _ in range(10):
            await hub.page(strand, Cursor(0), 10)

        assert made == [0, 1, 2, 3, 4]


async def test_an_item_that_cannot_be_made_is_withheld_visibly_and_stops_nobody(logs: Logs):
    def picky(event: LogEvent[Any]) -> Any:
        match event.payload.number:
            case 1:
                raise RuntimeError("secret detail")
            case 2:
                return ["not", "an", "object"]
            case 3:
                return {"what": object()}
        return to_item(event)

    feed = log_feed(logs.outbox, "picky", item=picky)
    async with logs.relay(), logs.hub(feed) as hub:
        strand = await hub.strand(feed, "i-1")
        await logs.record(*lines("i-1", range(5), level="ERROR"))
        await caught_up_strand(strand, 5)

        page = await hub.page(strand, Cursor(0), 10, feed.chosen({"minLevel": "ERROR"}))

        bodies = [json.loads(entry.body) for entry in page.entries]
        assert [body.get("withheld") for body in bodies] == [None, *["item failed"] * 3, None]
        assert all(set(bodies[place]) == {"event_id", "ts", "seq", "withheld"} for place in (1, 2, 3))
        # Whoever counts the lines finds none missing, and can go on from any of them.
        assert [body["seq"] for body in bodies] == [1, 2, 3, 4, 5]
        assert [f"{body['ts']}#{body['seq']:03d}" for body in bodies] == [feed.cursor.format(e) for e in page.entries]
        assert b"secret" not in b"".join(entry.body for entry in page.entries)
        assert hub.withheld == {"picky": 3}


async def test_an_event_that_this_code_cannot_read_is_withheld(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        strand = await hub.strand(logs.feed, "i-1")
        columns = "id, aggregate_type, aggregate_id, event_type, schema_version, correlation_id, payload, project_id"
        for payload, version in (('{"wrong": 1}', 1), ('{"investigation_id": 7}', 1)):
            query = (
                f"insert into outbox ({columns}) values (gen_random_uuid(), 'investigation', 'i-1', 'log.recorded', "
            )
            logs.rows(query + "%s, 'because', %s, 'p-1')", [version, payload])
        await logs.record(LogRecorded("i-1", 7))
        await caught_up_strand(strand, 3)

        page = await hub.page(strand, Cursor(0), 10)

        bodies = [json.loads(entry.body) for entry in page.entries]
        assert [body.get("withheld") for body in bodies] == ["unreadable", "unreadable", None]


async def caught_up_strand(strand: Any, head: int) -> None:
    async with asyncio.timeout(60):
        while strand.head < head:
            await wait_for_any(20, strand.changed())


async def test_a_lost_connection_is_made_anew_and_nothing_is_missed(logs: Logs):
    signals = Signals()
    async with logs.relay(), logs.hub(signals=signals) as hub:
        await logs.record(*lines("i-1", range(3)))
        strand = await hub.strand(logs.feed, "i-1")
        with logs.connect(autocommit=True) as operator:
            operator.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where query like '%%before%%follows%%' "
                "and datname = current_database() and pid <> pg_backend_pid()"
            )
        await signals.wait("database.lost")
        await logs.record(*lines("i-1", range(3, 6)))
        await caught_up(hub, logs)

        assert strand.current
        assert numbers_of((await hub.page(strand, Cursor(0), 10)).entries) == list(range(6))


async def test_pages_that_are_cut_to_bound_the_memory_leave_nothing_out(logs: Logs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.tailer.BYTES_AT_ONCE", 3000)
    monkeypatch.setattr("aftercommit.feed.strands.tailer.PAGE", 7)
    signals = Signals()
    async with logs.relay(), logs.hub(signals=signals) as hub:
        strand = await hub.strand(logs.feed, "i-1")
        hold = signals.hold("feed.read")
        await hold.wait()
        await logs.record(*(LogRecorded("i-1", number, message="x" * (number % 5) * 500) for number in range(40)))
        hold.release()
        await caught_up(hub, logs)

        assert numbers_of((await hub.page(strand, Cursor(0), 100)).entries) == list(range(40))


async def test_after_a_restore_a_reader_goes_on_with_what_is_new_and_is_given_nothing_again(logs: Logs):
    """A backup is played back; the relay has seen the log further on, and begins a new life of it."""
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(5)))
        walker = Walker(logs.feed, "i-1")
        strand = await hub.strand(logs.feed, "i-1")
        await caught_up(hub, logs)
        await walker.walk(hub)

        async def wait_for_the_end() -> None:
            while strand.current:
                await wait_for_any(3600, strand.changed())

        waiting = asyncio.create_task(wait_for_the_end())
        hold = logs.signals.hold("relay.idle")
        await hold.wait()
        restore_to_two(logs)
        # Whoever waits is woken, and finds that what it waited at is no longer the strand.
        await asyncio.wait_for(waiting, 60)
        with pytest.raises(CursorGone) as caught:
            await walker.poll(hub)
        assert (caught.value.reason, caught.value.restart.number) == ("epoch", 2)
        hold.release()
        await logs.record(*lines("i-1", range(10, 14)))
        await caught_up(hub, logs, head=logs.rows("select position from head")[0][0])
        walker.seen = []
        assert numbers_of(await walker.walk(hub)) == [10, 11, 12, 13]


async def test_a_new_life_that_begins_while_a_page_is_read_takes_no_cursor_away(logs: Logs, monkeypatch):
    """The page was read before the new life, and the question whether one is due comes after it has begun."""
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(5)))
        walker = Walker(logs.feed, "i-1")
        strand = await hub.strand(logs.feed, "i-1")
        await caught_up(hub, logs)
        await walker.walk(hub)
        hold = logs.signals.hold("relay.idle")
        await hold.wait()
        restore_to_two(logs)
        await until(lambda: not strand.current)
        is_due = lives.is_due

        async def after_the_relay(*arguments) -> bool:
            hold.release()
            await until(lambda: logs.rows("select count(*) from life") == [(2,)])
            return await is_due(*arguments)

        monkeypatch.setattr(lives, "is_due", after_the_relay)
        with pytest.raises(DatabaseUnavailable, match="try again"):
            await walker.poll(hub)
        monkeypatch.undo()
        await logs.record(*lines("i-1", range(10, 14)))
        await caught_up(hub, logs, head=logs.rows("select position from head")[0][0])
        walker.seen = []
        assert numbers_of(await walker.walk(hub)) == [10, 11, 12, 13]


async def test_a_restore_is_noticed_by_who_had_not_read_as_far_as_a_strand_that_was_loaded(logs: Logs):
    signals = Signals()
    async with logs.hub(signals=signals) as hub:
        await signals.wait("feed.idle")
        hold = signals.hold("feed.idle")
        await hold.wait()
        # Only that long: a relay that notices the restore begins a new epoch, and the strand could not be loaded then.
        async with logs.relay():
            await logs.record(*lines("i-1", range(5)))
        strand = await hub.strand(logs.feed, "i-1")
        assert strand.head == 5
        restore_to_two(logs)
        hold.release()
        async with asyncio.timeout(60):
            while strand.current:
                await wait_for_any(20, strand.changed())
        assert (await hub.strand(logs.feed, "i-1")).head == 2


async def test_a_restore_is_noticed_although_the_log_has_grown_past_the_old_end(logs: Logs):
    signals = Signals()
    async with logs.relay(), logs.hub(signals=signals) as hub:
        await logs.record(*lines("i-1", range(3)))
        strand = await hub.strand(logs.feed, "i-1")
        await caught_up(hub, logs)
        await signals.next("feed.idle")
        hold = signals.hold("feed.read")
        await hold.wait()
        with logs.connect() as restore:
            restore.execute("update log set ts = ts + interval '1 hour' where position = 3")
            restore.execute("update head set ts = ts + interval '1 hour'")
        await logs.record(LogRecorded("i-1", 9))
        hold.release()

        await until(lambda: not strand.current)
        page = await hub.page(strand, Cursor(0), 10)
        assert numbers_of(page.entries) == [0, 1, 2, 9]


async def test_a_new_epoch_begins_everything_anew(logs: Logs):
    async with logs.relay(), logs.hub() as hub:
        await logs.record(*lines("i-1", range(3)))
        strand = await hub.strand(logs.feed, "i-1")
        logs.rows("update head set epoch = gen_random_uuid()")
        await until(lambda: not strand.current)

        again = await hub.strand(logs.feed, "i-1")

        assert again.epoch != strand.epoch
        assert again.epoch == logs.rows("select epoch from head")[0][0]


async def test_a_strand_loaded_from_another_epoch_than_the_tailers_is_served_to_nobody(logs: Logs):
    signals = Signals()
    async with logs.hub(signals=signals) as hub:
        await hub.strand(logs.feed, "i-1")
        hold = signals.hold("feed.read")
        await hold.wait()
        logs.rows("update head set epoch = gen_random_uuid()")

        with pytest.raises(DatabaseUnavailable, match="just been restored"):
            await hub.strand(logs.feed, "i-2")
        hold.release()
        # What it had read before is dealt with first; the next read shows the other epoch.
        epoch = logs.rows("select epoch from head")[0][0]
        await until(lambda: {tailer._place.epoch for tailer in hub._tailers.values()} == {epoch})
        assert (await hub.strand(logs.feed, "i-2")).epoch == epoch


async def test_a_tailer_that_retention_has_overtaken_says_so_to_readers(logs: Logs):
    signals = Signals()
    async with logs.relay(), logs.hub(signals=signals) as hub:
        await logs.record(*lines("i-1", range(3)))
        walker = Walker(logs.feed, "i-1")
        strand = await hub.strand(logs.feed, "i-1")
        await caught_up(hub, logs)
        await walker.walk(hub)
        hold = signals.hold("feed.read")
        await hold.wait()
        await logs.record(*lines("i-1", range(3, 10)))
        logs.rows("delete from log where position <= 6")
        hold.release()
        await until(lambda: not strand.current)

        with pytest.raises(CursorGone) as caught:
            await walker.poll(hub)

        assert caught.value.reason == "retention"
        walker.cursor, walker.seen = caught.value.restart, []
        assert numbers_of(await walker.walk(hub)) == [6, 7, 8, 9]


async def test_a_tailer_that_is_far_behind_begins_anew_and_readers_miss_nothing(logs: Logs):
    signals = Signals()
    async with logs.relay(), logs.hub(signals=signals, max_lag_events=10) as hub:
        await logs.record(*lines("i-1", range(3)))
        walker = Walker(logs.feed, "i-1")
        strand = await hub.strand(logs.feed, "i-1")
        await caught_up(hub, logs)
        await walker.walk(hub)
        hold = signals.hold("feed.read")
        await hold.wait()
        await logs.record(*lines("i-1", range(3, 30)))
        hold.release()
        await until(lambda: not strand.current)

        assert numbers_of(await walker.walk(hub)) == list(range(30))


async def test_an_index_that_is_missing_is_said_and_the_filter_answers_all_the_same(
    logs: Logs, caplog: pytest.LogCaptureFixture
):
    facet = logs.outbox.shape.facets[0]
    logs.rows(f'drop index "{facet.name}"')
    async with logs.relay():
        await logs.record(*lines("i-1", range(3)), LogRecorded("i-1", 3, "ERROR"))
    with caplog.at_level("WARNING", "aftercommit.feed"):
        async with logs.hub(ring_bytes=1) as hub:
            walker = Walker(logs.feed, "i-1", 2, logs.feed.chosen({"minLevel": "ERROR"}))
            assert numbers_of(await walker.walk(hub)) == [3]

    said = [record for record in caplog.records if record.message == "feed_index_missing"]
    assert [record.__dict__["index"] for record in said] == [facet.name]
    with logs.connect(autocommit=True) as owner:
        assert logs.outbox.migrate(owner) == [f"created index {facet.name}"]


async def test_tables_that_are_not_there_are_said_at_once(database: str):
    logs = Logs(database)
    hub = FeedHub(logs.database, [logs.feed])

    with pytest.raises(Exception, match="migrate up"):
        async with hub:
            await asyncio.sleep(100)


async def test_a_hub_that_does_not_run_gives_out_no_strand(logs: Logs):
    hub = FeedHub(logs.database, [logs.feed])
    with pytest.raises(DatabaseUnavailable, match="not running"):
        await hub.strand(logs.feed, "i-1")
    async with hub:
        strand = await hub.strand(logs.feed, "i-1")
    assert not strand.current
    with pytest.raises(DatabaseUnavailable, match="not running"):
        await hub.strand(logs.feed, "i-1")


async def test_before_it_has_reached_its_database_a_hub_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aftercommit.feed.strands.hub.BEGIN_SECONDS", 0.05)
    logs = Logs("postgresql://nobody@127.0.0.1:1/nowhere")
    async with FeedHub(logs.database, [logs.feed]) as hub:
        with pytest.raises(DatabaseUnavailable, match="not reached their database"):
            await hub.strand(logs.feed, "i-1")
        assert not hub.is_following


def test_no_payload_can_keep_an_event_out_of_the_log_and_facets_are_the_same_on_both_sides(logs: Logs):
    nasty = [
        '{"level": "ERROR"}',
        '{"level": "a\\u0000b"}',
        '{"level": "ok", "other": "\\ud800"}',
        '{"level": "ok", "other": "\\udc00\\ud800"}',
        '{"level": "ok", "other": "\\ud83d\\ude00"}',
        '{"level": "\\ud83d\\ude00 \\u00e9"}',
        '{"level": "ok", "other": "\\\\u0000 \\\\\\\\ud800"}',
        '{"level": "\\\\u0000"}',
        '{"level": "' + "x" * 20_000 + '"}',
        '{"level": 1.50}',
        '{"level": null}',
        '{"level": true}',
        '{"level": {"a": [1, 2]}}',
        '{"level": "one", "level": "two"}',
        "[]",
        '"level"',
        "{}",
    ]
    values = ", ".join(
        ["(gen_random_uuid(), 'investigation', 'i-1', 'log.recorded', 'because', %s::json, 'p-1')"] * len(nasty)
    )
    logs.rows(
        "insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, project_id) "
        f"values {values}",
        nasty,
    )
    logs.rows(
        "insert into log (position, ts, stream_seq, id, seq, lane, aggregate_type, aggregate_id, event_type, "
        "schema_version, occurred_at, correlation_id, payload, retry_count, created_at, project_id) "
        "select seq, now(), seq, id, seq, lane, aggregate_type, aggregate_id, event_type, schema_version, occurred_at, "
        "correlation_id, payload, 0, created_at, project_id from outbox"
    )
    rows = logs.rows("select payload::text, facet(payload, '{level}') from log order by position")

    assert [facet for _, facet in rows] == [logs.feed.facets_of(text.encode(), None)[0] for text, _ in rows]
    assert sum(facet is not None for _, facet in rows) == 10


async def test_a_role_with_the_printed_grants_can_follow_and_read_history(logs: Logs):
    from aftercommit.schema import migrate

    with logs.connect(autocommit=True) as owner:
        owner.execute("create role feed_reader login")
        try:
            for statement in migrate.grants(logs.outbox.shape, "feed_reader"):
                owner.execute(statement.encode())
            reader = psycopg.conninfo.make_conninfo(logs.dsn, user="feed_reader")
            async with logs.relay():
                await logs.record(*lines("i-1", range(3), level="ERROR"))
            reading = Logs(reader)
            async with reading.hub(reading.feed, ring_bytes=1) as hub:
                walker = Walker(reading.feed, "i-1", 2, reading.feed.chosen({"minLevel": "ERROR"}))
                assert numbers_of(await walker.walk(hub)) == [0, 1, 2]
        finally:
            owner.execute("drop owned by feed_reader cascade")
            owner.execute("drop role feed_reader")
