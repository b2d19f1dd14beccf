"""Quick ways of redaction: what is passed by has nothing in it, so their outcome is that of asking every rule."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aftercommit.redaction import WITHHELD, Redactor, addresses, numbers, prose, rules, secret_names
from aftercommit.redaction import redactor as redaction
from aftercommit.redaction.folding import LOWER, folded
from aftercommit.redaction.national_ids import BY_LENGTH, GROUPED, LETTERED
from aftercommit.redaction.numbers import Span
from aftercommit.redaction.patterns import LookBudget
from aftercommit.redaction.prefilter import is_plain
from aftercommit.redaction.rules import RULES
from tests.support.sizes import examples
from tests.unit import test_redaction_disguises as disguises
from tests.unit import test_redaction_world as world
from tests.unit.hostile_texts import UNITS
from tests.unit.test_redaction import GONE, STAYS

pytestmark = pytest.mark.contract("L10")


def by_asking_every_rule(**declared: Any) -> Redactor:
    """One without quick ways: a pattern of one's own has to be asked about every text, and here every rule is."""
    slow = Redactor(patterns={"nothing": "(?!)"}, **declared)
    slow._rules = [rule._replace(may=lambda *_: True) for rule in slow._rules]
    return slow


quick, slow = Redactor(), by_asking_every_rule()


def drawn_from(pattern: str) -> st.SearchStrategy[str]:
    """Texts of this shape. What takes all it can finds the same here as what may give back."""
    return st.from_regex(re.compile(re.sub(r"(?<=[}+*])\+", "", pattern), re.ASCII), fullmatch=True)


KNOWN = [drawn_from(prefix + rest) for prefix, rest in rules._KNOWN_PREFIXES]
KNOWN += [drawn_from(r"\d{5,10}:AA[A-Za-z0-9_-]{32,40}")]
SHAPES = [drawn_from(shape) for _, shape, _ in (*GROUPED, *LETTERED)]
SHAPES += [drawn_from(r"\+[1-9](?:[ .\-()/]{0,2}\d){7,12}"), drawn_from(r"\(?0[1-9]\d{0,3}\)?[ /.-]\d{8}")]
SHAPES += [drawn_from(rf"\d{{{length}}}") for length in (*BY_LENGTH, 16)]
SHAPES += [
    drawn_from(r"00[1-9]\d{0,2}(?:[ .\-/()]{1,2}\d{2,4}){3}"),
    drawn_from(r"(?:1 )?\([2-9]\d\d\)[ .-]?555-\d{4}"),
    drawn_from(r"1[3-9]\d{9}|00[1-9]\d{9,12}"),
    drawn_from(r"\([1-9]\d\) ?9?\d{4}-\d{4}|8 \(495\) \d{3}-\d\d-\d\d|00 [1-9]\d( \d{3}){3}"),
]
NAMED = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "db_", "X-", "my", "--"]),
    st.sampled_from([*secret_names.HINTS, "password", "Password", "TOKEN", "id", "level"]),
    st.sampled_from(["", "s", "_name", '"', "\\"]),
    st.sampled_from(["=", ":", ": ", " => ", "%3D", "%3a", ">", " ", ":=", "->", "[]=", "\n=\n", "==", ", "]),
    st.sampled_from(["x", "hunter2", '"a b"', "12345678", "Zx81kQpLm3vT9sWq2bNc", "[1, 2]", ""]),
)
SCHEMES = st.builds(
    "{}{}{}".format,
    st.sampled_from("bearer Bearer BASIC digest token apikey Negotiate hawk".split()),
    st.sampled_from([" ", ": ", "=", "%20", "\t", "-"]),
    st.sampled_from(["abcdef", "abc", "dXNlcjpwYXNz", "YWJjZGVm=", "s3cr3t-value-of-20-ch", "token"]),
)
ADDRESSES = st.sampled_from(
    [
        *("a@b.cd", "%40b.cd", "joe%40b.cd", "a&#64;b.cd", "a\\x40b.cd", '"a b"@c.de', "://a@", "://a:b@c", "//a:b@c"),
        *("a[at]b.cd", "a(at)b[dot]cd", "a@b[.]cd", "a@localhost", "a at b dot de", "1[.]2[.]3[.]4", "pаss=x"),
        *("1.2.3.4", "_10.0.0.1", "ip-1-2-3-4", "::2", "1:2:3:4:5:6:7:8", "aa:bb:cc:dd:ee:ff"),
    ]
)
PLAIN = [
    "5b1f4f0e-7d2a-4c7e-9d5e-0f3b1a2c4d5e", "2025-11-12T10:30:05.123Z", "INV-123", "req-00017-ab12cd", "1440x900",
    "price list read from cache", "200 /checkout in 61 ms", "INFO", "12.5", "-", " ", "\n", ".", "\u200b", "İ", "٤",
]  # fmt: skip
DISGUISES = [*disguises.GONE, *disguises.STAYS, *world.GONE, *world.STAYS, *world.ORDINARY]
SPOKEN = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "db ", "x", "-", "("]),
    st.sampled_from([*prose._VALUES, "-u", "-p", "mysql -p", "redis-cli -a", "--user", "<password"]),
    st.sampled_from([" ", "  ", ". ", " is ", "\t", "=", "', '", ">", ""]),
    st.sampled_from(["123", "1234", "hunter2", "'x'", "a:b", "0301234567", "123456782", "x"]),
)
PIECE = st.one_of(
    *KNOWN,
    *SHAPES,
    *(NAMED, SPOKEN, SCHEMES, ADDRESSES),
    st.sampled_from([*GONE, *STAYS, *DISGUISES, *UNITS, *PLAIN]),
    st.text(max_size=12),
)
MIXED = st.lists(st.one_of(PIECE, st.sampled_from([" ", "", ", ", "x"])), max_size=6).map("".join)


