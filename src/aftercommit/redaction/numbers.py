"""Payment cards, national ids, bank accounts and telephones: found by shape, confirmed by check digit. Pure.

All shapes are tried at once where a number can begin, and each has a bounded length. Where a number fails its check,
the search goes on one character further.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from aftercommit.redaction.national_ids import BY_LENGTH, GROUPED, LETTERED, iban, luhn
from aftercommit.redaction.patterns import LookBudget, either

Span = tuple[int, int, str]
Judge = Callable[[str], str | None]

# The shortest run of digits that is checked, and the shortest card.
LEAST_RUN = min(BY_LENGTH)
LEAST_CARD = 13
# The least that any number has: eight digits, or two behind a capital letter. The patterns begin with a digit, which
# `re` finds quickly.
_EIGHT = r"(?=[\d .\-+()/_\t\r\n]{7})(?:[ .\-+()/_\t\r\n]{0,2}+\d){7}"
_BEHIND_LETTER = r"(?:(?<=[A-Z]\d)|(?<=[A-Z] \d))\d"
_ANY_NUMBER = re.compile(rf"\d{_EIGHT}")
_ANY_CARD = re.compile(r"[2-6]\d{3}(?:[\s./+_-]{1,2}\d{4}|\d{9})")
_ANY_DIGITS = re.compile(r"\d\d")
_ANY_LETTER = re.compile("[A-Z]")
_ANY_LETTERED = re.compile(rf"\d(?:{_BEHIND_LETTER}|\d{{7}}[A-Z]|\d{{5}}[-+]\d{{3}})")
_ANY_OF_BOTH = re.compile(rf"\d(?:{_BEHIND_LETTER}|{_EIGHT})")
# What may stand before the first digit in either.
_BEFORE_NUMBER = 1
_BEFORE_LETTERED = 9
_ANY_PROTECTED = re.compile("[-./]")
# UUIDs and times: full of digits, and never searched.
_PROTECTED = re.compile(
    r"[0-9a-fA-F](?<![0-9A-Za-z][0-9a-fA-F])(?:"
    r"[0-9a-fA-F]{7}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?:(?<=1)9|(?<=2)0)\d\d-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])"
    r"(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d?(?P<between>[./-])\d{1,2}(?P=between)(?:19|20)\d\d"
    r")(?![0-9A-Za-z])"
)

_PUNCTUATION = b" .-+()/_\t\r\n"
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d{2}|7[01]\d|720)\d{12}|220[0-4]\d{12,15}"
    r"|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11,16}|35(?:2[89]|[3-8]\d)\d{12,15}|(?:5[06-9]|6\d)\d{11,17}"
)
_DECIMAL = re.compile(r"\+\d+\.\d+")
_DATE = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}")
_YEARS = re.compile(r"\(\d\d\) ?(?:19|20)\d\d-(?:19|20)\d\d")
# Phones written as digits alone: mobiles of China (and much of North America with its 1), and what begins with 00.
_BARE = r"(?:1[3-9]\d{9}|00[1-9]\d{9,12})"
_BARE_PHONE = re.compile(_BARE)
_MEBIBYTE = 2**20
_PAIRS = re.compile(r"\d\d(?:[^\d]{1,2}\d\d){3,7}")


def digits_of(written: str) -> str:
    """The digits alone."""
    return written.encode().translate(None, _PUNCTUATION).decode()


def is_card(digits: str) -> bool:
    """A known issuer, a length that it gives, and Luhn."""
    return luhn(digits) and _ISSUERS.fullmatch(digits) is not None


def _card(written: str) -> str | None:
    return "card" if is_card(digits_of(written)) else None


def kind_of_digits(digits: str) -> str | None:
    """What a run of digits is: a card, a national id, or neither."""
    if len(digits) >= LEAST_CARD and is_card(digits):
        return "card"
    for check in BY_LENGTH.get(len(digits), ()):
        # Sizes of memory and disks are whole mebibytes; hardly any id is.
        if check(digits) and int(digits) % _MEBIBYTE:
            return "national-id"
    return None


def kind_of_text_of_digits(digits: str) -> str | None:
    """The same of a text, which may also be a phone. A JSON number of that length is mostly a size or a row id."""
    phone = _BARE_PHONE.fullmatch(digits) and int(digits) % _MEBIBYTE
    return kind_of_digits(digits) or ("phone" if phone else None)


def _spaced_phone(written: str) -> str | None:
    # Pairs alone are a dump of bytes.
    return None if _PAIRS.fullmatch(written) else _phone(written)


def _phone(written: str) -> str | None:
    enough = 8 <= len(digits_of(written)) <= 17
    other = _DECIMAL.fullmatch(written) or _DATE.match(written) or _YEARS.match(written)
    return "phone" if enough and not other else None


def _national(check: Callable[[str], bool]) -> Judge:
    return lambda written: "national-id" if check(digits_of(written)) else None


def _lettered(check: Callable[[str], bool]) -> Judge:
    kind = "account" if check is iban else "national-id"
    return lambda written: kind if check(written) else None


_END = r"(?!\w|[.-]\d)"
_AMERICA = r"(?<![-/])(?:1[ .-])?(?:\([2-9]\d{2}\)[ .-]?|[2-9]\d{2}[ .-])[2-9]\d{2}[ .-]\d{4}"
_RUSSIA = r"(?:8[ -]?)?(?:\([3489]\d{2}\) ?|(?<=8[ -])[3489]\d{2}[ -])\d{3}[ -]\d{2}[ -]\d{2}"
# How it begins, its shape, and the function that says what a match is.
_NUMBERS: Sequence[tuple[str, str, Judge]] = (
    # Not behind `=`, `:` or `/`, and not a size.
    (
        r"\d{11}",
        rf"(?<![=:/#-])(?<!\": ){_BARE}(?!\w|[.-]\d| (?:bytes|B|KB|ns|us|µs|ms)(?!\w))",
        kind_of_text_of_digits,
    ),
    (r"\d{11}", r"\d{11,19}(?!\w|\.\d)", kind_of_digits),
    *((head, shape + _END, _national(check)) for head, shape, check in GROUPED),
    # Telephones: international, with 00, North America, and elsewhere with the 0 of long distance.
    (r"\+", r"\+[1-9](?:[ .\-()/]{0,2}\d){6,14}(?!\w)", _phone),
    (r"00", r"00[1-9]\d{0,2}(?:[ .\-/()]{1,2}\d{2,8}){2,5}(?!\w)", _phone),
    (r"00[ .-]", r"00[ .-][1-9]\d{0,2}(?:[ .\-/()]{1,2}\d{1,8}){3,6}(?!\w)", _spaced_phone),
    # Brazil, and Russia with the 8 of long distance.
    (r"\([1-9]\d\)|[1-9]\d 9", r"(?:\([1-9]\d\) ?|[1-9]\d (?=9))9?\d{4}-\d{4}" + _END, _phone),
    (r"(?:8[ -]?)?\(?[3489]\d\d[) -]", _RUSSIA + _END, _phone),
    (r"\(?0", r"(?<![-/])\(?0[1-9]\d{0,3}\)?[ /.-]\d{2,8}(?:[ .-]\d{2,4}){0,4}" + _END, _phone),
    (r"[2-9(]|1[ .-]", _AMERICA + _END, _phone),
)
# Cards are distinct enough to be searched for within words, too: in the usual groups; with an unusual separator, if it
# is the same throughout; as digits next to a letter, but not within a hash; or written as a decimal.
_UNUSUAL = r"(?P<cut>[\t\n/+_]|  |\r\n)"
_CARDS: Sequence[tuple[str, str, Judge]] = (
    (r"\d{4}[ .-]", r"[2-6]\d{3}(?:[ .-]\d{4}){3}(?:[ .-]\d{1,3})?(?!\d|\.\d)", _card),
    (r"\d{4}[ .-]", r"3\d{3}[ .-]\d{6}[ .-]\d{4,5}(?!\d|[.-]\d)", _card),
    (r"\d{4}[\s/+_]", rf"[2-6]\d{{3}}{_UNUSUAL}\d{{4}}(?:(?P=cut)\d{{4}}){{2}}(?!\d)", _card),
    (r"\d{13}", r"(?<![0-9a-fA-F]{4})\d{15,16}(?![\d.]|[0-9a-fA-F]{4})", _card),
    (r"\d{13}", r"\d{13,19}(?=\.0{1,2}(?!\w))", _card),
)
_LETTERS = tuple((head, shape + r"(?![\w-])", _lettered(check)) for head, shape, check in LETTERED)


_LONG = re.compile(r"\\d\{(?:[3-9]|1\d)\}")
_BRANCHES = {r"\+": "[+(0]", "00": "[+(0]", "00[ .-]": "[+(0]", r"\(?0": "[+(0]"}


def _branch_of(head: str) -> str:
    """What several beginnings have in common: where that is missing, none of them is tried."""
    if _LONG.match(head):
        return r"\d{3}"
    return r"\d\d?[ .]" if head.startswith(r"\d") else _BRANCHES.get(head, head)


class _Shapes:
    """Several shapes as one pattern. The group that matched tells which function judges the match."""

    def __init__(self, beginning: str, shapes: Sequence[tuple[str, str, Judge]]) -> None:
        branches: dict[str, dict[str, str]] = {}
        self._judges: dict[str, Judge] = {}
        for number, (head, shape, judge) in enumerate(shapes):
            shaped = f"(?P<shape{number}>{shape})"
            branch = branches.setdefault(_branch_of(head), {})
            branch[head] = f"{branch[head]}|{shaped}" if head in branch else shaped
            self._judges[f"shape{number}"] = judge
        whole = either({head: either(branch) for head, branch in branches.items()})
        self._pattern = re.compile(f"{beginning}(?:{whole})")

    def find(self, text: str, place: int, looks: LookBudget) -> Iterator[Span]:
        """What is judged to be something, from this place on, from left to right."""
        while match := self._pattern.search(text, place):
            looks.spend()
            kind = self._judges[match.lastgroup or ""](match[0])
            if kind is None:
                # Another number may begin at the next group of this one.
                place = match.start() + 1
            else:
                place = match.end()
                yield match.start(), place, kind


# Each begins with what all of its shapes have, so most places are ruled out at once.
_IN_DIGITS = _Shapes(r"(?<![\w.+])(?=[\d+(][\d .\-()/]{5})", _NUMBERS)
_IN_WORDS = _Shapes(r"(?<![\d.])(?=[2-6])", _CARDS)
_WITH_LETTERS = _Shapes(r"(?<![\w.-])(?=[A-Z]{1,2} ?\d|[A-Z]{6}\d|\d{6})(?=[A-Z0-9+ -]{8})", _LETTERS)


def may_be_number(text: str, lowered: str) -> bool:
    """The prefilter of `find_numbers`: enough digits together, or some behind a capital letter."""
    return _ANY_OF_BOTH.search(text) is not None


def find_numbers(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """Cards, national ids, accounts and telephones; not times, UUIDs, decimals or parts of words."""
    if not _ANY_DIGITS.search(text):
        return
    plain = _PROTECTED.sub(_blot, text) if _ANY_PROTECTED.search(text) else text
    if first := _ANY_NUMBER.search(plain):
        begin = max(0, first.start() - _BEFORE_NUMBER)
        if card := _ANY_CARD.search(plain, begin):
            yield from _IN_WORDS.find(plain, card.start(), looks)
        yield from _IN_DIGITS.find(plain, begin, looks)
    if _ANY_LETTER.search(plain) and (first := _ANY_LETTERED.search(plain)):
        yield from _WITH_LETTERS.find(plain, max(0, first.start() - _BEFORE_LETTERED), looks)


def _blot(match: re.Match[str]) -> str:
    return "x" * len(match[0])
