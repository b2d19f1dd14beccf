"""Removes secrets and personal data from values before they leave. Linear in time.

If anything goes wrong the text is withheld. Rules search a normalised copy (`folding`); the text itself stays as it
was, except for what is replaced.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any, Final
from uuid import UUID

from aftercommit.errors import DeclarationError
from aftercommit.redaction.folding import LOWER, folded
from aftercommit.redaction.numbers import LEAST_RUN, Span, kind_of_digits, kind_of_text_of_digits
from aftercommit.redaction.patterns import LookBudget
from aftercommit.redaction.prefilter import is_plain
from aftercommit.redaction.rules import RULES, RedactionRule
from aftercommit.redaction.secret_names import (
    JAR,
    LIKELY,
    MAYBE,
    SECRET,
    holds_several,
    kind_of,
    looks_opaque,
    looks_personal,
    looks_secret,
    says_nothing,
)


def _spelled(names: str) -> tuple[str, ...]:
    return tuple(each for name in names.split() for each in (name, name[0].upper() + name[1:], name.upper()))


WITHHELD: Final = "[withheld]"
"""The replacement for a value that could not be checked."""
DEEPEST = 64
_LEAST_NUMBER = 10 ** (LEAST_RUN - 1)
_HARMLESS = (datetime, date, time_of_day, timedelta, UUID)
_DECIMALS = (float, Decimal)
_ORDERED = (list, tuple)
_LISTS = (*_ORDERED, set, frozenset)
# A dict is a Mapping, too, and recognised more quickly.
_MAPPINGS = (dict, Mapping)
_SEVERAL = (*_LISTS, *_MAPPINGS)
# Whether a value is what its name says. For kinds that are not listed: `looks_personal`.
_LOOKS_SO: Final[Mapping[str, Callable[[str], bool]]] = {
    MAYBE: looks_secret,
    LIKELY: looks_opaque,
    JAR: holds_several,
}
# Fields that hold the name of a setting, and fields that hold its value; in lower case, upper case and capitalised.
_NAMES: Final = _spelled("name key field header param parameter property attribute variable setting")
_VALUES: Final = frozenset(_spelled("value val old new oldValue newValue old_value new_value stringValue"))
# How many names of fields and clean texts are remembered, and up to which lengths.
_MOST_KNOWN = 4096
_LONGEST_KNOWN = 64
_LONGEST_CLEAN = 500
_LONGEST_PLAIN = 16


class Redactor:
    """Replaces secrets and personal data with their kind, like `[redacted:email]`.

    `keep` names kinds to leave in place, `names` further fields whose values are replaced, and `patterns` further
    regular expressions by kind, which have to be linear on hostile text. `version` changes whenever the result may.
    """

    def __init__(
        self,
        *,
        keep: Collection[str] = (),
        names: Collection[str] = (),
        patterns: Mapping[str, str] | None = None,
    ) -> None:
        """The standard rules and yours."""
        known = {kind for rule in RULES for kind in rule.kinds}
        if unknown := set(keep) - known:
            raise DeclarationError(f"keep={sorted(unknown)} are no kinds of redaction: there are {sorted(known)}")
        self._keep = frozenset(keep)
        self._names = frozenset(name.lower() for name in names)
        self._rules = [rule for rule in RULES if not self._keep.issuperset(rule.kinds)]
        self._own = [_own_rule(kind, pattern) for kind, pattern in (patterns or {}).items()]
        self._rules += self._own
        self._known: dict[str, tuple[str | None, str]] = {}
        # Those of the known names that say nothing about their values.
        self._silent: set[str] = set()
        # Texts in which nothing was found, and how many matches were checked. Texts with a secret are never kept.
        self._clean: dict[str, int] = {}
        # Short texts in which no rule can find anything, like a level or the name of a service.
        self._plain: set[str] = set()
        told = repr((sorted(keep), sorted(self._names), sorted((patterns or {}).items())))
        self.version = hashlib.sha256(_source() + told.encode()).hexdigest()[:16]

    def text(self, value: str) -> str:
        """The text without secrets and personal data; `[withheld]` if it cannot be checked."""
        return self._text(value, LookBudget(0))

    def value(self, value: Any) -> Any:
        """The same for all text in a JSON-like value. The value of a field like `password` is replaced as a whole."""
        try:
            return self._walk(value, DEEPEST, None, LookBudget(0))
        except Exception:  # noqa: BLE001 - a value that was not checked must not leave
            return WITHHELD

    def _text(self, value: str, looks: LookBudget) -> str:
        try:
            return self._redacted(value, looks)
        except Exception:  # noqa: BLE001 - a text that was not checked must not leave
            return WITHHELD

    def _redacted(self, value: str, looks: LookBudget) -> str:
        if not self._own:
            if is_plain(value):
                # A run of digits that is a number of something is longer than what is plain by its length.
                if len(value) <= _LONGEST_PLAIN:
                    self._remember_plain(value)
                return value
            if value.isdigit() and value.isascii():
                return self._mark_of(kind_of_text_of_digits(value)) or value
        if not looks.add(len(value)):
            return WITHHELD
        spent = self._clean.get(value)
        if spent is not None:
            looks.spend(spent)
            return value
        left = looks.left
        searched, places = folded(value, looks)
        if searched is value or self._own or not is_plain(searched):
            spans = self._found(self._rules, searched, looks)
            if spans:
                return _replaced(value, spans, places)
        if len(value) <= _LONGEST_CLEAN:
            if len(self._clean) >= _MOST_KNOWN:
                self._clean.clear()
            self._clean[value] = left - looks.left
        return value

    def _remember_plain(self, value: str) -> None:
        if len(self._plain) >= _MOST_KNOWN:
            self._plain.clear()
        self._plain.add(value)

    def _found(self, rules: Iterable[RedactionRule], text: str, looks: LookBudget) -> list[Span]:
        lowered = text.lower()
        if len(lowered) != len(text):
            # Both need the same places.
            lowered = text.translate(LOWER)
        return [
            span
            for rule in rules
            if rule.may(text, lowered)
            for span in rule.find(text, lowered, looks)
            if span[2] not in self._keep
        ]

    def _walk(self, value: Any, depth: int, kind: str | None, looks: LookBudget) -> Any:
        """A value without secrets. `kind` is what the name of its field says about it."""
        if kind is None and isinstance(value, str):
            return value if value in self._plain else self._text(value, looks)
        if value is None or isinstance(value, bool):
            return value
        if kind == SECRET:
            return value if value == "" else _mark(kind)
        if isinstance(value, str):
            return (kind and _mark_for(value, kind)) or self._text(value, looks)
        if isinstance(value, int):
            return self._number(value, kind, looks)
        if isinstance(value, _LISTS):
            return self._parts(value, depth, kind, looks) if depth else WITHHELD
        if isinstance(value, _MAPPINGS):
            return self._fields(value, depth, kind, looks) if depth else WITHHELD
        if isinstance(value, _DECIMALS):
            return self._decimal(value, kind, looks)
        return value if isinstance(value, _HARMLESS) else WITHHELD

    def _parts(self, value: Iterable[Any], depth: int, above: str | None, looks: LookBudget) -> list[Any]:
        """The items of a list. A flag names the item behind it, and the first item of a pair names the second."""
        shown: list[Any] = []
        kind = above
        for each in value:
            following = above
            if isinstance(each, _ORDERED) and depth > 1 and (named := self._kind_of_second(each, looks)):
                shown.append([self._text(each[0], looks), self._walk(each[1], depth - 2, named, looks)])
            elif isinstance(each, str) and each[:1] == "-":
                named, flag = self._known.get(each) or self._named(each, looks)
                shown.append(self._walk(each, depth - 1, above, looks) if above else flag)
                following = SECRET if "=" not in each and named == SECRET else above
            else:
                shown.append(self._walk(each, depth - 1, kind, looks))
            kind = following
        return shown

    def _kind_of_second(self, pair: Sequence[Any], looks: LookBudget) -> str | None:
        """What the first of a pair says about the second: headers are often recorded as pairs."""
        if len(pair) != 2 or not isinstance(pair[0], str):
            return None
        return (self._known.get(pair[0]) or self._named(pair[0], looks))[0]

    def _decimal(self, value: float | Decimal, kind: str | None, looks: LookBudget) -> float | Decimal | str:
        """A whole number that some encoder wrote with a decimal point."""
        if not isfinite(value) or value != int(value):
            return value
        shown = self._number(int(value), kind, looks)
        return shown if isinstance(shown, str) else value

    def _number(self, value: int, kind: str | None, looks: LookBudget) -> int | str:
        if kind is None and -_LEAST_NUMBER < value < _LEAST_NUMBER and not self._own:
            return value
        written = str(value)
        if kind and (mark := _mark_for(written, kind)):
            return mark
        if mark := self._mark_of(kind_of_digits(written if value > 0 else written[1:])):
            return mark if value > 0 else f"-{mark}"
        if self._own and (spans := self._found(self._own, written, looks)):
            return _replaced(written, spans, None)
        return value

    def _mark_of(self, kind: str | None) -> str | None:
        """The replacement for a run of digits, in which no other rule can find anything."""
        return None if kind is None or kind in self._keep else _mark(kind)

    def _fields(self, value: Mapping[Any, Any], depth: int, above: str | None, looks: LookBudget) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        alike: dict[str, int] = {}
        # Headers, cookies and changes are often recorded as {"name": …, "value": …}.
        pair = None if _VALUES.isdisjoint(value) else self._kind_of_pair(value)
        is_usual = above is None and pair is None and not self._own
        for name, held in value.items():
            # Most fields have a name that says nothing and a value like a level, an id, a time or a count.
            if is_usual and name in self._silent and name not in shown:
                if type(held) is str:
                    is_clean = held in self._plain or (len(held) > _LONGEST_PLAIN and is_plain(held))
                    shown[name] = held if is_clean else self._text(held, looks)
                elif type(held) is int and -_LEAST_NUMBER < held < _LEAST_NUMBER:
                    shown[name] = held
                else:
                    shown[name] = self._walk(held, depth - 1, None, looks)
                continue
            key = name if isinstance(name, str) else str(name)
            kind, free = self._known.get(key) or self._named(key, looks)
            if kind == JAR and not isinstance(held, str):
                kind = SECRET if isinstance(held, _SEVERAL) else None
            if kind is None and key in _VALUES:
                kind = pair
            if free in shown:
                free = _apart(free, shown, alike)
            shown[free] = self._walk(held, depth - 1, kind or above, looks)
        return shown

    def _kind_of_pair(self, value: Mapping[Any, Any]) -> str | None:
        """What the name beside a value says about it."""
        names = (value[each] for each in _NAMES if isinstance(value.get(each), str))
        return next(filter(None, map(self._kind_of, names)), None)

    def _named(self, name: str, looks: LookBudget) -> tuple[str | None, str]:
        """What a name says about its value, and the redacted name. Remembered, unless something was redacted."""
        plain = not self._own and is_plain(name)
        if plain and not self._names and says_nothing(name):
            kind, shown = None, name
        elif looks.add(len(name)):
            kind, shown = self._kind_of(name), name if plain else self._text(name, looks)
        else:
            return SECRET, WITHHELD
        if shown == name and len(name) <= _LONGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
                self._silent.clear()
            self._known[name] = kind, shown
            if kind is None:
                self._silent.add(name)
        return kind, shown

    def _kind_of(self, name: str) -> str | None:
        kind = SECRET if name.lower() in self._names else kind_of(folded(name, LookBudget(len(name)))[0])
        return None if kind in self._keep else kind


def _apart(name: str, shown: Collection[str], alike: dict[str, int]) -> str:
    """A free name, when different names have become the same by redaction."""
    free = name
    while free in shown:
        alike[name] = alike.get(name, 1) + 1
        free = f"{name} {alike[name]}"
    return free


def _replaced(text: str, spans: Iterable[Span], places: Sequence[int] | None) -> str:
    """The text with each span replaced by its kind. `places` maps characters of the searched copy to the text."""
    parts, done = [], 0
    for begin, end, kind in _merged(spans):
        if places is not None:
            # Invisible characters behind the last one stay.
            begin, end = places[begin], places[end - 1] + 1
        parts += [text[done:begin], _mark(kind)]
        done = end
    return "".join([*parts, text[done:]])


def _mark_for(written: str, kind: str) -> str | None:
    """The replacement for a value that is what its name says; None if it is not."""
    is_so = _LOOKS_SO.get(kind, looks_personal)(written)
    return _mark(SECRET if kind == JAR else kind) if is_so else None


def _mark(kind: str) -> str:
    return f"[redacted:{kind}]"


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Sorted; overlapping spans become one, of the kind that begins first."""
    merged: list[Span] = []
    for begin, end, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if merged and begin < merged[-1][1]:
            before = merged[-1]
            merged[-1] = (before[0], max(before[1], end), before[2])
        elif begin < end:
            merged.append((begin, end, kind))
    return merged


def _own_rule(kind: str, pattern: str) -> RedactionRule:
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise DeclarationError(f"pattern {pattern!r:.100} for {kind!r} cannot be read: {problem}") from problem
    return RedactionRule(
        (kind,), lambda text, *_: ((*match.span(), kind) for match in compiled.finditer(text)), lambda *_: True
    )


@cache
def _source() -> bytes:
    """The source of the rules: when they change, so does the version."""
    modules = {each.name: each for each in files(__package__).iterdir() if each.name.endswith(".py")}
    return b"".join(modules[name].read_bytes() for name in sorted(modules))
