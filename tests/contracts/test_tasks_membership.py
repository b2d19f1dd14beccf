"""A role that is taken away: nothing that is committed afterwards reaches who has lost it, whoever was quicker.

Both orders are held open by hand: a transaction that publishes while the role is being taken away, and a role that is
being taken away while somebody publishes.
"""

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from itertools import count
from typing import Any

import httpx
import psycopg
import pytest

from systems.tasks.service import people, work
from systems.tasks.service.machine import Action
from tests.support.investigations import eventually
from tests.support.tasks import ADA, ROOT, Service, problem_of

pytestmark = pytest.mark.contract("T5", "T6")

_numbers = count(1000, 10)
Step = Callable[[psycopg.AsyncConnection[Any]], Awaitable[object]]
Test = Callable[..., Awaitable[None]]


WRITTEN = """
    select 'task', xmin::text from tasks.tasks where task_id = %(task)s
    union all select 'history', xmin::text from tasks.history where task_id = %(task)s and version = 2
    union all select 'event', xmin::text from tasks_events.outbox where aggregate_id = %(task)s::text order by 1
"""


class Team:
    """A role of its own with a supervisor, somebody who makes tasks and somebody who works on them."""

    def __init__(self, tasks: Service) -> None:
        self.tasks = tasks
        self.role = self.creator = next(_numbers)
        self.worker, self.supervisor, self.other = (self.role + more for more in (1, 2, 3))
        names: dict[int, tuple[str, list[int]]] = {self.creator: ("creator", []), self.worker: ("worker", [])}
        supervisors = {user: ("supervisor", [self.role]) for user in (self.supervisor, self.other)}
        tasks.people({self.role: "team"}, {**names, **supervisors})

    @property
    def membership(self) -> str:
        return f"{ROOT}/roles/{self.role}/members/{self.supervisor}"

    def task(self) -> int:
        made = self.tasks.create(self.creator, assignee_user_id=self.worker, supervisor_role_ids=[self.role])
        return int(made["task_id"])

    def report(self, task_id: int) -> Step:
        """The worker reports, in a transaction that is still to be committed."""
        step = work.Step(Action.SUBMIT_REPORT, note="done")
        return lambda connection: work.take_step(connection, self.worker, task_id, step)

    def dismiss(self, connection: psycopg.AsyncConnection[Any]) -> Awaitable[object]:
        """The supervisor loses the role, in a transaction that is still to be committed."""
        return people.remove_member(connection, ADA, self.role, self.supervisor)


