"""What redaction does not go into: texts with too much in them are withheld, and those with nothing are passed by."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aftercommit.redaction import WITHHELD, Redactor
from aftercommit.redaction.folding import folded
from aftercommit.redaction.patterns import PARTS, LookBudget
from aftercommit.redaction.rules import RULES
from tests.support.sizes import examples

redactor = Redactor()
pytestmark = pytest.mark.contract("L10")


@pytest.mark.parametrize("unit", ["pin=1 ", "12345678901 ", "4111 ", "1.2.3.4 ", "a@b.cd ", "bearer abcdefgh "])
def test_a_text_with_more_to_judge_than_time_allows_is_withheld(unit: str):
    judged = LookBudget(0).left

    assert redactor.text(unit * (judged - 1)) != WITHHELD
    assert redactor.text(unit * (3 * judged)) == WITHHELD


@pytest.mark.parametrize("part", ["--tokens{0}", "{0} of 10 = 1", "a\u200bb{0}"])
def test_of_very_many_small_texts_those_beyond_the_bound_are_withheld(part: str):
    shown = Redactor().value({"parts": [part.format(number) for number in range(3 * PARTS)], "last": "word"})

    assert WITHHELD not in shown["parts"][:100]
    assert set(shown["parts"][-100:]) == {WITHHELD}
    assert shown["last"] == "word"


def test_of_very_many_names_that_may_say_something_those_beyond_the_bound_hide_their_values():
    shown = Redactor().value({f"phone{number}": "12" for number in range(2 * PARTS)})

    assert shown["phone0"] == "12"
    assert f"phone{2 * PARTS - 1}" not in shown
    assert list(shown.values())[-1] == "[redacted:secret]"


def test_many_names_of_no_meaning_are_no_reason_to_withhold_anything():
    wide = {f"row-{number}": number for number in range(5 * PARTS)}

    assert Redactor().value(wide) == wide


def test_a_dump_that_is_full_of_personal_data_is_redacted_one_by_one():
    row = '{"id": 12345678901, "mail": "joe@example.com", "from": "10.0.0.1", "phone": "5551234567", "token": "x"},\n'
    shown = redactor.text(row * 500)

    assert shown.count("[redacted:email]") == shown.count("[redacted:phone]") == 500
    assert "joe" not in shown


class TestQuickWays:
    """Texts that are passed by without asking every rule are those in which no rule finds anything."""

    @given(st.text(alphabet="eyJhawkbrtokn=:@%->. \t4p1x(+", max_size=12))
    @settings(max_examples=examples(2000))
    @example("hawk abcdef")
    @example("pw=x")
    @example("--pw x")
    @example("a@b.cd")
    @example("1.2.3.4")
    @example("eyJabcdefgh")
    def test_what_is_too_short_or_words_alone_has_nothing_in_it(self, text: str) -> None:
        searched = folded(text, LookBudget(len(text)))[0]
        found = [span for rule in RULES for span in rule.find(searched, searched.lower(), LookBudget(100))]

        assert (redactor.text(text) == text) is (not found)

    def test_patterns_of_ones_own_are_asked_about_every_text(self) -> None:
        assert Redactor(patterns={"letter": "[xy]"}).value({"a": "x", "b": "some words y"}) == {
            "a": "[redacted:letter]",
            "b": "some words [redacted:letter]",
        }

    def test_a_long_list_is_gone_through_to_its_end(self) -> None:
        shown = redactor.value(
            {"list": ["plain"] * 50_000 + ["joe@example.com"], "wide": {str(n): n for n in range(9999)}}
        )

        assert shown["list"][-2:] == ["plain", "[redacted:email]"]
        assert len(shown["wide"]) == 9999
