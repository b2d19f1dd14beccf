"""What a newcomer sees at first: sample people who stay as they were made, and tasks that go through their lives."""

import psycopg
import pytest

from aftercommit.postgres.database import Database
from aftercommit.testing.signals import Signals
from systems.tasks.sample.traffic import Traffic
from systems.tasks.system import tasks
from tests.support.investigations import prepare
from tests.support.tasks import ADA, GRACE, LEADS

pytestmark = pytest.mark.newest


@pytest.fixture
def site(database: str) -> str:
    prepare(database)
    return database


@pytest.mark.thorough
async def test_people_at_work_do_only_what_they_may_and_all_of_it(site: str):
    signals = Signals()
    async with Traffic(Database(site), rate=1e6, seed=3, probe=signals):
        await signals.until(lambda: signals.counts["traffic.stepped"] >= 150, "too few steps", timeout=60)
    assert not signals.counts["traffic.refused"]
    with psycopg.connect(site, autocommit=True) as connection:
        done: dict[str, int] = dict(
            connection.execute("select action, count(*) from tasks.history group by action").fetchall()
        )
        assert {"create", "assign", "reassign", "submit_report", "approve", "reject"} <= set(done)
        # As many steps as rows, and as many events.
        assert sum(done.values()) >= 150
        assert connection.execute("select count(*) from tasks_events.event_outbox").fetchall() == [
            (sum(done.values()),)
        ]
        by_state = "select count(*) from tasks.tasks where state not in ('approved', 'cancelled')"
        [(open_ones,)] = connection.execute(by_state).fetchall()
        assert open_ones <= 6


async def test_with_a_rate_of_nothing_nothing_happens(site: str):
    async with Traffic(Database(site), rate=0):
        pass
    with psycopg.connect(site, autocommit=True) as connection:
        assert connection.execute("select count(*) from tasks.tasks").fetchall() == [(0,)]


def test_what_was_changed_since_stays_when_it_is_made_again(site: str):
    with psycopg.connect(site, autocommit=True) as connection:
        connection.execute("delete from tasks.members where role_id = %s and user_id = %s", (LEADS, GRACE))
        connection.execute("update tasks.users set name = 'Ada Lovelace' where user_id = %s", (ADA,))
        tasks.create_tables(connection)
        assert connection.execute("select 1 from tasks.members where user_id = %s", (GRACE,)).fetchall() == []
        names = connection.execute("select name from tasks.users where user_id = %s", (ADA,)).fetchall()
        assert names == [("Ada Lovelace",)]