@pytest.mark.thorough
@given(MIXED)
@settings(max_examples=examples(400))
@example("::2")
@example("AB123456C")
@example("--pw x")
@example("hawk abcdef")
@example("11010519491231002X")
@example("131052A308T")
def test_a_text_becomes_the_same_as_by_asking_every_rule(text: str) -> None:
    assert quick.text(text) == slow.text(text)


@pytest.mark.parametrize("scheme", "bearer basic digest token apikey negotiate hawk".split())
@pytest.mark.parametrize("between", [" ", ":", "=", "%20", "\t", "+"])
def test_what_follows_a_scheme_is_gone_whichever_it_is(scheme: str, between: str) -> None:
    for written in (scheme, scheme.upper()):
        text = f"{written}{between}Zx81kQpLm3vT9sWq2bNc"
        assert "Zx81" not in quick.text(text)
        assert quick.text(text) == slow.text(text)


@pytest.mark.parametrize("between", ["=", ": ", " => ", ":=", "%3D", "%3a", '":"'])
@pytest.mark.parametrize("name", ["pw", "pin", "otp", "jwt", "sas", "cvv", "cvc", "csc", "pwd", "password"])
def test_what_follows_a_name_is_gone_however_short_it_is(name: str, between: str) -> None:
    for text in (f"{name}{between}Q", f"{name.upper()}{between}Q", f".{name}{between}Q"):
        assert "Q" not in quick.text(text)
        assert quick.text(text) == slow.text(text)


@given(st.text(alphabet="pw=: -@.1eyJhawkbrA_%3>x\t[]()dotа", min_size=1, max_size=11))
@settings(max_examples=examples(500))
def test_a_short_text_becomes_the_same_as_by_asking_every_rule(text: str) -> None:
    assert quick.text(text) == slow.text(text)


@given(st.one_of(PIECE, MIXED))
@settings(max_examples=examples(200))
def test_a_quick_test_says_yes_wherever_its_rule_finds_something(text: str) -> None:
    searched = folded(text, LookBudget(len(text)))[0]
    lowered = searched.lower() if len(searched.lower()) == len(searched) else searched.translate(LOWER)
    for rule in RULES:
        if next(rule.find(searched, lowered, LookBudget(len(searched))), None) is not None:
            assert rule.may(searched, lowered), rule.find.__name__
            assert not is_plain(text) or not text.isascii()


@pytest.mark.parametrize("shape", [*KNOWN, *SHAPES], ids=repr)
@pytest.mark.thorough
def test_of_every_shape_that_is_looked_for_something_is_seen_quickly(shape: st.SearchStrategy[str]) -> None:
    rules = [rule for rule in RULES if rule.find.__name__ in ("known_tokens", "find_numbers")]

    @given(shape)
    @settings(max_examples=20, database=None)
    def seen(text: str) -> None:
        # Also where a check digit is wrong: the test must not know of that.
        assert any(rule.may(text, text.lower()) for rule in rules)
        assert text.isdigit() or not is_plain(text)

    seen()


