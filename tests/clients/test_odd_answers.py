"""Answers that no server of ours gives: whoever follows takes them for a lost connection, and does not end of them."""

import pytest

from aftercommit.client.sse_decoder import SseMessage
from aftercommit.client.wire import LOGS, TASKS, Unreadable, Wire, event_in, refusal
from aftercommit.clock import utc_now

DEEP = b"[" * 50_000 + b"]" * 50_000


@pytest.mark.parametrize("wire", [LOGS, TASKS])
@pytest.mark.contract("L13")
def test_a_page_that_is_nested_without_end_is_unreadable(wire: Wire) -> None:
    with pytest.raises(Unreadable, match="it is not JSON"):
        wire.page(DEEP, {}, None)


@pytest.mark.contract("L13")
def test_an_event_that_is_nested_without_end_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="it is not JSON"):
        event_in(SseMessage("log", DEEP.decode(), "1"))


@pytest.mark.contract("L13")
def test_a_refusal_says_its_status_whatever_is_in_its_body() -> None:
    assert refusal(503, {}, DEEP, utc_now()).status == 503


@pytest.mark.parametrize(
    ("told", "seconds"), [("7", 7.0), ("0.5", 0.5), ("-1", 0.0), (f"1{'0' * 400}", None), ("true", None), ('"7"', None)]
)
@pytest.mark.contract("L13")
def test_a_time_to_wait_is_a_number_that_there_is(told: str, seconds: float | None) -> None:
    assert refusal(503, {}, f'{{"retry_after": {told}}}'.encode(), utc_now()).retry_after == seconds
