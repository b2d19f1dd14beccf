"""assert_published and its kin: what they find, through which connection, and what they say when they do not."""

from datetime import UTC, datetime
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from aftercommit.errors import DeclarationError, SchemaNotMigrated, UnknownEventType, UnsupportedConnection
from aftercommit.event.correlation import correlation
from aftercommit.outbox import Outbox
from aftercommit.testing import AsyncWorld, Expected, World
from tests.support.shop import OrderPaid, OrderPlaced, shop_outbox

OWNER = UUID("0192b3c4-0000-7000-8000-000000000001")


def said(caught: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return str(caught.value).splitlines()


def test_one_is_enough_and_a_count_is_exact(aftercommit_world: World) -> None:
    aftercommit_world.publish(OrderPlaced("o-1"), OrderPlaced("o-2"), tenant_id="acme")
    assert [event.aggregate_id for event in aftercommit_world.assert_published(OrderPlaced)] == ["o-1", "o-2"]
    aftercommit_world.assert_published("order.placed", count=2)
    aftercommit_world.assert_published(aftercommit_world.outbox.registry.resolve(OrderPlaced), aggregate_id="o-2")
    aftercommit_world.assert_published(OrderPaid, count=0)
    with pytest.raises(AssertionError, match="OrderPlaced was published twice, expected once"):
        aftercommit_world.assert_published(OrderPlaced, count=1)
    with pytest.raises(AssertionError, match="OrderPaid was published not at all, expected 3 times"):
        aftercommit_world.assert_published(OrderPaid, count=3)


def test_an_event_itself_is_compared_with_its_whole_payload(aftercommit_world: World) -> None:
    aftercommit_world.publish(OrderPlaced("o-1", 1, "gift"), OrderPlaced("o-2", 2), tenant_id="acme")
    (found,) = aftercommit_world.assert_published(OrderPlaced("o-1", 1, "gift"))
    assert found.aggregate_id == "o-1"
    aftercommit_world.assert_published(OrderPlaced("o-2", 2), scope={"tenant_id": "acme"}, count=1)
    aftercommit_world.assert_not_published(OrderPlaced("o-1", 1))
    aftercommit_world.assert_published_in_order(OrderPlaced("o-1", 1, "gift"), OrderPlaced("o-2", 2), only=True)
    with pytest.raises(AssertionError) as caught:
        aftercommit_world.assert_published(OrderPlaced("o-1", 1))
    assert said(caught)[0] == "OrderPlaced(order_id='o-1', number=1, note='') was not published"
    assert said(caught)[2].strip() == "$.note: expected '', was 'gift'"
    with pytest.raises(UnknownEventType, match="is not a declared event"):
        aftercommit_world.assert_published({"order_id": "o-1"})


async def test_an_event_itself_can_be_asked_for_in_an_event_loop(aftercommit_async_world: AsyncWorld) -> None:
    await aftercommit_async_world.publish(OrderPlaced("o-1", 1), tenant_id="acme")
    await aftercommit_async_world.assert_published(OrderPlaced("o-1", 1), count=1)
    await aftercommit_async_world.assert_not_published(OrderPlaced("o-1", 2))


def test_what_is_more_than_the_expected_event_has_is_a_difference(aftercommit_world: World) -> None:
    free = aftercommit_world.outbox.declare("order.noted", dict)
    one = {"lines": [{"sku": "a"}], "by": {"name": "anna"}}
    aftercommit_world.publish(free.draft({**one, "lines": [{"sku": "a", "count": 2}], "at": 3}), tenant_id="acme")
    aftercommit_world.assert_published(free.draft({**one, "lines": [{"sku": "a", "count": 2}], "at": 3}), count=1)
    with pytest.raises(AssertionError) as caught:
        aftercommit_world.assert_published(free.draft(one))
    assert [line.strip() for line in said(caught)[2:4]] == [
        "$.lines[0].count: expected nothing, was 2",
        "$.at: expected nothing, was 3",
    ]


@pytest.mark.thorough
def test_events_are_found_in_the_outbox_and_in_the_log_alike(aftercommit_world: World) -> None:
    aftercommit_world.publish(OrderPlaced("o-1", 1), tenant_id="acme")
    aftercommit_world.drain()
    aftercommit_world.publish(OrderPlaced("o-1", 2), tenant_id="acme")
    events = aftercommit_world.assert_published_in_order(OrderPlaced, OrderPlaced, only=True)
    assert [(event.status, event.position) for event in events] == [("published", 1), ("pending", None)]
    assert [event.payload for event in events] == [OrderPlaced("o-1", 1), OrderPlaced("o-1", 2)]


def test_scope_correlation_and_conditions_narrow_it(aftercommit_world: World) -> None:
    with correlation("story-1"):
        aftercommit_world.publish(OrderPlaced("o-1", 1), tenant_id="acme")
    aftercommit_world.publish(OrderPlaced("o-1", 2), tenant_id="other")
    aftercommit_world.assert_published(OrderPlaced, scope={"tenant_id": "other"}, payload={"number": 2}, count=1)
    aftercommit_world.assert_published(OrderPlaced, correlation_id="story-1", count=1)
    aftercommit_world.assert_published(OrderPlaced, where=lambda event: event.payload.number > 1, count=1)
    aftercommit_world.assert_not_published(OrderPlaced, scope={"tenant_id": "other"}, payload={"number": 1})
    with pytest.raises(AssertionError) as caught:
        aftercommit_world.assert_published(
            OrderPlaced, scope={"tenant_id": "acme"}, payload={"number": 3}, correlation_id="story-2"
        )
    assert said(caught)[0] == (
        "OrderPlaced with {\"number\": 3} tenant_id='acme' correlation_id='story-2' was not published"
    )
    assert "      $.number: expected 3, was 1" in said(caught)
    assert "      correlation_id: expected 'story-2', was 'story-1'" in said(caught)


@pytest.mark.thorough
def test_values_are_compared_as_the_payload_holds_them(aftercommit_world: World, aftercommit_dsn: str) -> None:
    outbox = aftercommit_world.outbox
    noted = outbox.declare("noted")
    payload = {"owner": str(OWNER), "lines": [{"sku": "a", "price": 1.5}, {"sku": "b"}], "extra": {"deep": {"er": 1}}}
    aftercommit_world.publish(noted(**payload), tenant_id="acme")
    aftercommit_world.assert_published(noted, payload={"owner": OWNER, "extra": {"deep": {"er": 1}}})
    aftercommit_world.assert_published(noted, payload={"lines": [{"sku": "a"}, {"sku": ANY}]})
    aftercommit_world.assert_published(noted, payload={"lines": [{"price": pytest.approx(1.5)}, {}]})
    for part, difference in (
        ({"lines": [{"sku": "a"}]}, "$.lines: expected 1 items, were 2"),
        ({"lines": [{"sku": "z"}, {}]}, "$.lines[0].sku: expected 'z', was 'a'"),
        ({"extra": {"deep": {"more": None}}}, "$.extra.deep.more: expected None, was missing"),
        ({"owner": datetime(2026, 1, 1, tzinfo=UTC)}, "$.owner: expected datetime"),
        ({"extra": 3}, "$.extra: expected 3, was {'deep': {'er': 1}}"),
    ):
        with pytest.raises(AssertionError) as caught:
            aftercommit_world.assert_published(noted, payload=part)
        assert difference in str(caught.value)


def test_a_message_lists_what_was_published_the_last_ones_if_there_are_many(aftercommit_world: World) -> None:
    with pytest.raises(AssertionError) as caught:
        aftercommit_world.assert_published(OrderPaid)
    assert said(caught) == ["OrderPaid was not published", "  nothing was published"]
    aftercommit_world.publish(*(OrderPlaced("o-1", number, "x" * 300) for number in range(25)), tenant_id="acme")
    with pytest.raises(AssertionError) as caught:
        aftercommit_world.assert_published(OrderPaid)
    lines = said(caught)
    assert lines[1:3] == ["  published, in order (25):", "      … 5 earlier ones"]
    assert len(lines) == 23
    assert all(len(line) < 240 for line in lines)


def test_order_is_that_of_publishing_and_others_may_stand_between(aftercommit_world: World) -> None:
    world = aftercommit_world
    world.publish(OrderPlaced("o-1"), OrderPaid("o-1", 1), OrderPlaced("o-2"), tenant_id="acme")
    world.assert_published_in_order(OrderPlaced, OrderPlaced)
    world.assert_published_in_order(OrderPaid, Expected(OrderPlaced, aggregate_id="o-2"))
    with pytest.raises(AssertionError, match=r"number 2, OrderPaid, is missing after those before it"):
        world.assert_published_in_order(Expected(OrderPlaced, payload={"order_id": "o-2"}), OrderPaid)
    with pytest.raises(AssertionError, match="1 other event was published"):
        world.assert_published_in_order(OrderPlaced, OrderPaid, only=True)
    with pytest.raises(AssertionError, match="OrderPaid was published once"):
        world.assert_not_published(OrderPaid)
    with pytest.raises(AssertionError, match="something was published"):
        world.assert_not_published()


def test_a_type_that_nobody_declared_is_an_error_and_not_an_absence(aftercommit_world: World) -> None:
    with pytest.raises(UnknownEventType, match=r"'order\.plcaed' is not declared.*order\.placed"):
        aftercommit_world.assert_not_published("order.plcaed")
    with pytest.raises(UnknownEventType):
        aftercommit_world.assert_published_in_order(OrderPlaced, int)


def test_an_event_of_other_code_is_shown_as_it_is(aftercommit_world: World) -> None:
    stranger = Outbox("shop", scope={"tenant_id": str})
    happened = stranger.declare("stranger.happened", version=3)
    with aftercommit_world.connect() as connection:
        stranger.publish(connection, happened(what=1), tenant_id="acme")
    (event,) = aftercommit_world.published()
    assert (event.event, event.payload, event.data) == (None, {"what": 1}, {"what": 1})


def test_an_open_transaction_is_mentioned_when_something_is_missed(aftercommit_world: World) -> None:
    with aftercommit_world.connect() as connection:
        aftercommit_world.outbox.publish(connection, OrderPlaced("o-1"), tenant_id="acme")
        with pytest.raises(AssertionError, match=r"1 open transaction has published .* pass on=connection"):
            aftercommit_world.assert_published(OrderPlaced)
        aftercommit_world.assert_published(OrderPlaced, on=connection)


def test_psycopg_sees_its_own_transaction_whatever_its_rows_look_like(aftercommit_world: World) -> None:
    rows = psycopg.rows.dict_row
    with psycopg.connect(aftercommit_world.dsn, row_factory=rows) as connection:
        aftercommit_world.outbox.publish(connection, OrderPlaced("o-1"), tenant_id="acme")
        with connection.transaction(force_rollback=True):
            aftercommit_world.outbox.publish(connection, OrderPaid("o-1", 1), tenant_id="acme")
            aftercommit_world.assert_published_in_order(OrderPlaced, OrderPaid, on=connection)
        aftercommit_world.assert_not_published(OrderPaid, on=connection)
        connection.rollback()
        aftercommit_world.assert_not_published(on=connection)


@pytest.mark.parametrize("dialect", ["postgresql+psycopg", "postgresql+psycopg2"])
def test_a_sqlalchemy_session_sees_its_own_transaction(aftercommit_world: World, dialect: str) -> None:
    engine = create_engine(aftercommit_world.url(dialect))
    with Session(engine) as session:
        aftercommit_world.outbox.publish(session, OrderPlaced("o-1"), tenant_id="acme")
        (event,) = aftercommit_world.assert_published(OrderPlaced, on=session)
        assert event.scope == {"tenant_id": "acme"}
        assert event.record.occurred_at.tzinfo is not None
    engine.dispose()
    aftercommit_world.assert_not_published()


@pytest.mark.parametrize("dialect", ["postgresql+psycopg", "postgresql+asyncpg"])
async def test_an_async_session_sees_its_own_transaction(aftercommit_async_world: AsyncWorld, dialect: str) -> None:
    world = aftercommit_async_world
    engine = create_async_engine(world.url(dialect))
    async with AsyncSession(engine) as session:
        await world.outbox.publish(session, OrderPlaced("o-1"), tenant_id="acme")
        await world.assert_published(OrderPlaced, on=session, count=1)
        await world.assert_published_in_order(OrderPlaced, only=True, on=session)
        await world.assert_not_published(OrderPaid, on=session)
    await engine.dispose()
    await world.assert_not_published()


async def test_asyncpg_sees_its_own_transaction(aftercommit_async_world: AsyncWorld) -> None:
    world = aftercommit_async_world
    connection = await asyncpg.connect(world.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await world.outbox.publish(connection, OrderPlaced("o-1"), tenant_id="acme")
    (event,) = await world.assert_published(OrderPlaced, on=connection)
    assert event.payload == OrderPlaced("o-1")
    await transaction.rollback()
    assert await world.published() == []
    await connection.close()


async def test_an_async_connection_wants_the_world_that_is_awaited(
    aftercommit_world: World, aftercommit_async_world: AsyncWorld
) -> None:
    async with await aftercommit_async_world.connect() as connection:
        with pytest.raises(DeclarationError, match="use aftercommit_async_world"):
            aftercommit_world.published(on=connection)  # type: ignore[arg-type]
    with aftercommit_world.connect() as blocking:
        assert await aftercommit_async_world.published(on=blocking) == []


def test_another_database_is_looked_into_by_its_address(aftercommit_world: World, database: str) -> None:
    aftercommit_world.publish(OrderPlaced("o-1"), tenant_id="acme")
    elsewhere = World(shop_outbox(), "host=nowhere.invalid")
    assert len(elsewhere.published(on=aftercommit_world.dsn)) == 1
    with pytest.raises(SchemaNotMigrated, match="no outbox in schema 'shop'"):
        aftercommit_world.published(on=database)
    with pytest.raises(UnsupportedConnection):
        aftercommit_world.published(on=object())  # type: ignore[arg-type]


@pytest.mark.thorough
def test_typed_scope_is_compared_by_its_type(aftercommit_server: Any) -> None:
    outbox = Outbox("typed", scope={"owner_id": UUID, "account_id": int})
    happened = outbox.declare("happened")
    dsn = aftercommit_server.clone(aftercommit_server.template_for(outbox))
    world = World(outbox, dsn)
    world.publish(happened(n=1), owner_id=OWNER, account_id=2**62)
    (event,) = world.assert_published(happened, scope={"owner_id": OWNER, "account_id": 2**62})
    assert event.scope == {"owner_id": OWNER, "account_id": 2**62}
    with pytest.raises(AssertionError, match=r"scope\.account_id: expected 1, was 4611686018427387904"):
        world.assert_published(happened, scope={"account_id": 1})
    aftercommit_server.drop(dsn)
