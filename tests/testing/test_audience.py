"""The test kit where events say who hears of them."""

from collections.abc import Callable

import psycopg
import pytest

from aftercommit.errors import AudienceViolation
from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from aftercommit.testing import AsyncWorld, Expected, World
from tests.support.hearing import TaskArchived, TaskChanged, task_outbox


@pytest.fixture
def aftercommit_outbox() -> Outbox:
    return task_outbox(scope={"tenant_id": str})


@pytest.fixture(scope="session")
def aftercommit_prepare() -> Callable[[str], None]:
    def prepare(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table told (reader text)")

    return prepare


@pytest.mark.thorough
def test_who_hears_can_be_asserted_before_and_after_the_append(aftercommit_world: World) -> None:
    world = aftercommit_world
    world.publish(TaskChanged("t-1"), tenant_id="acme", audience=["user:17", "user:23"])
    world.publish(TaskArchived("t-1"), tenant_id="acme", audience=[])
    for _ in range(2):
        (found,) = world.assert_published(TaskChanged, audience=["user:23", "user:17"], scope={"tenant_id": "acme"})
        assert found.audience == ("user:17", "user:23")
        world.assert_published(TaskArchived, audience=[])
        world.assert_not_published(TaskChanged, audience=["user:17"])
        world.assert_published_in_order(Expected(TaskChanged, audience={"user:17", "user:23"}), TaskArchived, only=True)
        world.drain()


def test_a_failure_names_the_expected_audience(aftercommit_world: World) -> None:
    aftercommit_world.publish(TaskChanged("t-1"), tenant_id="acme", audience=["user:17"])
    with pytest.raises(AssertionError) as caught:
        aftercommit_world.assert_published(TaskChanged, audience=["user:23"])
    said = str(caught.value).splitlines()
    assert said[0] == "TaskChanged for user:23 was not published"
    assert said[2].strip() == "audience: expected ['user:23'], was ['user:17']"


def test_a_handler_can_tell_everybody(aftercommit_world: World) -> None:
    @aftercommit_world.outbox.on(TaskChanged, consumer="tell")
    def tell(event: Event[TaskChanged], connection: psycopg.Connection[object]) -> None:
        for reader in event.audience:
            connection.execute("insert into told values (%s)", [reader])

    aftercommit_world.deliver_twice(
        "tell",
        TaskChanged("t-1"),
        tenant_id="acme",
        audience=["user:17", "user:23"],
        effects="select reader from told order by reader",
        expected=[("user:17",), ("user:23",)],
    )


async def test_publishing_without_is_refused_in_a_test_too(aftercommit_async_world: AsyncWorld) -> None:
    with pytest.raises(AudienceViolation, match="an empty list means no readers"):
        await aftercommit_async_world.publish(TaskChanged("t-1"), tenant_id="acme")
    await aftercommit_async_world.publish(TaskChanged("t-1"), tenant_id="acme", audience=["user:17"])
    await aftercommit_async_world.assert_published(TaskChanged, audience=["user:17"])
