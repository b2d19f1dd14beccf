"""The decoder under any bytes and any cutting of them."""

from hypothesis import given
from hypothesis import strategies as st

from aftercommit.client.sse_decoder import SseDecoder, SseMessage

# Mostly the characters that mean something, so that chance finds the places where they meet.
TELLING = st.sampled_from(
    [
        b"\r",
        b"\n",
        b"\r\n",
        b":",
        b" ",
        b"data",
        b"event",
        b"id",
        b"retry",
        b"\0",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"7",
    ]
)
STREAMS = st.lists(TELLING | st.binary(max_size=3), max_size=60).map(b"".join)


def decoded(pieces: list[bytes]) -> list[object]:
    decoder = SseDecoder()
    return [part for piece in pieces for part in decoder.decode(piece)]


@given(STREAMS, st.data())
def test_any_cutting_gives_the_same_events(stream: bytes, data: st.DataObject):
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]

    assert decoded(pieces) == decoded([stream])


@given(STREAMS)
def test_what_comes_out_never_depends_on_an_unfinished_block(stream: bytes):
    whole = decoded([stream])

    assert decoded([stream, b"data: unfinished"])[: len(whole)] == whole


@given(st.lists(st.text().map(lambda text: text.replace("\r", "").encode("utf-8", "replace").decode()), max_size=5))
def test_data_written_line_by_line_comes_back_as_it_was(texts: list[str]):
    blocks = ["".join(f"data: {line}\n" for line in text.split("\n")) + "\n" for text in texts]

    found = decoded(["".join(blocks).encode()])

    assert found == [SseMessage("message", text, "") for text in texts]


def test_a_long_line_in_small_pieces_takes_time_in_proportion():
    decoder = SseDecoder(1 << 22)
    pieces = [b"data: "] + [b"x" * 100] * 10_000 + [b"\n\n"]
    found = [part for piece in pieces for part in decoder.decode(piece)]
    assert found == [SseMessage("message", "x" * 1_000_000, "")]
