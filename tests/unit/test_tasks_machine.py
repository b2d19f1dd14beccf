"""The life of a task as data: the rules are those that were agreed on, and all that is told of them is told alike."""

import re
from itertools import chain, combinations, product

import pytest
from starlette.routing import Route

from aftercommit.access.bearer import BearerAccess
from aftercommit.postgres.database import Database
from systems.host.routes import served
from systems.tasks.events import EVENTS
from systems.tasks.service.description import README, machine, with_tables
from systems.tasks.service.machine import RULE_OF, RULES, Action, Relation, State, judge, possible
from systems.tasks.service.routing import HEARS, Hearer, People, audience
from systems.tasks.system import tasks

CREATOR, ASSIGNEE, SUPERVISOR = Relation.CREATOR, Relation.ASSIGNEE, Relation.SUPERVISOR
ALL_RELATIONS = [set(some) for some in chain.from_iterable(combinations(Relation, count) for count in range(4))]
ACTIONS = [action for action in Action if action is not Action.CREATE]

# Written by hand from what was agreed, and not read from the rules: by whom, from where, to where.
AGREED = {
    "assign": ({CREATOR, SUPERVISOR}, set(), {"new": "assigned"}),
    "reassign": (
        {CREATOR, SUPERVISOR},
        set(),
        {"assigned": "assigned", "rejected": "assigned", "reported": "assigned"},
    ),
    "submit_report": ({ASSIGNEE}, set(), {"assigned": "reported", "rejected": "reported"}),
    "approve": ({CREATOR, SUPERVISOR}, {ASSIGNEE}, {"reported": "approved"}),
    "reject": ({CREATOR, SUPERVISOR}, {ASSIGNEE}, {"reported": "rejected"}),
    "reopen": ({CREATOR, SUPERVISOR}, set(), {"approved": "assigned", "cancelled": "assigned"}),
    "cancel": ({CREATOR}, set(), dict.fromkeys(("new", "assigned", "rejected", "reported"), "cancelled")),
}


@pytest.mark.contract("T6")
@pytest.mark.parametrize("action", ACTIONS)
def test_the_rules_are_those_that_were_agreed_on_in_every_state_and_for_everybody(action: Action):
    by, never, leads = AGREED[action]
    for state, relations in product(State, ALL_RELATIONS):
        allowed = bool(relations & by) and not relations & never
        expected = "forbidden" if not allowed else "allowed" if state in leads else "wrong state"
        assert judge(action, state, relations) == expected, (state, relations)
        assert (action in possible(state, relations)) == (expected == "allowed")
    for after in leads.values():
        assert RULE_OF[action].leads_to(assigned=True) == after


@pytest.mark.contract("T6")
def test_what_nobody_is_assigned_to_begins_as_new():
    create, reopen = RULE_OF[Action.CREATE], RULE_OF[Action.REOPEN]
    assert [rule.leads_to(assigned=False) for rule in (create, reopen)] == [State.NEW, State.NEW]
    assert create.leads_to(assigned=True) == State.ASSIGNED
    assert create.allows(set())


@pytest.mark.contract("T5")
def test_every_event_of_the_machine_is_declared_and_routed_to_everybody_around_a_task():
    told = {rule.event for rule in RULES}
    assert told == set(EVENTS) == set(HEARS)
    for event, hears in HEARS.items():
        assert {Hearer.CREATOR, Hearer.ASSIGNEE, Hearer.SUPERVISORS} <= set(hears), event
    assert [event for event, hears in HEARS.items() if Hearer.PREVIOUS_ASSIGNEE in hears] == ["task_reassigned"]


@pytest.mark.contract("T5")
def test_an_audience_has_everybody_once_and_nobody_else():
    people = People(creator=1, assignee=3, previous_assignee=4, supervisors=frozenset({1, 2}))
    assert audience("report_submitted", people) == ["user:1", "user:2", "user:3"]
    assert audience("task_reassigned", people) == ["user:1", "user:2", "user:3", "user:4"]
    alone = People(creator=7, assignee=None, previous_assignee=None, supervisors=frozenset())
    assert audience("task_created", alone) == ["user:7"]


def test_the_tables_of_the_readme_are_those_of_the_rules():
    text = README.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `python -m systems.tasks.service.description`"


def test_the_database_knows_the_same_states():
    constraint = re.search(r"tasks_state_is_known check \((.*?)\)\s*\)", tasks.tables.read_text(), re.DOTALL)
    assert constraint is not None
    assert set(re.findall(r"'(\w+)'", constraint[1])) == set(State)


def test_what_is_told_to_programs_has_every_state_action_and_event():
    told = machine()
    assert [each.action for each in told.actions] == list(Action)
    assert told.states == list(State)
    assert {each.event_type for each in told.routing} == {each.event_type for each in told.actions}


def test_every_route_is_described_and_every_description_is_a_routes():
    part = tasks.part(Database("postgresql://nowhere"), BearerAccess(None), False)
    answered = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in served(tasks.router, part)
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    told = {
        (path, method) for path, item in tasks.openapi()["paths"].items() for method in item if method != "parameters"
    }
    assert answered == told