VALUES = st.recursive(
    st.one_of(MIXED, st.integers(), st.integers(10**10, 10**19), st.integers(-(10**19), -(10**10)), st.booleans()),
    lambda held: st.one_of(
        st.lists(held, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from("phone key password card name value n Key Value field val old".split()), PIECE),
            held,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=examples(200))
@example([4111111111111111, -4111111111111111, 52998224725, 12345678901])
@example({"n": {"name": "Cookie", "value": "x"}, "joe@example.com": 1, "phone": 123456789, "key": 123})
def test_a_value_becomes_the_same_as_by_asking_every_rule(value: Any) -> None:
    assert quick.value(value) == slow.value(value)
    # Names that were seen before are not searched again.
    assert quick.value(value) == slow.value(value)


@given(VALUES)
@settings(max_examples=examples(100))
def test_what_is_kept_is_kept_on_quick_ways_too(value: Any) -> None:
    keep = ("card", "national-id", "phone")

    assert Redactor(keep=keep).value(value) == by_asking_every_rule(keep=keep).value(value)


@given(st.one_of(MIXED, st.lists(st.one_of(*SHAPES), max_size=4).map(" ".join)))
@settings(max_examples=examples(500))
@example("id 11010519491231002X")
@example("x RSSMRA85T10A562S")
@example("+1 (415) 555-2671")
def test_numbers_are_the_same_as_from_the_beginning_of_the_text(text: str) -> None:
    plain, looks = numbers._PROTECTED.sub(numbers._blot, text), LookBudget(len(text))
    everywhere = [
        *numbers._IN_DIGITS.find(plain, 0, looks),
        *numbers._IN_WORDS.find(plain, 0, looks),
        *numbers._WITH_LETTERS.find(plain, 0, looks),
    ]
    if not re.search(r"\d\d", text):
        # Digits one by one are none.
        everywhere = []

    assert redaction._merged(numbers.find_numbers(text, text, LookBudget(len(text)))) == redaction._merged(everywhere)


def mailboxes(text: str) -> Iterator[Span]:
    """Word by word."""
    for match in addresses._MAIL.finditer(text):
        before = (text, max(0, match.start(1) - 300), match.start(1))
        if addresses._is_persons(match) and not addresses._USERINFO.search(*before):
            yield *match.span(), "email"


@given(st.lists(st.sampled_from(["a", "b.cd", "@", "%40", " ", "\n", ".", "://", "[1.2.3.4]", "x@y.zz"])).map("".join))
@settings(max_examples=examples(500))
def test_mailboxes_are_the_same_as_word_by_word(text: str) -> None:
    assert list(addresses.emails(text, text.lower(), LookBudget(len(text)))) == list(mailboxes(text))


def test_every_ending_that_may_mean_a_key_has_a_hint_by_which_it_is_found() -> None:
    endings = (*secret_names._WEAK, *secret_names._LIKELY, *secret_names._GLUED)
    assert [ending for ending in endings if not any(hint in ending for hint in secret_names.HINTS)] == []


class TestNames:
    def test_names_in_which_something_was_found_are_not_remembered(self) -> None:
        redactor = Redactor()
        redactor.value({"level": 1, "joe@example.com": 2, "x" * 65: 3, "password": 4})

        assert set(redactor._known) == {"level", "password"}

    def test_however_many_names_there_are_no_more_than_some_are_remembered(self) -> None:
        redactor = Redactor()
        redactor.value({f"name{number}": number for number in range(10_000)})

        assert len(redactor._known) <= redaction._MOST_KNOWN
        assert redactor.value({"password": "x", "name1": "joe@example.com"}) == {
            "password": "[redacted:secret]",
            "name1": "[redacted:email]",
        }

    def test_a_name_that_failed_once_is_looked_at_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        redactor = Redactor()
        with monkeypatch.context() as patch:
            patch.setattr(redaction, "folded", lambda text, looks: 1 / 0)
            assert redactor.value({"a longer name": 1}) == WITHHELD

        assert redactor.value({"a longer name": 1}) == {"a longer name": 1}


def test_a_value_with_more_to_judge_than_time_allows_is_withheld_from_there_on() -> None:
    judged = LookBudget(0).left
    shown = Redactor().value(["a@b.cd"] * (3 * judged) + ["plain", 7])

    assert shown[:judged] == ["[redacted:email]"] * judged
    assert shown[-3:] == [WITHHELD, "plain", 7]
