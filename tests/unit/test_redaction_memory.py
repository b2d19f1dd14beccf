"""A redactor remembers texts in which it found nothing. What it remembers changes no outcome, and holds no secret."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aftercommit.redaction import WITHHELD, Redactor
from aftercommit.redaction import redactor as redaction
from tests.support.sizes import examples
from tests.unit.hostile_texts import UNITS, repeated
from tests.unit.test_redaction import GONE
from tests.unit.test_redaction_prefilter import MIXED, PIECE

pytestmark = pytest.mark.contract("L10")

LINES = st.lists(st.one_of(PIECE, MIXED), min_size=1, max_size=6)


@pytest.mark.thorough
@given(LINES)
@settings(max_examples=examples(300), deadline=None)
def test_a_text_that_was_seen_before_becomes_the_same(lines: list[str]) -> None:
    seasoned = Redactor()
    for _ in range(2):
        for line in lines:
            assert seasoned.text(line) == Redactor().text(line)


@given(LINES, st.integers(0, 40))
@settings(max_examples=examples(100), deadline=None)
def test_what_stands_in_another_field_or_line_makes_and_hides_no_match(lines: list[str], cut: int) -> None:
    """A text cut in two, its parts together in one value and in lines before: each part is judged by itself."""
    whole = "".join(lines)
    parts = [whole[:cut], whole[cut:], whole]
    seasoned = Redactor()
    seasoned.value(lines)
    for value in ({"a": parts[0], "b": parts[1]}, parts, {"c": whole}):
        assert seasoned.value(value) == Redactor().value(value)


class Nothing(set[str]):
    """A memory in which nothing is ever found."""

    def __contains__(self, text: object) -> bool:
        return False


NAMES = (
    "message level name value user password cookie token Authorization old new [redacted:email] a@example.com 7".split()
)
HELD = st.one_of(
    *(PIECE, st.none(), st.booleans(), st.integers(), st.integers(0, 10**6)),
    st.sampled_from(["password", "cookie", "phone", "hunter2", "5550100"]),
    st.sampled_from(["INFO", "4111111111111111", "2026-01-01T00:00:00Z", "0190b2c4-1111-7222-8333-444455556666"]),
)
NESTED = st.recursive(
    HELD,
    lambda held: (
        st.lists(held, max_size=3) | st.dictionaries(st.one_of(st.sampled_from(NAMES), PIECE), held, max_size=5)
    ),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.sampled_from([*NAMES, 7]), NESTED, max_size=6), min_size=1, max_size=3))
@settings(max_examples=examples(200), deadline=None)
@example([{"name": "password", "value": "hunter2"}, {"name": "level", "value": "hunter2"}])
@example([{"home": "5550100"}, {"phone": {"home": "5550100", "work": ["5550100"]}}])
@example([{"[redacted:email]": 1}, {"a@example.com": 1, "[redacted:email]": 2}])
def test_fields_that_are_known_take_a_shorter_way_to_the_same(values: list[dict[Any, Any]]) -> None:
    seasoned, careful = Redactor(), Redactor()
    careful._silent, careful._plain = Nothing(), Nothing()
    for _ in range(2):
        for value in values:
            shown = seasoned.value(value)
            assert shown == careful.value(value)
            assert list(map(type, shown.values())) == list(map(type, careful.value(value).values()))


@pytest.mark.parametrize("unit", UNITS)
def test_a_dense_text_is_withheld_behind_texts_that_are_known(unit: str) -> None:
    """The texts of one value share a limit on checks; a text that is known counts as if it were checked again."""
    part = repeated(unit, redaction._LONGEST_CLEAN)
    value = {"parts": [part] * 30, "last": repeated(unit, 5000)}
    seasoned = Redactor()
    seasoned.text(part)

    assert seasoned.value(value) == Redactor().value(value)


def test_the_limit_counts_what_is_remembered() -> None:
    texts = [repeated(unit, redaction._LONGEST_CLEAN) for unit in UNITS]
    seasoned = Redactor()
    clean = [text for text in texts if seasoned.text(text) == text and seasoned._clean.get(text)]
    assert clean, "no unit has matches that are checked and refused"
    value: list[Any] = clean * 200

    shown = seasoned.value(value)
    assert shown == Redactor().value(value)
    assert WITHHELD in shown


@pytest.mark.parametrize("text", [text for text in GONE if isinstance(text, str)])
def test_a_text_with_a_secret_is_not_remembered(text: str) -> None:
    redactor = Redactor()
    if redactor.text(text) != text:
        assert text not in redactor._clean


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_MOST_KNOWN", 10)
    redactor = Redactor()
    for number in range(100):
        redactor.text(f"the order of customer {number} was sent")
        assert len(redactor._clean) <= 10
    long = "sent again " * 100
    assert redactor.text(long) == long
    assert long not in redactor._clean


def test_two_redactors_share_no_memory() -> None:
    text = "the code name is bluebird today"
    assert Redactor().text(text) == text
    assert Redactor(patterns={"project": "bluebird"}).text(text) == "the code name is [redacted:project] today"
