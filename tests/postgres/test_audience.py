"""Who hears of an event, from publish to the log: kept wherever the event goes, found by name, gone with the event."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from aftercommit.backoff import Constant
from aftercommit.cli.repair_output import show_details
from aftercommit.consumer import LogWorker
from aftercommit.contrib.alembic import include_object
from aftercommit.errors import SchemaDrift
from aftercommit.event.envelope import Event, envelope_json
from aftercommit.operate import Repair, Selection
from aftercommit.outbox import Outbox
from aftercommit.postgres.shape import DeclaredView, Shape
from aftercommit.schema import migrate, partitions
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.signals import Signals
from tests.support.hearing import SCHEMA, TaskChanged, Tasks, changes, task_outbox
from tests.support.recording import RecordingTransport

ANN, BEN = "user:ann", "user:ben"


@pytest.fixture
def tasks(postgres_server: PostgresServerForTests) -> Iterator[Tasks]:
    dsn = postgres_server.clone(postgres_server.template_for(task_outbox()))
    yield Tasks(dsn)
    postgres_server.drop(dsn)


async def test_everybody_who_hears_of_an_event_finds_it_by_name_with_the_append(tasks: Tasks):
    declared = tasks.outbox.registry.named("task.changed")
    async with tasks.relay():
        await tasks.record(*changes("t-1", range(2)), audience=[ANN, BEN, ANN])
        await tasks.record(
            declared.draft(TaskChanged("t-2"), audience=[BEN]), TaskChanged("t-3"), audience=["Ü \\ \"'{,}\n%"]
        )
        await tasks.record(TaskChanged("t-4"), audience=[])

    assert tasks.heard() == {ANN: [1, 2], BEN: [1, 2, 3], "Ü \\ \"'{,}\n%": [4]}
    assert tasks.rows("select audience from log order by position") == [
        ([ANN, BEN],),
        ([ANN, BEN],),
        ([BEN],),
        (["Ü \\ \"'{,}\n%"],),
        ([],),
    ]
    assert tasks.rows("select audience from event_log order by position limit 1") == [([ANN, BEN],)]


async def test_handlers_and_transports_are_told_who_hears(tasks: Tasks):
    handled: list[tuple[str, ...]] = []

    @tasks.outbox.on(TaskChanged, consumer="notify")
    def notify(event: Event[TaskChanged]) -> None:
        handled.append(event.audience)

    transport = RecordingTransport()
    async with tasks.relay(transport):
        await tasks.record(TaskChanged("t-1"), audience=[ANN, BEN])
    worker = LogWorker(tasks.outbox, tasks.outbox.consumers["notify"], tasks.database, probe=tasks.signals)
    async with worker:
        await tasks.signals.wait("consumer.handled")

    assert handled == [(ANN, BEN)]
    assert transport.records[0].audience == (ANN, BEN)
    assert msgspec.json.decode(envelope_json(transport.records[0]))["audience"] == [ANN, BEN]


async def test_an_event_that_failed_keeps_its_audience_through_retry_edit_and_discard(
    tasks: Tasks, capsys: pytest.CaptureFixture[str]
):
    """Also where its letter is all that is left of it, and for an operator who does not have the declaration."""
    transport = RecordingTransport(lambda record: ValueError("no"))
    tasks.outbox.max_attempts, tasks.outbox.backoff = 1, Constant(0.0)
    desk = Repair(Shape(SCHEMA), tasks.database, by="tester")
    async with tasks.relay(transport):
        retried, edited, discarded = tasks.publish(*changes("t-1", range(3)), audience=[ANN, BEN])
        await tasks.value_becomes("select count(*) from outbox where status = 'failed'", 3)
        letters = [letter for each in (retried, edited, discarded) for letter in await desk.letter(each)]
        assert [letter.audience for letter in letters] == [(ANN, BEN)] * 3
        show_details(letters[:1])
        assert f"audience      {ANN} {BEN}\n" in capsys.readouterr().out
        await desk.discard(Selection(event_ids=(discarded,)), reason="not needed")
        assert tasks.value("select count(*) from outbox") == 2
        transport.refuse = None
        await desk.retry(Selection(event_ids=(retried,)))
        await desk.edit(edited, b'{"task_id": "t-1", "number": 1, "text": "mended"}')
        await desk.retry(Selection(event_ids=(discarded,), statuses=("discarded",)))
        await tasks.value_becomes("select count(*) from log", 3)

    assert tasks.rows("select distinct audience from log") == [([ANN, BEN],)]
    assert tasks.heard() == {ANN: [1, 2, 3], BEN: [1, 2, 3]}


async def test_what_is_replayed_through_the_transport_is_heard_of_again(tasks: Tasks):
    desk = Repair(tasks.outbox, tasks.database, by="tester")
    async with tasks.relay(RecordingTransport()):
        await tasks.record(TaskChanged("t-1"), audience=[ANN])
        operation = await desk.start(Selection(types=("task.changed",)), to="@transport", reason="once more")
        await desk.drive(operation.id)

    assert tasks.heard() == {ANN: [1, 2]}
    assert tasks.rows("select audience from log") == [([ANN],), ([ANN],)]


async def test_a_letter_of_a_consumer_of_the_log_has_the_audience_and_so_has_its_retry(tasks: Tasks):
    consumer = tasks.outbox.consumer("notify", retry_count=2, backoff=Constant(0.0))
    tried: list[tuple[str, ...]] = []

    @consumer.on(TaskChanged)
    def notify(event: Event[TaskChanged]) -> None:
        tried.append(event.audience)
        raise ValueError("no")

    async with tasks.relay():
        await tasks.record(TaskChanged("t-1"), audience=[ANN])
    async with LogWorker(tasks.outbox, consumer, tasks.database, probe=tasks.signals):
        await tasks.value_becomes("select count(*) from dead_letter_events where status = 'parked'", 1)

    assert tasks.rows("select audience from dead_letter_events") == [([ANN],)]
    assert tried == [(ANN,)] * 3


def test_a_key_stands_for_the_first_audience(tasks: Tasks):
    """Who hears is looked up anew with every attempt, and may have changed: that does not make it another publish."""
    with tasks.connect() as connection:
        first = tasks.outbox.publish(connection, TaskChanged("t-1"), audience=[ANN], idempotency_key="k")
        again = tasks.outbox.publish(connection, TaskChanged("t-1"), audience=[BEN], idempotency_key="k")

    assert (again.duplicate, again.event_ids) == (True, first.event_ids)
    assert tasks.rows("select audience from outbox") == [([ANN],)]


@pytest.mark.parametrize(
    "audience",
    [
        "array[null]::varchar[]",
        "array['']",
        "array[['a', 'b'], ['c', 'd']]",
        "array(select 'user:' || n from generate_series(0, 10000) n)",
        "array[repeat('x', 256)]",
    ],
)
def test_plain_sql_cannot_put_an_audience_in_that_could_not_be_appended(tasks: Tasks, audience: str):
    with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.StringDataRightTruncation)):
        tasks.rows(_BY_HAND.format(audience=audience))


async def test_a_reader_that_plain_sql_named_twice_hears_once(tasks: Tasks):
    tasks.rows(_BY_HAND.format(audience="array['user:ann', 'user:ann']"))
    async with tasks.relay():
        await tasks.value_becomes("select count(*) from log", 1)

    assert tasks.heard() == {ANN: [1]}


_BY_HAND = """
    insert into outbox (id, aggregate_type, aggregate_id, event_type, correlation_id, payload, audience)
    values (gen_random_uuid(), 'task', 't-1', 'task.changed', 'c', '{{"task_id": "t-1"}}', {audience})
