"""Dead letters of log consumers: retrying, resolved, parked; by policy, by the handler's word, by hand."""

import asyncio
import logging
from typing import Any, Literal

import pytest

from aftercommit.backoff import ByError, Constant, Never
from aftercommit.consumer import Dispatcher, Done, Park, Retry, letter_retries
from aftercommit.errors import TransportUnavailable
from aftercommit.event.envelope import Event
from tests.support.consuming import (
    Ledger,
    append,
    bus_on,
    checkpoint,
    handle_all,
    inbox,
    kill,
    letters,
    numbered,
    outbox_records,
    place_in_log,
    settled,
    worker_on,
)
from tests.support.shop import OrderPlaced, Shop, shop_outbox

HOUR = 3600.0
DUE_IN = "extract(epoch from next_retry_at - clock_timestamp())::float8"
RETRY_NOW = "update dead_letter_events set status = 'retrying', next_retry_at = now()"


class RecordedPolicy:
    """A backoff policy that remembers what it was asked."""

    def __init__(self, *delays: float | None) -> None:
        """These delays, one after the other."""
        self.delays = list(delays)
        self.asked: list[tuple[int, str]] = []

    def __call__(self, attempt: int, error: BaseException) -> float | None:
        """The next delay."""
        self.asked.append((attempt, str(error)))
        return self.delays.pop(0)


@pytest.mark.parametrize("with_inbox", [True, False])
async def test_a_retry_that_succeeds_resolves_the_letter_and_has_its_effect_once(shop: Shop, with_inbox: bool) -> None:
    ledger = Ledger(shop)
    policy = RecordedPolicy(0.0, 0.0)
    consumer = shop.outbox.consumer("index", retry_count=3, backoff=policy, inbox=with_inbox)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        await ledger.write(event, connection)
        if event.payload.number == 1 and event.attempt < 3:
            raise ValueError(f"attempt {event.attempt}")

    place_in_log(shop, *numbered(4))
    await handle_all(shop, consumer)
    assert sorted(ledger.numbers()) == [0, 1, 2, 3]
    assert policy.asked == [(1, "attempt 1"), (2, "attempt 2")]
    ((status, attempts, due, history),) = letters(shop, "status, attempts, next_retry_at, history")
    assert (status, attempts, due) == ("resolved", 2, None)
    assert [entry["error"] for entry in history] == ["attempt 1", "attempt 2"]


async def test_a_replay_without_an_inbox_tries_its_letters_again(shop: Shop) -> None:
    """The checkpoint was set back: what was resolved the first time is handled, fails and is resolved once more."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=1, backoff=Constant(0.0), inbox=False)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.attempt % 2 == 1:
            raise ValueError("every other time")
        await ledger.write(event, connection)

    place_in_log(shop, ("o-1", 1))
    await handle_all(shop, consumer)
    shop.rows("update consumer set position = 0")
    await handle_all(shop, consumer)
    assert letters(shop, "status, jsonb_array_length(history)") == [("resolved", 2)]
    assert ledger.numbers() == [1, 1]
    assert inbox(shop, "index") == 0


async def test_an_attempt_is_not_made_before_its_time(shop: Shop) -> None:
    """The policy says an hour: other events go on, and the letter waits until somebody makes it due."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=1, backoff=Constant(HOUR))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.number == 0 and event.attempt == 1:
            raise ValueError("later")
        await ledger.write(event, connection)

    place_in_log(shop, *numbered(2))
    async with worker_on(shop, consumer):
        await shop.signals.wait_total("consumer.handled", 2)
        await shop.signals.next("consumer.idle")
        ((status, due_in),) = letters(shop, f"status, {DUE_IN}")
        assert status == "retrying"
        assert HOUR - 60 < due_in <= HOUR
        assert ledger.numbers() == [1]
        assert shop.signals.counts["consumer.retried"] == 0
        shop.rows(RETRY_NOW)
        await shop.signals.wait("consumer.retried")
    assert ledger.numbers() == [1, 0]
    assert letters(shop) == [("resolved", 1)]


