"""What the server writes is what a reader by the WHATWG's book reads, whatever the bytes are."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.client.sse_decoder import SseDecoder, SseMessage, SsePlace, SseRetry
from aftercommit.feed.live import endings
from aftercommit.http import sse

HOSTILE = st.text(st.sampled_from("ab :\r\n\0\u2028\u2029\u0085\ufeff\x0b\x0c💥data:idevent"), max_size=60)
NAMES = st.text(min_size=1, max_size=20).filter(lambda text: not re.search(r"[\r\n\0\ud800-\udfff]", text))


def decoded(data: bytes) -> list[SseMessage | SsePlace | SseRetry]:
    return list(SseDecoder().decode(data))


@given(HOSTILE | st.text(max_size=200).filter(lambda text: not re.search("[\ud800-\udfff]", text)), NAMES, NAMES)
def test_any_text_comes_through_as_one_event(text: str, name: str, identity: str):
    identity = identity.lstrip("\ufeff")
    written = sse.event(text.encode(), name=name, identity=identity)
    # Line breaks are all one to the format: a reader gets LF.
    expected = re.sub("\r\n|\r", "\n", text)
    assert decoded(b": begin\n\n" + written) == [SseMessage(name, expected, identity)]


@given(st.binary(max_size=200))
def test_any_bytes_stay_within_their_event(body: bytes):
    written = sse.event(body, name="log", identity="1") + sse.event(b"{}", name="log", identity="2")
    assert [(part.event, part.id) for part in decoded(written) if isinstance(part, SseMessage)] == [
        ("log", "1"),
        ("log", "2"),
    ]


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))
def test_an_item_as_json_is_one_line_of_data(item: object):
    if re.search("[\ud800-\udfff]", repr(item)):
        return
    body = json.dumps(item, ensure_ascii=False).encode("utf-8", "replace")
    (message,) = decoded(sse.event(body, name="log", identity="x"))
    assert isinstance(message, SseMessage)
    assert message.data == body.decode()


@pytest.mark.parametrize("hostile", ["a\nb", "a\rb", "a\0b", "\n", "1\n\ndata: forged"])
def test_an_id_or_name_that_would_break_out_is_refused(hostile: str):
    with pytest.raises(ValueError, match="line break or NUL"):
        sse.event(b"{}", identity=hostile)
    with pytest.raises(ValueError, match="line break or NUL"):
        sse.event(b"{}", name=hostile)
    with pytest.raises(ValueError, match="line break or NUL"):
        sse.progress(hostile)


def test_what_is_no_event_moves_the_place_or_the_pace_only():
    assert decoded(sse.opening(2500)) == [SseRetry(2500)]
    assert decoded(sse.HEARTBEAT) == []
    assert decoded(sse.progress("2025-11-12T10:30:05.123Z#042")) == [SsePlace("2025-11-12T10:30:05.123Z#042")]


def test_goodbye_and_reset_say_why_and_where_to_go_on():
    retry, bye = decoded(endings.bye("shutdown", 1200))
    assert (retry, bye) == (SseRetry(1200), SseMessage("bye", '{"reason":"shutdown","retry":1200}', ""))
    (reset,) = decoded(endings.reset("retention", "gone", "t#500"))
    assert isinstance(reset, SseMessage)
    assert (reset.event, reset.id, json.loads(reset.data)["restart"]) == ("reset", "t#500", "t#500")
    (empty,) = decoded(b"id: 7\ndata: x\n\n" + endings.reset("epoch", "restored", None))[1:]
    assert isinstance(empty, SseMessage)
    assert (empty.id, json.loads(empty.data)["restart"]) == ("", None)
