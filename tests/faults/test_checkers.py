"""The checkers on histories made by hand: silent on a good one, and each sees the one thing it is there for."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults import evidence, history
from tests.faults.checkers import CHECKERS, check
from tests.faults.evidence import Effect, Entry, Evidence, Letter, Logged, Operation, Poll
from tests.faults.history import History
from tests.faults.workload import BOOK, POST

CONSUMERS = {BOOK: ("strict", "wide"), POST: ("mail",)}


def logged(position: int, op: str, number: int, **more: Any) -> Logged:
    values: dict[str, Any] = {"outbox": BOOK, "part": 0, "account": "account-1", "digest": f"d{position}"} | more
    return Logged(position=position, op=op, number=number, **values)


def effects(*consumers: str, ops: Iterable[str] = ("a", "b", "c")) -> list[Effect]:
    return [
        Effect(consumer, op, 0, "account-1", number) for consumer in consumers for number, op in enumerate(ops, start=1)
    ]


def good() -> Evidence:
    """Three events of one account in the log, read by a poller, handled by both consumers; one was rolled back."""
    return Evidence(
        operations=[
            Operation("a", "plain", "ok", (0,)),
            Operation("b", "late", "ok", (0,)),
            Operation("c", "keyed", "info", (0,)),
            Operation("r", "rollback", "fail", (0,)),
        ],
        entries=[Entry(BOOK, op, 0, "account-1", number) for number, op in enumerate("abc", start=1)],
        log=[logged(1, "a", 1), logged(2, "b", 2), logged(3, "c", 3)],
        polls=[
            Poll("poller-1", BOOK, 0, ((1, "d1"), (2, "d2"))),
            Poll("poller-1", BOOK, 2, ((3, "d3"),)),
        ],
        effects=effects("strict", "wide"),
        consumers=CONSUMERS,
    )


def seen(found: Evidence) -> set[str]:
    return {violation.checker for violation in check(found)}


def test_a_good_history_has_no_violations():
    assert check(good()) == []


def test_every_checker_has_a_bad_history_here():
    assert {checker for checker, _ in BAD} == set(CHECKERS)


BAD = [
    ("lost", lambda: replace(good(), log=good().log[:2], polls=good().polls[:1])),
    ("lost", lambda: replace(good(), entries=good().entries[1:], log=good().log[1:], polls=[])),
    ("lost", lambda: replace(good(), log=good().log[:2], waiting=[logged(0, "c", 3, status="pending")], polls=[])),
    ("unexpected", lambda: replace(good(), log=[*good().log, logged(4, "r", 4)])),
    ("unexpected", lambda: replace(good(), log=[*good().log, logged(4, "nobody", 4)])),
    ("unexpected", lambda: replace(good(), entries=[*good().entries, Entry(BOOK, "r", 0, "account-1", 4)])),
    ("duplicated", lambda: replace(good(), log=[*good().log, logged(4, "c", 3, account="account-2")])),
    ("duplicated_effect", lambda: replace(good(), effects=[*good().effects, good().effects[-1]])),
    ("lost_effect", lambda: replace(good(), effects=good().effects[:-1])),
    ("lost_effect", lambda: replace(good(), effects=effects("wide"), letters=[Letter("strict", "a", 0, "parked")])),
    ("poll_skip", lambda: replace(good(), polls=[Poll("poller-1", BOOK, 0, ((1, "d1"), (3, "d3")))])),
    (
        "nonmonotonic_poll",
        lambda: replace(good(), polls=[*good().polls, Poll("poller-1", BOOK, 1, ((2, "d2"),))]),
    ),
    ("gap", lambda: replace(good(), log=[*good().log[:2], logged(4, "c", 3)], polls=[])),
    ("gap", lambda: replace(good(), log=[*good().log[:2], logged(2, "c", 3)], polls=[])),
    ("changed", lambda: replace(good(), polls=[Poll("poller-1", BOOK, 0, ((1, "something else"),))])),
    ("changed", lambda: replace(good(), polls=[*good().polls, Poll("poller-1", BOOK, 3, ((4, "gone"),))])),
    ("reordered", lambda: replace(good(), log=[logged(1, "b", 2), logged(2, "a", 1), logged(3, "c", 3)], polls=[])),
    ("reordered_effect", lambda: replace(good(), effects=[*effects("strict")[::-1], *effects("wide")])),
    ("reordered_effect", lambda: replace(good(), effects=[*effects("strict"), *effects("wide")[::-1]])),
    ("foreign_scope", lambda: replace(good(), log=[good().log[0]._replace(is_foreign=True), *good().log[1:]])),
    ("foreign_scope", lambda: replace(good(), effects=[e._replace(is_foreign=True) for e in good().effects])),
    ("intrusion", lambda: replace(good(), intrusions=["lane 3 taken 0.4 s before the lease ran out"])),
    ("ended", lambda: replace(good(), ended=["relay-1 ended with status 1"])),
    ("stuck", lambda: replace(good(), stuck=["wide is behind: 7"])),
]


@pytest.mark.parametrize(("checker", "found"), BAD)
def test_a_bad_history_is_seen_by_its_checker(checker: str, found: Any):
    assert checker in seen(found())


def test_an_event_of_a_failed_transaction_is_named_with_the_kind_of_transaction():
    (violation,) = check(replace(good(), log=[*good().log, logged(4, "r", 4)]))

    assert violation.what == "r part 0 is in book: a rollback known to have failed"


def test_an_unknown_outcome_may_have_happened_or_not():
    never = replace(
        good(), entries=good().entries[:2], log=good().log[:2], polls=[], effects=effects("strict", "wide", ops="ab")
    )

    assert check(never) == []


def test_what_a_restore_has_taken_back_is_not_lost_and_what_comes_after_it_must_not_be_skipped():
    restored = replace(
        good(),
        operations=[*good().operations, Operation("gone", "plain", "ok", (0,), began=5.0, ended=6.0)],
        polls=[*good().polls, Poll("poller-1", BOOK, 3, ((4, "gone"),))],
        undone=[(4.0, 7.0)],
        gaps={BOOK: [(4, 100)]},
    )

    assert check(restored) == []
    assert seen(replace(restored, undone=[(6.5, 7.0)])) == {"lost"}
    assert seen(replace(restored, gaps={})) == {"changed"}
    # Another event at a position that a poller has seen.
    again = [*good().log, logged(4, "d", 4)]
    assert {"changed", "gap"} <= seen(replace(restored, log=again))


def test_what_is_left_of_work_that_did_not_end_is_stuck_and_not_lost():
    left = replace(
        good(),
        log=good().log[:2],
        waiting=[logged(0, "c", 3, status="pending")],
        polls=[],
        effects=effects("strict", ops="a") + effects("wide", ops="ab"),
        checkpoints={"strict": 1, "wide": 2},
        stuck=["strict is behind: 1"],
        unfinished=True,
    )

    assert seen(left) == {"stuck"}
    assert "lost_effect" in seen(replace(left, checkpoints={"strict": 2, "wide": 2}))
    assert "lost" in seen(replace(left, waiting=[]))


def test_poison_may_be_set_aside_and_nothing_else():
    def with_account(account: str) -> Evidence:
        entry = Entry(BOOK, "p", 0, account, 1)
        row = logged(4, "p", 1, account=account)
        letters = [Letter(consumer, "p", 0, "parked") for consumer in CONSUMERS[BOOK]]
        return replace(good(), entries=[*good().entries, entry], log=[*good().log, row], letters=letters)

    assert check(with_account("poison-1")) == []
    assert seen(with_account("account-9")) == {"lost_effect"}


def test_a_relaxed_consumer_may_overtake_an_event_that_failed_and_a_strict_one_may_not():
    late = [*effects("strict")[1:], effects("strict")[0], *effects("wide")[1:], effects("wide")[0]]
    letters = [Letter(consumer, "a", 0, "resolved") for consumer in CONSUMERS[BOOK]]

    found = check(replace(good(), effects=late, letters=letters))

    assert [violation.what for violation in found] == ["strict: account-1 1 was handled after 3"]


def test_a_transaction_that_was_begun_and_never_ended_is_uncertain(tmp_path: Path):
    lines = History(tmp_path / "writer-1.jsonl")
    lines.write("invoke", "publish", op="x", kind="plain")
    lines.write("invoke", "publish", op="y", kind="keyed")
    lines.write("info", "publish", op="y", kind="keyed", parts=[0])
    lines.write("invoke", "publish", op="y", kind="keyed")
    lines.write("fail", "publish", op="y", kind="keyed", parts=[0], error="OperationalError")
    lines.write("invoke", "publish", op="z", kind="plain")
    lines.write("fail", "publish", op="z", kind="plain", parts=[0], error="LockNotAvailable")

    outcomes = {operation.op: operation.outcome for operation in evidence.operations(tmp_path)}

    assert outcomes == {"x": "info", "y": "info", "z": "fail"}


def test_a_line_cut_in_two_by_a_crash_is_passed_over(tmp_path: Path):
    path = tmp_path / "poller-1.jsonl"
    History(path).write("ok", "poll", outbox=BOOK, after=0, upto=7, rows=[])
    with path.open("a") as file:
        file.write('{"type": "ok", "f": "po')

    assert [line["upto"] for line in history.read(path)] == [7]
    last = history.last(path, "poll")
    assert last is not None
    assert last["upto"] == 7
