"""The relay's decisions: what becomes of a failure, what may go together, and below which seq nothing can appear."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftercommit.backoff import LONGEST_DELAY, Backoff, ByError, Constant, Exponential, Never
from aftercommit.event.envelope import Record
from aftercommit.postgres.shape import LANES
from aftercommit.relay.plan import Marks, Verdict, Watermark, agreed, judge, rounds, share_of_lanes
from aftercommit.relay.transport import Failure
from aftercommit.text import MAX_ERROR_LENGTH

EVENT = UUID(int=7)
NOW = datetime(2024, 1, 1, tzinfo=UTC)
FIVE_SECONDS = Constant(5.0)


def verdict_on(
    failure: Failure | None = None,
    retry_count: int = 0,
    *,
    already_counted: bool = False,
    backoff: Backoff = FIVE_SECONDS,
    max_attempts: int = 3,
) -> Verdict:
    return judge(
        failure or Failure(EVENT, RuntimeError("down")),
        retry_count,
        already_counted=already_counted,
        backoff=backoff,
        max_attempts=max_attempts,
    )


def test_a_failure_waits_as_long_as_the_policy_says():
    asked: list[tuple[int, BaseException]] = []
    problem = RuntimeError("down")

    def policy(attempt: int, error: BaseException) -> float | None:
        asked.append((attempt, error))
        return 12.5

    verdict = verdict_on(Failure(EVENT, problem, consumer="mailer"), 1, backoff=policy)

    assert verdict == Verdict(EVENT, "mailer", "down", "RuntimeError", 12.5, 1, problem)
    assert asked == [(2, problem)]


def test_the_last_attempt_ends_it_and_the_policy_is_not_asked():
    def never_asked(attempt: int, error: BaseException) -> float | None:
        raise AssertionError("the policy was asked about an attempt that will not be made")

    assert verdict_on(retry_count=1).delay == 5.0
    assert verdict_on(retry_count=2, backoff=never_asked).delay is None
    assert verdict_on(retry_count=10, backoff=never_asked).delay is None


def test_one_attempt_means_no_retry():
    assert verdict_on(max_attempts=1).delay is None


def test_an_attempt_counted_before_delivery_is_not_counted_again():
    verdict = verdict_on(retry_count=2, already_counted=True)

    assert (verdict.counted, verdict.delay) == (0, 5.0)
    assert verdict_on(retry_count=3, already_counted=True).delay is None


def test_a_permanent_failure_ends_at_once_and_is_counted():
    verdict = verdict_on(Failure(EVENT, RuntimeError("no"), permanent=True, retry_after=1.0))

    assert (verdict.delay, verdict.counted) == (None, 1)


def test_the_destination_knows_better_when_to_come_back():
    assert verdict_on(Failure(EVENT, RuntimeError("busy"), retry_after=0.0)).delay == 0.0
    assert verdict_on(Failure(EVENT, RuntimeError("busy"), retry_after=99.0)).delay == 99.0


def test_retry_after_does_not_buy_more_attempts():
    assert verdict_on(Failure(EVENT, RuntimeError("busy"), retry_after=1.0), retry_count=2).delay is None


def test_a_policy_may_give_up():
    assert verdict_on(backoff=Never()).delay is None


def test_a_policy_per_class_of_error():
    policy = ByError({ConnectionError: Constant(1.0), ValueError: Never()}, otherwise=Constant(9.0))

    assert verdict_on(Failure(EVENT, ConnectionResetError("gone")), backoff=policy).delay == 1.0
    assert verdict_on(Failure(EVENT, UnicodeError("not text")), backoff=policy).delay is None
    assert verdict_on(Failure(EVENT, KeyError("field")), backoff=policy).delay == 9.0


@pytest.mark.parametrize(
    ("answered", "waited"), [(-1.0, 0.0), (-inf, 0.0), (nan, 0.0), (inf, LONGEST_DELAY), (1e300, LONGEST_DELAY)]
)
def test_a_policy_that_miscalculates_does_not_reach_the_database(answered, waited):
    assert verdict_on(backoff=Constant(answered)).delay == waited
    assert verdict_on(Failure(EVENT, RuntimeError("busy"), retry_after=answered)).delay == waited


@given(st.integers(1, 40), st.integers(1, 50))
def test_exponential_waits_stay_within_their_bounds(attempts, max_attempts):
    verdict = verdict_on(retry_count=attempts - 1, backoff=Exponential(), max_attempts=max_attempts)

    if attempts >= max_attempts:
        assert verdict.delay is None
    else:
        longest = min(300.0, 2.0 ** (attempts - 1))
        assert verdict.delay is not None
        assert longest / 2 <= verdict.delay <= longest


def test_any_error_can_be_stored():
    class Silent(Exception):
        pass

    assert verdict_on(Failure(EVENT, Silent())).error == "Silent"
    hostile = verdict_on(Failure(EVENT, RuntimeError("a\x00b\udcff" + "x" * 10_000))).error
    assert "\x00" not in hostile
    hostile.encode()
    assert len(hostile) == MAX_ERROR_LENGTH


def record(aggregate: str, seq: int) -> Record:
    return Record(
        event_id=uuid4(),
        event_type="order.placed",
        schema_version=1,
        aggregate_type="order",
        aggregate_id=aggregate,
        occurred_at=NOW,
        correlation_id="c",
        causation_id=None,
        scope={},
        payload=b"{}",
        created_at=NOW,
        seq=seq,
    )


@given(st.lists(st.sampled_from("abcde"), max_size=40))
def test_rounds_hold_every_aggregate_once_and_keep_its_order(aggregates):
    records = [record(aggregate, seq) for seq, aggregate in enumerate(aggregates)]

    batches = list(rounds(records))

    for batch in batches:
        assert batch
        assert len({each.aggregate for each in batch}) == len(batch)
        assert batch == sorted(batch, key=lambda each: each.seq)
    flat = [each for batch in batches for each in batch]
    assert sorted(flat, key=lambda each: each.seq) == records
    for aggregate in set(aggregates):
        assert [each.seq for each in flat if each.aggregate_id == aggregate] == [
            seq for seq, name in enumerate(aggregates) if name == aggregate
        ]


@given(st.integers(0, 200))
def test_shares_cover_all_lanes_and_differ_by_one_at_most(relays):
    share = share_of_lanes(relays)

    assert share * max(1, relays) >= LANES
    assert (share - 1) * max(1, relays) < LANES


def test_a_lone_relay_takes_everything_and_more_relays_than_lanes_take_one_each():
    assert [share_of_lanes(relays) for relays in (0, 1, 2, 3, 64, 65)] == [64, 64, 32, 22, 1, 1]


@dataclass
class Writers:
    """Transactions that lock the outbox, draw seqs and end in any order; what PostgreSQL would show of them."""

    last_seq: int = 0
    open: dict[str, list[int]] = field(default_factory=dict)
    begun: int = 0

    def write(self, which: int) -> None:
        names = sorted(self.open)
        if which >= len(names):
            self.begun += 1
            name = f"{self.begun % 4}/{self.begun}"
            self.open[name] = []
        else:
            name = names[which]
        self.last_seq += 1
        self.open[name].append(self.last_seq)

    def end(self, which: int) -> None:
        if self.open:
            del self.open[sorted(self.open)[which % len(self.open)]]

    def prepare(self, which: int) -> None:
        if self.open:
            name = sorted(self.open)[which % len(self.open)]
            self.begun += 1
            self.open[f"-1/{self.begun}"] = self.open.pop(name)

    def do(self, action: str, which: int) -> None:
        {"write": self.write, "end": self.end, "prepare": self.prepare}[action](which)

    @property
    def lowest_open(self) -> int:
        return min((seq for seqs in self.open.values() for seq in seqs), default=self.last_seq + 1)


Steps = list[tuple[str, int]]
STEP = st.tuples(st.sampled_from(["write", "write", "end", "end", "prepare"]), st.integers(0, 5))


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(STEP, max_size=4), st.lists(STEP, max_size=4)), max_size=25))
def test_resolved_never_passes_a_seq_that_an_open_transaction_has_drawn(turns: list[tuple[Steps, Steps]]):
    writers, marks = Writers(), Marks()
    for before, between in turns:
        for step in before:
            writers.do(*step)
        last_seq = writers.last_seq
        for step in between:
            writers.do(*step)
        marks.observe(last_seq, set(writers.open))
        assert marks.resolved < writers.lowest_open
        assert marks.resolved <= last_seq
    writers.open.clear()
    marks.observe(writers.last_seq, ())
    assert marks.resolved == writers.last_seq


def test_marks_go_on_although_there_is_always_somebody_writing():
    marks = Marks()
    for turn in range(100):
        marks.observe(turn * 10, {f"1/{turn}", f"2/{turn + 1}"})

    assert marks.resolved >= 960


def test_marks_wait_for_the_one_transaction_that_stays_open():
    marks = Marks()
    for turn in range(1, 100):
        marks.observe(turn * 10, {"5/1", f"1/{turn}"})
    assert marks.resolved == 0

    marks.observe(1000, {"1/100"})
    assert marks.resolved == 10
    marks.observe(1010, {"1/101"})
    assert marks.resolved == 1000


def test_nobody_writing_resolves_everything_at_once():
    marks = Marks()
    marks.observe(41, ())

    assert marks.resolved == 41


def test_after_a_reconnect_nothing_is_known():
    marks = Marks()
    marks.observe(41, ())
    marks.observe(50, {"1/1"})
    marks.forget()
    assert marks.resolved == 0

    marks.observe(42, {"1/1"})
    assert marks.resolved == 0


def test_other_lanes_have_a_past_of_their_own():
    watermark = Watermark()
    assert watermark.for_lanes([1, 2]) == 0
    watermark.settled([3, 4, 5], (), resolved=100)
    assert watermark.for_lanes([2, 1]) == 5
    assert watermark.for_lanes([2, 1, 3]) == 0
    assert watermark.for_lanes([1, 2]) == 0


@pytest.mark.parametrize(
    ("read", "unsettled", "resolved", "value"),
    [
        ([3, 4, 5], (), 100, 5),
        ([3, 4, 5], (), 4, 4),
        ([3, 4, 5], (4,), 100, 3),
        ([3, 4, 5], (5, 3), 100, 2),
        ([3, 4, 5], (), 0, 0),
        ([], (), 100, 0),
    ],
)
def test_the_watermark_follows_what_is_dealt_with_and_resolved(read, unsettled, resolved, value):
    watermark = Watermark()
    watermark.settled(read, unsettled, resolved)

    assert watermark.value == value


def test_the_watermark_never_goes_back():
    watermark = Watermark()
    watermark.settled([10], (), resolved=10)
    watermark.settled([3], (3,), resolved=10)
    watermark.nothing_below(2, resolved=10)

    assert watermark.value == 10


@pytest.mark.parametrize(("lowest", "resolved", "value"), [(None, 50, 50), (8, 50, 7), (80, 50, 50), (1, 50, 0)])
def test_where_nothing_untried_is_below_the_watermark_may_go_there(lowest, resolved, value):
    watermark = Watermark()
    watermark.nothing_below(lowest, resolved)

    assert watermark.value == value


def test_a_look_back_outlives_the_batch_that_is_under_way():
    """The batch was read before the event was put back: what it concludes must not undo the look back."""
    watermark = Watermark()
    watermark.for_lanes({1})
    watermark.settled([50], (), 100)

    watermark.look_back_to(7)
    watermark.settled([60], (), 100)

    assert watermark.for_lanes({1}) == 6
    assert watermark.for_lanes({1}) == 6


def test_one_final_verdict_ends_the_event_for_all_its_consumers():
    ending = Verdict(EVENT, "mailer", "gone", "Gone", None, 1)
    waiting = Verdict(EVENT, "index", "down", "Down", 5.0, 1)

    assert [verdict.delay for verdict in agreed([waiting, ending])] == [None, None]
    assert agreed([waiting]) == [waiting]


def test_a_policy_that_fails_or_answers_nonsense_is_replaced_by_the_default():
    def broken(attempt: int, error: BaseException) -> float | None:
        raise ZeroDivisionError

    nonsense: Any = lambda attempt, error: timedelta(seconds=1)  # noqa: E731
    for policy in (broken, nonsense):
        delay = verdict_on(Failure(EVENT, RuntimeError()), 0, backoff=policy).delay
        assert delay is not None
        assert 0 < delay <= 1


def test_an_error_that_cannot_be_read_is_known_by_its_class():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Mute" in verdict_on(Failure(EVENT, Mute()), 0).error