async def test_attempts_keep_the_distance_that_the_policy_asks_for(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index", retry_count=2, backoff=RecordedPolicy(0.15, 0.3))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        raise ValueError("no")

    place_in_log(shop, ("o-1", 1))
    await handle_all(shop, consumer)
    distances = shop.rows(
        "select extract(epoch from (history->1->>'at')::timestamptz - (history->0->>'at')::timestamptz)::float8, "
        "extract(epoch from (history->2->>'at')::timestamptz - (history->1->>'at')::timestamptz)::float8 "
        "from dead_letter_events"
    )
    assert distances[0][0] >= 0.15
    assert distances[0][1] >= 0.3


async def test_the_handlers_answer_decides(shop: Shop) -> None:
    """Done is done; Retry waits as long as it says, or by the policy; Park is at once; anything else is refused."""
    ledger = Ledger(shop)
    answers: dict[int, Any] = {
        0: Done(),
        1: Retry(after=HOUR, reason="the warehouse is closed"),
        2: Retry(),
        3: Park("no such product"),
        4: True,
    }
    consumer = shop.outbox.consumer("index", retry_count=5, backoff=Constant(2 * HOUR))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> Any:
        await ledger.write(event, connection)
        return Retry(after=-1.0) if event.payload.number == 5 else answers[event.payload.number]

    place_in_log(shop, *numbered(6))
    async with worker_on(shop, consumer):
        await shop.signals.wait_total("consumer.handled", 6)
    assert ledger.numbers() == [0]
    rows = letters(shop, f"(payload->>'number')::int, status, error, error_class, {DUE_IN}")
    assert [row[:2] for row in rows] == [
        (1, "retrying"),
        (2, "retrying"),
        (3, "parked"),
        (4, "parked"),
        (5, "retrying"),
    ]
    assert [row[3] for row in rows] == [
        "HandlerAskedForRetry",
        "HandlerAskedForRetry",
        "HandlerParked",
        "UnknownOutcome",
        "DeclarationError",
    ]
    assert rows[0][2] == "the warehouse is closed"
    assert rows[2][2] == "no such product"
    assert rows[3][2] == "a handler returned True: return None, Done(), Retry(after=…) or Park(reason)"
    assert HOUR - 60 < rows[0][4] <= HOUR
    assert 2 * HOUR - 60 < rows[1][4] <= 2 * HOUR
    assert [attempts for (attempts,) in letters(shop, "attempts")] == [1] * 5


async def test_the_policy_may_depend_on_the_error(shop: Shop) -> None:
    consumer = shop.outbox.consumer(
        "index", retry_count=2, backoff=ByError({LookupError: Never(), KeyError: Constant(0.0)}, Constant(0.0))
    )
    errors: dict[int, type[Exception]] = {0: LookupError, 1: IndexError, 2: KeyError, 3: ValueError}

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        raise errors[event.payload.number]("no")

    place_in_log(shop, *numbered(4))
    await handle_all(shop, consumer)
    assert letters(shop, "error_class, status, attempts") == [
        ("LookupError", "parked", 1),
        ("IndexError", "parked", 1),
        ("KeyError", "parked", 3),
        ("ValueError", "parked", 3),
    ]


async def test_a_policy_with_a_bug_stops_neither_the_consumer_nor_the_retries(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(shop)

    def broken(attempt: int, error: BaseException) -> float:
        if "infinite" in str(error):
            return float("inf")
        raise ZeroDivisionError("in the policy")

    consumer = shop.outbox.consumer("index", retry_count=5, backoff=broken)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.number == 1:
            raise ValueError("bad")
        if event.payload.number == 2:
            raise ValueError("infinite")
        await ledger.write(event, connection)

    place_in_log(shop, *numbered(4))
    async with worker_on(shop, consumer):
        await shop.signals.wait_total("consumer.handled", 4)
    assert ledger.numbers() == [0, 3]
    assert letters(shop, "status, error") == [("retrying", "bad"), ("retrying", "infinite")]
    assert "backoff_policy_failed" in caplog.messages


async def test_a_predicate_that_raises_fails_its_event_alone(shop: Shop) -> None:
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=1, backoff=Constant(0.0))
    consumer.on(OrderPlaced, can_handle=lambda event: 10 // event.payload.number > 0)(ledger.write)
    place_in_log(shop, *numbered(3))
    await handle_all(shop, consumer)
    assert ledger.numbers() == [1, 2]
    assert letters(shop, "status, attempts, error_class") == [("parked", 2, "ZeroDivisionError")]


@pytest.mark.thorough
async def test_an_operator_retries_a_parked_letter_with_plain_sql(shop: Shop) -> None:
    """Once the cause is mended the retry resolves it; if not, it is parked again at once, and counted."""
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=0)
    mended = False

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if not mended:
            raise ValueError("no such table")
        await ledger.write(event, connection)

    place_in_log(shop, ("o-1", 1))
    async with worker_on(shop, consumer):
        await shop.signals.wait("consumer.failed")
        shop.rows(RETRY_NOW)
        await shop.signals.wait("consumer.retried")
        assert letters(shop) == [("parked", 2)]
        mended = True
        shop.rows(RETRY_NOW)
        await shop.signals.wait("consumer.retried", 2)
    assert letters(shop) == [("resolved", 2)]
    assert ledger.numbers() == [1]
    assert inbox(shop, "index") == 1


async def test_a_letter_discarded_after_a_worker_has_read_it_stays_discarded(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index", retry_count=5, backoff=Constant(0.0))
    ledger = Ledger(shop)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.number == 1 and event.attempt == 1:
            raise ValueError("no")
        await ledger.write(event, connection)

    place_in_log(shop, ("o-1", 1))
    hold = shop.signals.hold("consumer.retrying")
    async with worker_on(shop, consumer):
        await hold.wait()
        shop.rows("update dead_letter_events set status = 'discarded', next_retry_at = null")
        hold.release()
        place_in_log(shop, ("o-1", 2))
        await shop.signals.wait_total("consumer.handled", 2)
        assert shop.signals.counts["consumer.fenced"] == 0
    assert ledger.numbers() == [2]
    assert letters(shop) == [("discarded", 1)]


async def test_a_letter_whose_event_nobody_takes_any_more_is_resolved(shop: Shop) -> None:
    """The consumer was deployed anew with a narrower condition."""
    taken = True
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced, can_handle=lambda event: taken)
    async def handle(event: Event[OrderPlaced]) -> None:
        raise ValueError("no")

    place_in_log(shop, ("o-1", 1))
    async with worker_on(shop, consumer):
        await shop.signals.wait("consumer.failed")
        taken = False
        shop.rows(RETRY_NOW)
        await shop.signals.wait("consumer.retried")
    assert letters(shop) == [("resolved", 1)]


@pytest.mark.thorough
async def test_many_letters_take_turns_with_new_events(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many letters fall due at once; between turns of them the log is followed.

    The notification of the new event arrives during a turn, so one or two turns may run before it.
    """
    monkeypatch.setattr(letter_retries, "LETTERS_PER_TURN", 16)
    letters_due = 160
    ledger = Ledger(shop)
    order: list[str] = []
    consumer = shop.outbox.consumer("index", retry_count=3, backoff=Constant(HOUR))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> None:
        if event.payload.order_id == "bad" and event.attempt == 1:
            raise ValueError("no")
        order.append(event.payload.order_id)
        await ledger.write(event, connection)

    place_in_log(shop, *numbered(letters_due, "bad"))
    async with worker_on(shop, consumer):
        await shop.signals.wait("consumer.failed", letters_due)
        hold = shop.signals.hold("consumer.retried")
        shop.rows(RETRY_NOW)
        await hold.wait()
        place_in_log(shop, ("new", 1))
        hold.release()
        await shop.signals.wait("consumer.retried", letters_due)
    assert order.index("new") < letters_due // 2
    assert sorted(ledger.numbers("bad")) == list(range(letters_due))


@pytest.mark.contract("E1")
@pytest.mark.parametrize("manner", ["raises", "fails at commit", "loses its connection"])
@pytest.mark.thorough
async def test_letters_get_on_although_one_of_them_takes_up_their_whole_turn(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, manner: str
) -> None:
    """What the failed slice has taught must not be forgotten with the turn: the next one would fail in the same way."""
    monkeypatch.setattr(letter_retries, "LETTERS_SECONDS", 0.0)
    shop.rows("create table once (number int unique deferrable initially deferred)")
    shop.rows("insert into once values (4)")
    ledger = Ledger(shop)
    consumer = shop.outbox.consumer("index", retry_count=1)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced], connection: Any) -> Park | None:
        if event.attempt == 1:
            return Park("the first attempt")
        await ledger.write(event, connection)
        if event.payload.number != 4:
            return None
        if manner == "raises":
            raise ValueError("the second attempt")
        if manner == "fails at commit":
            await connection.execute("insert into shop.once values (4)")
        else:
            await connection.execute("select pg_terminate_backend(pg_backend_pid())")
        return None

    place_in_log(shop, *numbered(8))
    await handle_all(shop, consumer)
    shop.rows(RETRY_NOW)
    async with asyncio.timeout(30):
        await handle_all(shop, consumer)

    left = letters(shop, "(payload->>'number')::int, status")
    assert [status for number, status in sorted(left) if number == 4] == ["parked"]
    assert {status for number, status in left if number != 4} == {"resolved"}
    assert sorted(ledger.numbers()) == [number for number in range(8) if number != 4]


async def test_any_text_of_an_error_can_be_stored(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index", retry_count=0)
    texts = ["NUL \x00 inside", "lone \ud800 surrogate", "x" * 5000, ""]

    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        if event.payload.number == 4:
            raise Speechless
        raise ValueError(texts[event.payload.number])

    place_in_log(shop, *numbered(5))
    await handle_all(shop, consumer)
    errors = [error for (error,) in letters(shop, "error")]
    assert errors[:4] == ["NUL \N{REPLACEMENT CHARACTER} inside", "lone ? surrogate", "x" * 2000, "ValueError"]
    assert errors[4].startswith("Speechless")


async def test_failures_are_logged_and_counted_under_stable_names(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    consumer = shop.outbox.consumer("index", retry_count=1, backoff=Constant(0.0))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        raise ValueError("no")

    (event_id,) = place_in_log(shop, ("o-1", 1))
    await handle_all(shop, consumer)
    records = [record for record in caplog.records if record.name == "aftercommit.consumer"]
    assert [record.getMessage() for record in records if record.levelno >= logging.WARNING] == [
        "event_handling_failed",
        "event_handling_failed",
        "outbox_dead_lettered",
    ]
    last = records[-1].__dict__
    assert (last["consumer"], last["event_id"], last["attempt"]) == ("index", str(event_id), 2)
    assert shop.outbox.meter.parked["index"] == 1
    assert shop.outbox.meter.consumed["index", "failed"] == 2
    assert shop.outbox.meter.consumed["index", "done"] == 0


async def test_behind_the_bus_a_long_wait_is_kept_by_the_relay(shop: Shop) -> None:
    """The handler asks for an hour: the dispatcher does not sleep on it, the outbox row says when."""
    shop.outbox = shop_outbox(max_attempts=5)
    consumer = shop.outbox.consumer("index", retry_count=5)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> Any:
        return Retry(after=HOUR) if event.payload.number == 1 else Park("never")

    shop.publish(OrderPlaced("o-1", 1), OrderPlaced("o-2", 2))
    async with bus_on(shop):
        await shop.signals.wait_total("relay.failed", 2)
    rows = shop.rows(f"select (payload->>'number')::int, status, retry_count, {DUE_IN} from outbox order by seq")
    assert [row[:3] for row in rows] == [(1, "pending", 1), (2, "failed", 1)]
    assert HOUR - 60 < rows[0][3] <= HOUR
    assert letters(shop, "status, attempts, position") == [("retrying", 1, None), ("parked", 1, None)]


async def test_a_letter_of_the_relay_is_not_retried_by_a_log_worker_of_the_same_name(shop: Shop) -> None:
    """Its event is in the outbox, and comes to the log when the relay has delivered it."""
    shop.outbox = shop_outbox(max_attempts=5, backoff=Constant(HOUR))
    calls: list[str] = []
    consumer = shop.outbox.consumer("index", retry_count=0)

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        calls.append("bus" if event.position is None else "log")
        raise ValueError("no")

    shop.place("o-1", 1)
    async with bus_on(shop):
        await shop.signals.wait("relay.failed")
    shop.rows("update dead_letter_events set next_retry_at = now()")
    async with worker_on(shop, consumer):
        await shop.signals.wait("consumer.idle", 3)
    assert calls == ["bus"]
    assert letters(shop) == [("retrying", 1)]


async def test_an_error_of_our_own_statements_spends_nobodys_attempt(shop: Shop) -> None:
    """The inbox cannot be written: events wait in the outbox, as when a broker is down."""
    shop.outbox.consumer("index").on(OrderPlaced)(Ledger(shop).write)
    shop.place("o-1", 1)
    shop.rows("alter table shop.processed_events rename to hidden")
    dispatcher = Dispatcher(shop.outbox, shop.database)
    try:
        with pytest.raises(TransportUnavailable, match="the inbox cannot be written"):
            await dispatcher.dispatch(outbox_records(shop))
    finally:
        await dispatcher.close()
    assert letters(shop) == []


async def test_a_page_interrupted_by_a_stop_is_taken_up_where_it_was_left(shop: Shop) -> None:
    """A stop does not wait for the page: what is left of it, failures included, is handled by the next worker."""
    consumer = shop.outbox.consumer("index", retry_count=0, concurrency=2, calls_per_commit=1)
    reached, go_on = asyncio.Event(), asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        if event.payload.number == 3 and not go_on.is_set():
            reached.set()
            await go_on.wait()
        if event.payload.number == 6 or (event.payload.order_id, event.payload.number) == ("o-2", 1):
            raise ValueError("bad")

    place_in_log(shop, *numbered(10, "o-1"), *numbered(3, "o-2"))
    async with worker_on(shop, consumer) as worker:
        await asyncio.wait_for(reached.wait(), 60)
        await shop.signals.wait("consumer.failed")
        worker.stopping.set()
        go_on.set()
        await worker.stop()
    assert checkpoint(shop, "index") == 4
    assert inbox(shop, "index") >= 4
    await handle_all(shop, consumer)
    assert (checkpoint(shop, "index"), inbox(shop, "index")) == (13, 11)
    assert letters(shop, "(payload->>'number')::int, status, attempts") == [(6, "parked", 1), (1, "parked", 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("ordering", ["relaxed", "strict"])
async def test_an_event_that_is_overtaken_has_its_letter_although_the_page_is_never_finished(
    shop: Shop, ordering: Literal["relaxed", "strict"]
) -> None:
    """Its aggregate goes on at once, or waits; either way the attempt is known when the worker dies meanwhile."""
    consumer = shop.outbox.consumer(
        "index", retry_count=5, backoff=Constant(HOUR), concurrency=2, ordering=ordering, start="earliest"
    )
    attempts: list[tuple[int, int]] = []
    went_on, held = asyncio.Event(), asyncio.Event()

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        if event.payload.order_id == "slow" and not held.is_set():
            held.set()
            await asyncio.Event().wait()
        if event.payload.order_id == "o-1":
            attempts.append((event.payload.number, event.attempt))
            if event.payload.number == 1 and event.attempt == 1:
                raise ValueError("not yet")
            went_on.set()

    # The slow one comes first, so the checkpoint stays in front of all of them.
    place_in_log(shop, ("slow", 0), ("o-1", 1), ("o-1", 2))
    async with worker_on(shop, consumer) as worker:
        await asyncio.wait_for(held.wait(), 60)
        await shop.signals.wait("consumer.failed")
        if ordering == "relaxed":
            await asyncio.wait_for(went_on.wait(), 60)
            # Before its commit, the kill would undo it.
            await shop.value_becomes("select count(*)::int from processed_events where consumer_name = 'index'", 1)
        await kill(worker)
    assert checkpoint(shop, "index") == 0
    assert ("retrying", 1) in letters(shop)
    shop.rows("update dead_letter_events set next_retry_at = now() where status = 'retrying'")
    async with worker_on(shop, consumer):
        await settled(shop, "index")
        await shop.signals.wait("consumer.retried")
        if ordering == "strict":
            await shop.signals.wait("consumer.retried", 2)
    expected = [(1, 1), (2, 1), (1, 2)] if ordering == "relaxed" else [(1, 1), (1, 2), (2, 1)]
    assert attempts == expected
    assert {status for status, _ in letters(shop)} == {"resolved"}


async def test_a_letter_goes_on_where_another_worker_left_it(shop: Shop) -> None:
    """Attempts are counted in the database, not in the worker."""
    attempts: list[int] = []
    consumer = shop.outbox.consumer("index", retry_count=2, backoff=Constant(HOUR))

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        attempts.append(event.attempt)
        raise ValueError("no")

    place_in_log(shop, ("o-1", 1))
    async with worker_on(shop, consumer):
        await shop.signals.wait("consumer.failed")
    for times in (1, 2):
        shop.rows(RETRY_NOW)
        async with worker_on(shop, consumer):
            await shop.signals.wait("consumer.retried", times)
    assert attempts == [1, 2, 3]
    assert letters(shop) == [("parked", 3)]
    append(shop)
    async with worker_on(shop, consumer):
        await settled(shop, "index")
    assert attempts == [1, 2, 3]
