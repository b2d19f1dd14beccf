"""Every state × action × relation over HTTP: who may not is 403, at the wrong time it is 409, and nothing changed."""

from itertools import chain, combinations
from typing import Any, NamedTuple

import pytest

from systems.tasks.api.routes import STEPS
from systems.tasks.service.machine import RULE_OF, Action, Relation, State, judge, possible
from tests.support.tasks import ROOT, Service, problem_of

pytestmark = [pytest.mark.contract("T6"), pytest.mark.newest]

CREATOR, ASSIGNEE, SUPERVISOR = Relation.CREATOR, Relation.ASSIGNEE, Relation.SUPERVISOR
SETS = [frozenset(some) for some in chain.from_iterable(combinations(Relation, count) for count in range(4))]
# Who acts: the same person, once without and once with the supervising role; and others around the task.
PLAIN, WITH_ROLE, OTHER_CREATOR, OTHER_ASSIGNEE, OTHER_SUPERVISOR, NEXT = range(60, 66)
ROLE = 60
BODIES: dict[str, dict[str, Any]] = {
    "assign": {"assignee_user_id": NEXT},
    "reassign": {"assignee_user_id": NEXT},
    "submit-report": {"report": "done"},
    "approve": {"comment": "fine"},
    "reject": {"reason": "not yet"},
    "reopen": {"reason": "after all"},
    "cancel": {"reason": "not needed"},
}
_PREPARE = """
    with made as (
        insert into tasks.tasks (title, state, creator_user_id, assignee_user_id, report)
        values ('one', %(state)s, %(creator)s, %(assignee)s, %(report)s) returning task_id
    ), supervised as (insert into tasks.supervisors select task_id, 60 from made)
    select task_id from made
"""


class Situation(NamedTuple):
    """A state, with or without an assignee."""

    state: State
    assigned: bool


SITUATIONS = [
    Situation(State.NEW, False),
    Situation(State.CANCELLED, False),
    *(Situation(state, True) for state in State if state is not State.NEW),
]


@pytest.fixture(scope="module", autouse=True)
def people(tasks: Service) -> None:
    named: dict[int, tuple[str, list[int]]] = {user: (f"person {user}", []) for user in range(60, 66)}
    supervising = {user: (f"person {user}", [ROLE]) for user in (WITH_ROLE, OTHER_SUPERVISOR)}
    tasks.people({ROLE: "supervisor of the grid"}, {**named, **supervising})


def prepare(tasks: Service, situation: Situation, relations: frozenset[Relation]) -> tuple[int, int]:
    """A task in this situation, and the user who stands so to it."""
    actor = WITH_ROLE if SUPERVISOR in relations else PLAIN
    assignee = (actor if ASSIGNEE in relations else OTHER_ASSIGNEE) if situation.assigned else None
    has_report = situation.state in (State.REPORTED, State.REJECTED, State.APPROVED)
    values = {
        "state": situation.state,
        "creator": actor if CREATOR in relations else OTHER_CREATOR,
        "assignee": assignee,
        "report": "a report" if has_report else None,
    }
    row = tasks.connection().execute(_PREPARE, values).fetchone()
    assert row is not None
    return row[0], actor


def trace(tasks: Service, task_id: int) -> tuple[Any, ...]:
    """What would tell that something was done: version, state, history, events on their way or in the log."""
    [found] = tasks.rows(
        """select version, state, (select count(*) from tasks.history where task_id = %s),
                  (select count(*) from tasks_events.outbox where aggregate_id = %s::text)
                  + (select count(*) from tasks_events.log where aggregate_id = %s::text)
           from tasks.tasks where task_id = %s""",
        *(task_id,) * 4,
    )
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: f"{each.state}{'' if each.assigned else ' free'}")
def test_everybody_tries_everything_in_every_state(tasks: Service, situation: Situation):
    tried = 0
    for relations in SETS:
        if ASSIGNEE in relations and not situation.assigned:
            continue
        for verb in STEPS:
            attempt(tasks, situation, relations, verb)
            tried += 1
    assert tried == (8 if situation.assigned else 4) * 7


def attempt(tasks: Service, situation: Situation, relations: frozenset[Relation], verb: str) -> None:
    task_id, actor = prepare(tasks, situation, relations)
    action = Action(verb.replace("-", "_"))
    verdict = judge(action, situation.state, relations)
    answer = tasks.try_to(actor, task_id, verb, **BODIES[verb])
    case = (situation, sorted(relations), verb, answer.text)
    if verdict == "allowed":
        assert answer.status_code == 200, case
        check_done(tasks, situation, action, actor, answer.json())
        return
    expected = (403, "forbidden") if verdict == "forbidden" else (409, "conflict")
    assert problem_of(answer) == expected, case
    details = answer.json()["details"]
    if verdict == "wrong state":
        assert (details["state"], details["allowed_states"]) == (situation.state, list(RULE_OF[action].states)), case
    else:
        # How a task stands is nobody's business who may not touch it.
        assert "state" not in details, case
    assert trace(tasks, task_id) == (1, situation.state, 0, 0), case
    shown = tasks.as_user(actor).get(f"{ROOT}/{task_id}")
    if relations:
        assert shown.json()["actions"] == [str(each) for each in possible(situation.state, relations)], case
    else:
        assert problem_of(shown) == (403, "forbidden"), case


def check_done(tasks: Service, situation: Situation, action: Action, actor: int, task: dict[str, Any]) -> None:
    """The task, its history and its event, all three and each once."""
    rule = RULE_OF[action]
    gets_one = action in (Action.ASSIGN, Action.REASSIGN)
    after = rule.leads_to(assigned=situation.assigned or gets_one)
    assert (task["state"], task["version"]) == (after, 2)
    assert trace(tasks, task["task_id"]) == (2, after, 1, 1)
    if gets_one:
        assert task["assignee_user_id"] == NEXT
    relations = {CREATOR: task["creator_user_id"] == actor, ASSIGNEE: task["assignee_user_id"] == actor}
    now = {relation for relation, holds in relations.items() if holds} | ({SUPERVISOR} if actor == WITH_ROLE else set())
    assert task["actions"] == [str(each) for each in possible(State(after), now)]
    [(event_type, event_id, payload)] = tasks.rows(
        "select event_type, id, payload from tasks_events.event_outbox where aggregate_id = %s", str(task["task_id"])
    )
    [(recorded, from_state, to_state, by)] = tasks.rows(
        "select event_id, from_state, to_state, actor_user_id from tasks.history where task_id = %s", task["task_id"]
    )
    assert (event_type, event_id) == (rule.event, recorded)
    assert (from_state, to_state, by) == (situation.state, after, actor)
    assert (payload["state"], payload["actor_user_id"]) == (after, actor)
