"""The Python client against the cases that every client of the protocol runs."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from aftercommit.client import wire
from aftercommit.client.connection import silence_of
from aftercommit.client.machine import FollowMachine, FollowStep, Pace
from aftercommit.client.read_position import Arrival, Jump, ReadPosition
from aftercommit.client.sse_decoder import BlockTooLarge, SseDecoder, SseMessage, SsePlace, SseRetry
from aftercommit.client.wire import FeedAddress, Unreadable, Wire
from tests.clients.cases import CONFORMANCE, cases, document

NOW = datetime(2025, 11, 12, 10, 30, tzinfo=UTC)


def test_the_files_are_what_their_readme_says():
    readme = (CONFORMANCE / "README.md").read_text(encoding="utf-8")
    for path in sorted(CONFORMANCE.glob("*.yaml")):
        loaded = document(path.stem)
        names = [case["name"] for case in loaded["cases"]]
        assert f"`{path.name}`" in readme
        assert loaded["about"]
        assert len(names) == len(set(names)), path.name


@pytest.mark.contract("L13")
@pytest.mark.parametrize("case", cases("sse_decoder"))
def test_the_decoder_reads_a_stream_as_everybody_does(case: dict[str, Any]):
    data = bytes.fromhex(case["input_hex"]) if "input_hex" in case else case["input"].encode()
    most = case.get("most", 1 << 20)

    cuts = [[data], [data[place : place + 1] for place in range(len(data))]]
    cuts += [[data[:place], data[place:]] for place in range(len(data))]
    for pieces in cuts:
        assert told(pieces, most) == case["expect"]


def told(pieces: Iterable[bytes], most: int) -> list[dict[str, Any]]:
    """What the decoder makes of the pieces, in the words of the cases."""
    decoder = SseDecoder(most)
    found: list[dict[str, Any]] = []
    try:
        for piece in pieces:
            for part in decoder.decode(piece):
                match part:
                    case SseMessage(event=event, data=data, id=identity):
                        found.append({"event": event, "data": data, "id": identity})
                    case SsePlace(id=identity):
                        found.append({"place": identity})
                    case SseRetry(milliseconds=milliseconds):
                        found.append({"retry": milliseconds})
    except BlockTooLarge:
        found.append({"too_large": True})
    return found


@pytest.mark.contract("L13")
@pytest.mark.parametrize("case", cases("machine"))
def test_the_machine_decides_as_everybody_does(case: dict[str, Any]):
    machine = FollowMachine(
        Pace(),
        lambda: case.get("random", 0),
        streams=case.get("streams", True),
        can_refresh=case.get("can_refresh", True),
    )
    clock = 0.0
    for number, step in enumerate(case["steps"]):
        clock += step.get("after", 0)
        done = hand_in(machine, clock, step)
        found = {"do": str(done.do), "seconds": round(done.seconds, 3), "state": str(machine.state)}
        expected = {"do": step["do"], "seconds": round(step.get("seconds", 0), 3), "state": step["state"]}
        assert found == expected, f"step {number}: {step}"


def hand_in(machine: FollowMachine, now: float, step: dict[str, Any]) -> FollowStep:
    """One input of a case."""
    match step["input"]:
        case "bye":
            return machine.bye(now, step["retry"])
        case "stream_refused":
            return machine.stream_refused(now, step["status"], step.get("retry_after"))
        case "poll_refused":
            return machine.poll_refused(now, step["status"], step.get("retry_after"))
        case "page":
            return machine.page(now, step["events"], step["more"])
        case "start" | "opened" | "news" | "reset" | "ended" | "unchanged" | "poll_failed" | "elapsed" | "refreshed":
            answer = getattr(machine, step["input"])(now)
            assert isinstance(answer, FollowStep)
            return answer
        case unknown:
            raise AssertionError(f"an input that conformance/README.md does not have: {unknown}")


@pytest.mark.contract("L13")
@pytest.mark.parametrize("case", cases("trail"))
def test_the_trail_tells_repeats_and_gaps_as_everybody_does(case: dict[str, Any]):
    position = ReadPosition(
        case.get("start"), sequence=case.get("sequence", False), max_remembered_ids=case.get("window", 10_000)
    )
    for arrived in case["arrivals"]:
        if "place" in arrived:
            position.move(arrived["place"])
        elif "reset" in arrived:
            position.reset(arrived["reset"])
        elif "never_given" in arrived:
            position.never_given(*arrived["never_given"])
        else:
            gap = arrived.get("gap")
            is_withheld = "withheld" in arrived
            assert arrived["expect"] in ("repeat", "withheld" if is_withheld else "deliver")
            expected = Arrival(arrived["expect"] == "repeat", Jump(**gap) if gap else None)
            came = (arrived["event_id"], arrived["number"], arrived["cursor"])
            assert position.arrive(*came, withheld=is_withheld) == expected, arrived
    assert position.cursor == case["cursor"]


@pytest.mark.contract("L13")
@pytest.mark.parametrize("case", cases("requests"))
def test_addresses_are_made_as_everybody_makes_them(case: dict[str, Any]):
    shape = Wire(**case.get("names", {}))
    address = FeedAddress(
        case["url"], shape, stream=case.get("stream"), limit=case.get("limit"), filters=case.get("filters")
    )
    if "page" in case:
        asked = address.page_before(case["before"]) if "before" in case else address.page_from(case["from_time"])
        assert asked == case["page"]
        return
    assert address.poll(case.get("cursor")) == case["poll"]
    assert address.stream() == case["stream_to"]
    assert case.get("cursor") == case["last_event_id"]


@pytest.mark.contract("L13")
@pytest.mark.parametrize("case", cases("answers"))
def test_answers_are_read_as_everybody_reads_them(case: dict[str, Any]):
    headers = {name.lower(): value for name, value in case.get("headers", {}).items()}
    body = case["text"].encode() if "text" in case else json.dumps(case["body"]).encode() if "body" in case else b""
    shape = Wire(body=case.get("body_kind", "paged"))
    if "refusal" in case:
        refused = wire.refusal(case["status"], headers, body, NOW)
        found = {name: getattr(refused, name) for name in ("status", "code", "message", "retry_after")}
        found["restart"] = wire.reset_of(refused).restart
        assert {name: found[name] for name in case["refusal"]} == case["refusal"]
    elif case.get("unreadable"):
        with pytest.raises(Unreadable):
            shape.page(body, headers, case.get("after"))
    elif "page" in case:
        back = "before" in case
        page = shape.page_back(body, headers) if back else shape.page(body, headers, case.get("after"))
        events = [
            {"event_id": event.id, "cursor": event.cursor, **({"withheld": event.withheld} if event.withheld else {})}
            for event in page.events
        ]
        found = {"events": events, "next": page.next, "more": page.more, "previous": page.previous}
        assert found == {"previous": None, **case["page"]}
    else:
        assert (case["status"], case["unchanged"]) == (304, True)


@pytest.mark.contract("E7")
@pytest.mark.parametrize("case", cases("silence"))
def test_a_stream_may_be_silent_for_as_long_as_everybody_lets_it(case: dict[str, Any]):
    assert silence_of(case["interval"]) == case["silence"]


def test_a_retry_after_may_be_a_date():
    refused = wire.refusal(503, {"retry-after": "Wed, 12 Nov 2025 10:30:20 GMT"}, b"", NOW)
    assert refused.retry_after == 20
    past = wire.refusal(503, {"retry-after": "Wed, 12 Nov 2025 10:29:20 GMT"}, b"", NOW)
    assert past.retry_after == 0