@pytest.fixture
def team(tasks: Service) -> Team:
    return Team(tasks)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Held:
    """A transaction in which something was done, and which waits to be committed."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], step: Step) -> None:
        self._connection, self._step = connection, step

    async def __aenter__(self) -> int:
        await self._step(self._connection)
        return self._connection.info.backend_pid

    async def __aexit__(self, *_: object) -> None:
        await self._connection.commit()


class TooSlow(Exception):
    """A server has lost patience with a lock, which it has for three seconds, before we let go of it."""


def in_time(test: Test) -> Test:
    """Once more with another team when we were too slow: this is about who waits for whom, and not about how long."""

    @wraps(test)
    async def trials(team: Team, **others: Any) -> None:
        for _ in range(4):
            try:
                return await test(team=team, **others)
            except TooSlow:
                team = Team(team.tasks)
        await test(team=team, **others)

    return trials


def answered(waiting: "Future[httpx.Response]") -> httpx.Response:
    """What came of waiting."""
    answer = waiting.result()
    if answer.status_code == 503:
        raise TooSlow(answer.text)
    return answer


def waits_for(tasks: Service, holder: int, waiting: "Future[httpx.Response]") -> None:
    """Until somebody waits for this transaction; who is answered meanwhile has not waited."""

    def look() -> bool | None:
        assert not waiting.done(), answered(waiting).text
        blocked = "select true from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
        return bool(tasks.rows(blocked, holder)) or None

    eventually(look)


async def connected(tasks: Service) -> psycopg.AsyncConnection[Any]:
    """With a transaction that has begun: what is done in it is not committed by itself."""
    connection = await psycopg.AsyncConnection.connect(tasks.dsn)
    await connection.execute("select 1")
    return connection


def positions(tasks: Service, user: int) -> list[tuple[int, str]]:
    return [(event["task_id"], event["event_type"]) for event in tasks.walk(user)]


@in_time
async def test_who_loses_a_role_hears_of_what_was_under_way_and_of_nothing_after_the_answer(
    team: Team, pool: ThreadPoolExecutor
):
    tasks, task = team.tasks, team.task()
    async with await connected(tasks) as connection, Held(connection, team.report(task)) as holder:
        dismissal = pool.submit(tasks.as_user(ADA).delete, team.membership)
        waits_for(tasks, holder, dismissal)
    assert answered(dismissal).status_code == 200
    tasks.act(team.other, task, "approve")
    later = team.task()
    tasks.shown()
    both = [(task, "task_created"), (task, "report_submitted")]
    await_heard(tasks, team.other, [*both, (task, "report_approved"), (later, "task_created")])
    assert positions(tasks, team.supervisor) == both


@in_time
async def test_an_event_that_waits_for_a_dismissal_does_not_reach_who_was_dismissed(
    team: Team, pool: ThreadPoolExecutor
):
    tasks, task = team.tasks, team.task()
    async with await connected(tasks) as connection, Held(connection, team.dismiss) as holder:
        report = pool.submit(tasks.try_to, team.worker, task, "submit-report", report="done")
        waits_for(tasks, holder, report)
    assert answered(report).status_code == 200
    tasks.shown()
    await_heard(tasks, team.other, [(task, "task_created"), (task, "report_submitted")])
    assert positions(tasks, team.supervisor) == [(task, "task_created")]


@in_time
async def test_who_acts_while_being_dismissed_is_too_late(team: Team, pool: ThreadPoolExecutor):
    tasks, task = team.tasks, team.task()
    tasks.act(team.worker, task, "submit-report", report="done")
    async with await connected(tasks) as connection, Held(connection, team.dismiss) as holder:
        approval = pool.submit(tasks.try_to, team.supervisor, task, "approve")
        waits_for(tasks, holder, approval)
    assert problem_of(answered(approval)) == (403, "forbidden")
    assert problem_of(tasks.as_user(team.supervisor).get(f"{ROOT}/{task}")) == (403, "forbidden")
    listed = tasks.as_user(team.supervisor).get(ROOT).json()["tasks"]
    assert listed == []
    assert tasks.as_user(team.creator).get(f"{ROOT}/{task}").json()["state"] == "reported"


async def test_a_dismissal_that_is_undone_has_never_been(team: Team):
    tasks, task = team.tasks, team.task()
    async with await connected(tasks) as connection:
        await team.dismiss(connection)
        await connection.rollback()
    tasks.act(team.worker, task, "submit-report", report="done")
    await_heard(tasks, team.supervisor, [(task, "task_created"), (task, "report_submitted")])


@in_time
async def test_who_comes_to_publish_lets_a_dismissal_that_waits_go_first(team: Team, pool: ThreadPoolExecutor):
    """However many publish, one after the other always being there, a dismissal has its turn."""
    tasks, one, other = team.tasks, team.task(), team.task()
    async with await connected(tasks) as connection, Held(connection, team.report(one)) as holder:
        dismissal = pool.submit(tasks.as_user(ADA).delete, team.membership)
        waits_for(tasks, holder, dismissal)
        [(waiting,)] = tasks.rows("select pid from pg_stat_activity where %s = any(pg_blocking_pids(pid))", holder)
        report = pool.submit(tasks.try_to, team.worker, other, "submit-report", report="done")
        waits_for(tasks, waiting, report)
    assert answered(dismissal).status_code == answered(report).status_code == 200
    tasks.shown()
    assert (other, "report_submitted") not in positions(tasks, team.supervisor)


@pytest.mark.thorough
async def test_a_task_that_somebody_does_not_let_go_of_is_a_503_of_its_own(team: Team, pool: ThreadPoolExecutor):
    tasks, task = team.tasks, team.task()
    async with await connected(tasks) as connection:
        await connection.execute("select from tasks.tasks where task_id = %s for update", [task])
        asked = [pool.submit(tasks.try_to, team.worker, task, "submit-report", report="done") for _ in range(4)]
        refused = [each.result() for each in asked]
        assert {problem_of(each) for each in refused} == {(503, "unavailable")}
        assert "Another request holds a lock on the same data" in refused[0].json()["message"]
        assert tasks.as_user(team.worker).get(f"{ROOT}/me").status_code == 200
    tasks.act(team.worker, task, "submit-report", report="done")


async def test_history_is_of_the_moment_at_which_one_was_let_in(team: Team, pool: ThreadPoolExecutor):
    tasks, task = team.tasks, team.task()
    async with await connected(tasks) as connection:
        await connection.execute("lock table tasks.history in access exclusive mode")
        reading = pool.submit(tasks.as_user(team.supervisor).get, f"{ROOT}/{task}/history")
        waits_for(tasks, connection.info.backend_pid, reading)
        assert tasks.as_user(ADA).delete(team.membership).status_code == 200
        await work.take_step(connection, team.worker, task, work.Step(Action.SUBMIT_REPORT, note="after the dismissal"))
        await connection.commit()
    assert reading.result().status_code == 200
    assert "after the dismissal" not in reading.result().text


async def test_those_who_publish_to_the_same_people_do_not_wait_for_each_other(team: Team):
    tasks, one, other = team.tasks, team.task(), team.task()
    async with await connected(tasks) as connection, Held(connection, team.report(one)):
        # Answered while the first is still open.
        tasks.act(team.worker, other, "submit-report", report="done")
    await_heard(tasks, team.supervisor, [(one, "task_created"), (other, "task_created")], beginning=True)


@in_time
async def test_what_is_done_with_one_task_waits_for_its_turn_and_may_come_too_late(
    team: Team, pool: ThreadPoolExecutor
):
    tasks, task = team.tasks, team.task()
    async with await connected(tasks) as connection, Held(connection, team.report(task)) as holder:
        again = pool.submit(tasks.try_to, team.worker, task, "submit-report", report="done twice")
        waits_for(tasks, holder, again)
    assert problem_of(answered(again)) == (409, "conflict")
    assert answered(again).json()["details"]["state"] == "reported"
    tasks.shown()
    await_heard(tasks, team.supervisor, [(task, "task_created"), (task, "report_submitted")])


async def test_a_transaction_that_is_undone_leaves_neither_task_nor_history_nor_event(team: Team):
    tasks, task = team.tasks, team.task()
    tasks.shown()
    async with await connected(tasks) as connection:
        await team.report(task)(connection)
        written = await (await connection.execute(WRITTEN, {"task": task})).fetchall()
        await connection.rollback()
    # Three rows of one transaction, before it was undone.
    assert [what for what, _ in written] == ["event", "history", "task"]
    assert len({by for _, by in written}) == 1
    shown = tasks.as_user(team.worker).get(f"{ROOT}/{task}").json()
    assert (shown["state"], shown["version"]) == ("assigned", 1)
    assert len(tasks.as_user(team.worker).get(f"{ROOT}/{task}/history").json()["entries"]) == 1
    tasks.shown()
    assert positions(tasks, team.supervisor) == [(task, "task_created")]


async def test_who_gets_a_role_hears_from_then_on_and_not_of_before(team: Team):
    tasks, task = team.tasks, team.task()
    newcomer = team.role + 5
    tasks.people({}, {newcomer: ("newcomer", [])})
    tasks.shown()
    given = tasks.as_user(ADA).put(f"{ROOT}/roles/{team.role}/members/{newcomer}")
    assert given.status_code == 200
    tasks.act(team.worker, task, "submit-report", report="done")
    await_heard(tasks, newcomer, [(task, "report_submitted")])
    assert tasks.as_user(newcomer).get(f"{ROOT}/{task}").json()["actions"] == ["reassign", "approve", "reject"]


def await_heard(tasks: Service, user: int, expected: list[tuple[int, str]], *, beginning: bool = False) -> None:
    """Until a user has heard of exactly this (or of this first)."""

    def look() -> bool | None:
        found = positions(tasks, user)
        return (found[: len(expected)] if beginning else found) == expected or None

    eventually(look)
