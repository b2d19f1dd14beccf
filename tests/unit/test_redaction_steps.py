"""Redaction takes work in proportion to its text, whatever that is: counted in steps of a matcher, and not timed."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftercommit.redaction import addresses, folding, key_value, numbers, prefilter, prose, rules, secret_names
from aftercommit.redaction import redactor as redaction
from aftercommit.redaction.folding import folded
from aftercommit.redaction.patterns import LookBudget
from aftercommit.redaction.rules import RULES
from tests.support.sizes import size
from tests.unit.hostile_texts import repeated
from tests.unit.steps import SINGLE, Count, Steps, Text, code, parser

pytestmark = pytest.mark.contract("L10")

# Of each rule what is worst for it; `python -m tools.redaction_speed` measures all that we know.
WORST = [
    "1", "4234 ", "12345678901 ", "415 555 ", "a@", "a@b.", "password=", 'password="', 'password=\\"', "secret:{",
    "phone=[ ", "phone={", "key=", "eyJ", "eyJaaaaaaaa.", "bearer ", "://a:b/", "-----BEGIN PRIVATE KEY-----", "1.",
    "1:2:3:4:5:6:7 ", "+1 ", "\\", "--password ", "<password>", "DE89 3704 ", "SG.aaaaaaaaaaaaaaaaaaaa", "-aaaaaaaaa ",
    "1 2 3 4 5 6 7 x", "A1 ", "password\n=\n", "password: |\n a\n", "password=<", "password ", "tel 1 2 3 4 ",
    "name: pw value: ", "('password','", "<a ", "<pw a>", "<phone a>", "<key>", "<cookies>", "<cookies>a=",
    "<input name=pw value=x>", "//a:b@",
    "sqlplus a/b", "-u a", "mysql -px ", '"a', "a&#64;b.", "aa:bb:cc:dd:ee:f", "4111_", "a411111111111111",
    "$2b$10$aaaa", "cookies={", "[.]", "a [at] ", "aа", "пароль=", " at a dot ", "a@localhost ", "13812345678 ",
    "00 41 44 66 ", "(11) 91234-", "8 (495) 123-45-", "mot de passe ", "field: pw val: ", 'password="\\"',
    "password: |\n a\n\n a",
]  # fmt: skip
PIECES = [
    "password", "phone", "key", "bearer", "eyJ", "AKIA", "DE89", "4111", "1.2", "1", "a", "=", ":", '"', "\\", "'", "{",
    "[", "@", ".", "-", "--", "+", "(", "://", "::", "<", ">", "%22", "%3D", " ", "\n", "value", "name", "tel", "-u",
    "-p", "mysql", "//", "</", "$", "_", "&#64;", "[.]", "(at)", "а", "пароль", " at ", " dot ", "val", "header", "00 ",
    "8 (495)",
]  # fmt: skip
# Several patterns begin anew at every character, and each may look ahead by a fixed number of them.
MOST_STEPS = 400
MODULES = (
    redaction, folding, prefilter, rules, key_value, prose, addresses, numbers,
    secret_names,
)  # fmt: skip


@pytest.fixture(scope="module")
def count() -> Iterator[Count]:
    """The patterns of all rules count their steps."""
    counting = Count()
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            for name, value in list(vars(module).items()):
                if isinstance(value, re.Pattern):
                    patch.setattr(module, name, Steps(value, counting))
                elif isinstance(value, numbers._Shapes):
                    patch.setattr(value, "_pattern", Steps(value._pattern, counting))
        quoted = {quote: Steps(pattern, counting) for quote, pattern in key_value._QUOTE_OR_ESCAPE.items()}
        patch.setattr(key_value, "_QUOTE_OR_ESCAPE", quoted)
        yield counting


def steps_for(text: str, count: Count) -> int:
    """What it takes to look through the text, with as many looks as it needs."""
    count.steps = 0
    searched = Text(folded(text, LookBudget(10**9))[0])
    searched.count_of = count
    prefilter.is_plain(searched)
    for rule in RULES:
        rule.may(searched, searched.lower())
        for _ in rule.find(searched, searched.lower(), LookBudget(10**9)):
            count.steps += 1
    return count.steps


def nodes_of(nodes: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a parsed pattern, however deep."""
    for kind, told in nodes:
        yield kind, told
        parts = told if isinstance(told, (tuple, list)) else (told,)
        for part in (each for some in parts for each in (some if isinstance(some, list) else [some])):
            if isinstance(part, parser.SubPattern):
                yield from nodes_of(part)


@pytest.mark.contract("E8")
def test_only_single_characters_are_repeated_without_giving_back(count: Count) -> None:
    """Before 3.11.5 `re` does not go back to where it was when a group that is repeated so matches in part.

    `re.fullmatch("(?:ab?c)*+", "a")` finds something there. Of single characters it is right in every version.
    """
    patterns = [steps.pattern for steps in count.patterns]
    wrong = [
        pattern
        for pattern in patterns
        for kind, told in nodes_of(parser.parse(pattern))
        if kind is code.ATOMIC_GROUP
        or (kind is code.POSSESSIVE_REPEAT and (len(told[2]) > 1 or told[2][0][0] not in SINGLE))
    ]

    assert wrong == []
    assert len(patterns) > 60


@pytest.mark.sized
@pytest.mark.parametrize("unit", WORST, ids=ascii)
@pytest.mark.thorough
def test_twice_the_text_takes_twice_the_steps(unit: str, count: Count) -> None:
    half, whole = (steps_for(repeated(unit, length), count) for length in size((300, 600), (600, 1200)))

    # A little more where something is looked for within a bound; a rule that goes over its text again takes four times.
    assert whole < 2.4 * half


@pytest.mark.thorough
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join))
@settings(max_examples=size(5, 50), derandomize=True, deadline=None)
def test_no_mixture_takes_more_than_so_many_steps_for_a_character(count: Count, unit: str) -> None:
    assert steps_for(repeated(unit, 1500), count) < 1500 * MOST_STEPS