"""


async def test_events_inserted_through_a_view_say_who_hears(database: str):
    """In a column of the view, or in the envelope; a known event keeps what is stored."""
    columns = {"event_id": "event_id", "type": "event_type", "payload": "payload", "readers": "audience"}
    views = [DeclaredView("domain_events", columns, writable=True, envelope=True)]
    tasks = Tasks(database, task_outbox(views=views))
    with tasks.connect(autocommit=True) as connection:
        tasks.outbox.migrate(connection)
    one, other = uuid4(), uuid4()
    insert = "insert into domain_events (event_id, type, payload, readers) values (%s, 'task.changed', %s, %s)"
    tasks.rows(insert, [one, '{"task_id": "t-1"}', [ANN]])
    envelope = {"event_id": str(other), "audience": [BEN, ANN], "payload": {"task_id": "t-2"}}
    tasks.rows(insert, [other, msgspec.json.encode(envelope).decode(), None])
    tasks.rows(insert, [uuid4(), '{"task_id": "t-3"}', None])
    async with tasks.relay():
        await tasks.value_becomes("select count(*) from log", 3)
        tasks.rows(insert, [one, '{"task_id": "t-1"}', [BEN]])
        await tasks.value_becomes("select count(*) from log", 4)

    assert tasks.heard() == {ANN: [1, 2, 4], BEN: [2]}
    assert tasks.rows("select readers, payload -> 'audience' from domain_events where event_id = %s", [other]) == [
        ([BEN, ANN], [BEN, ANN])
    ]


class TestDeclaredLater:
    """An outbox that is in use gets an audience; programs of before run on, and nothing is lost."""

    @pytest.fixture
    def before(self, database: str) -> Tasks:
        tasks = Tasks(database, task_outbox(audience=False))
        with tasks.connect(autocommit=True) as connection:
            tasks.outbox.migrate(connection)
        return tasks

    def declare(self, before: Tasks) -> Tasks:
        after = Tasks(before.dsn)
        with after.connect(autocommit=True) as connection:
            done = after.outbox.migrate(connection)
            assert "created table audience" in done
            assert after.outbox.migrate(connection) == []
            migrate.check(connection, after.outbox.shape)
        return after

    async def test_what_was_there_is_heard_of_by_nobody(self, before: Tasks):
        async with before.relay():
            await before.record(*changes("t-1", range(2)))
        before.publish(TaskChanged("t-1", 2))
        after = self.declare(before)
        async with after.relay():
            await after.value_becomes("select count(*) from log", 3)
            after.publish(TaskChanged("t-1", 3), audience=[ANN])
            await after.value_becomes("select count(*) from log", 4)

        assert after.heard() == {ANN: [4]}
        assert after.rows("select audience from log order by position") == [([],), ([],), ([],), ([ANN],)]

    @pytest.mark.thorough
    async def test_programs_of_before_go_on_and_a_relay_of_before_loses_no_audience(
        self, before: Tasks, caplog: pytest.LogCaptureFixture
    ):
        """It goes on with what it knows; before what it does not know it waits for a relay that does."""
        async with before.relay(signals=before.signals):
            await before.record(TaskChanged("t-1", 0))
            after = self.declare(before)
            await before.record(TaskChanged("t-1", 1))
            after.publish(TaskChanged("t-2", 2), audience=[ANN])
            await before.signals.wait("database.lost")
            said = " ".join(str(vars(record).get("error")) for record in caplog.records)
            assert "has an audience, of which this relay does not know" in said
            assert after.value("select count(*) from log") == 2
            async with after.relay(signals=Signals()):
                await after.value_becomes("select count(*) from log", 3)

        assert after.heard() == {ANN: [3]}

    async def test_a_letter_that_a_relay_of_before_has_written_has_the_audience(self, before: Tasks):
        transport = RecordingTransport(lambda record: ValueError("no"))
        before.outbox.max_attempts = 1
        after = self.declare(before)
        async with before.relay(transport):
            after.publish(TaskChanged("t-1"), audience=[ANN])
            await after.value_becomes("select count(*) from dead_letter_events where status = 'parked'", 1)

        assert after.rows("select audience from dead_letter_events") == [([ANN],)]

    def test_a_program_of_before_can_migrate_again_and_takes_nothing_away(self, before: Tasks):
        after = self.declare(before)
        with before.connect(autocommit=True) as connection:
            before.outbox.migrate(connection)
            connection.execute("update head set position = 5000000")
            partitions.ensure(connection, before.outbox.shape)

        assert len(after.rows("select 1 from pg_inherits where inhparent = 'audience'::regclass")) == 6

    async def test_a_program_that_declares_it_before_the_migration_is_told_what_to_do(self, before: Tasks):
        after = Tasks(before.dsn)
        with pytest.raises(SchemaDrift, match=r"an audience is declared.*migrate up"):
            async with after.relay():
                pass

    @pytest.mark.parametrize(
        ("there", "said"),
        [
            ("create table audience ()", "audience exists, but is not the outbox"),
            ("alter table outbox add column audience text", "column 'audience' of type text"),
        ],
    )
    def test_what_stands_in_its_place_is_named(self, before: Tasks, there: str, said: str):
        before.rows(there)
        with before.connect(autocommit=True) as connection, pytest.raises(SchemaDrift, match=said):
            migrate.up(connection, task_outbox().shape)

    def test_plain_sql_does_the_same(self, before: Tasks):
        with before.connect(autocommit=True) as connection:
            connection.execute("".join(migrate.script(task_outbox().shape)).encode())
            migrate.check(connection, task_outbox().shape)


class TestRetention:
    """What nobody keeps any more nobody hears of: partitions go together, and what is interrupted is taken up."""

    @pytest.fixture
    def small(self, database: str, monkeypatch: pytest.MonkeyPatch) -> Tasks:
        monkeypatch.setattr(partitions, "POSITIONS_PER_PARTITION", 10)
        tasks = Tasks(database)
        with tasks.connect(autocommit=True) as connection:
            tasks.outbox.migrate(connection)
        return tasks

    def partitions_of(self, tasks: Tasks, table: str) -> list[int]:
        with tasks.connect(autocommit=True) as connection:
            return [each.lower for each in partitions.existing(connection, tasks.outbox.shape, table)]

    def drop(self, tasks: Tasks, shape: Shape | None = None) -> list[str]:
        with tasks.connect(autocommit=True) as connection:
            older_than = datetime.now(UTC) + timedelta(days=1)
            return partitions.drop_before(connection, shape or tasks.outbox.shape, older_than=older_than)

    @pytest.mark.thorough
    async def test_partitions_are_made_and_dropped_together(self, small: Tasks):
        """Whoever does it needs not know of the audience."""
        async with small.relay():
            for number in range(35):
                await small.record(TaskChanged("t-1", number), audience=[ANN])
        assert self.partitions_of(small, "audience") == self.partitions_of(small, "log")

        assert self.drop(small, Shape(SCHEMA)) == ["log_000000", "log_000001", "log_000002"]

        assert self.partitions_of(small, "audience") == self.partitions_of(small, "log")
        assert small.heard() == {ANN: [31, 32, 33, 34, 35]}

    @pytest.mark.thorough
    @pytest.mark.parametrize("step", ["before the audience", "detached"])
    async def test_a_run_that_was_interrupted_leaves_nobody_behind(self, small: Tasks, step: str):
        async with small.relay():
            for number in range(25):
                await small.record(TaskChanged("t-1", number), audience=[ANN])
        small.rows("alter table log detach partition log_000000")
        small.rows("drop table log_000000")
        if step == "detached":
            small.rows("alter table audience detach partition audience_000000")
            small.rows("comment on table audience_000000 is 'aftercommit: retention drops this'")

        assert self.drop(small) == ["log_000001"]

        assert self.partitions_of(small, "audience") == self.partitions_of(small, "log")
        assert small.rows("select to_regclass('audience_000000')") == [(None,)]


def test_a_role_with_the_printed_grants_relays_and_reads(tasks: Tasks):
    printed = migrate.grants(tasks.outbox.shape, "worker")

    assert f'grant select, insert on "{SCHEMA}"."audience" to "worker"' in printed


def test_alembic_leaves_it_alone(tasks: Tasks):
    engine = sqlalchemy.create_engine(tasks.dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connection:
        options = {"include_schemas": True, "include_object": include_object(tasks.outbox)}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, sqlalchemy.MetaData()) == []
    engine.dispose()


def test_an_outbox_without_an_audience_has_nothing_of_it(database: str):
    plain: dict[str, Any] = {"dsn": database, "outbox": Outbox("plain")}
    with Tasks(**plain).connect(autocommit=True) as connection:
        plain["outbox"].migrate(connection)
        found = connection.execute(
            "select relname from pg_class where relname like 'audience%' union all "
            "select attname from pg_attribute where attname = 'audience' union all "
            "select proname from pg_proc where proname like 'keep_%audience'"
        )
        assert found.fetchall() == []


WITHOUT_ONE = DeclaredView("public_tasks", {"id": "id", "kind": "event_type", "body": "payload"}, writable=True)


@pytest.mark.parametrize("views", [(), (WITHOUT_ONE,)], ids=["canonical", "declared"])
@pytest.mark.parametrize("first", [True, False], ids=["with it first", "without it first"])
def test_a_version_that_knows_of_no_audience_leaves_it_in_the_views(
    database: str, first: bool, views: tuple[DeclaredView, ...]
):
    """It is started again while a deployment is under way, and migrates as it always did."""
    declared = [Shape(SCHEMA, audience=audience, views=views) for audience in (first, not first)]
    with psycopg.connect(database, autocommit=True) as connection:
        for shape in (*declared, *declared):
            migrate.up(connection, shape)
        for shape in declared:
            migrate.check(connection, shape)
            assert migrate.up(connection, shape) == []
        for view in ("event_outbox", "event_log"):
            connection.execute(f"select audience from {SCHEMA}.{view}".encode())
