"""How many steps a backtracking matcher takes, counted and not timed: the same on every machine and on every day.

`Steps` stands in for the patterns of a module. What they find is what the real patterns find; beside it the steps are
counted that it takes to find it without any of the shortcuts that a real matcher knows. `Text` counts what is searched
without a pattern.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from re import IGNORECASE, Match, Pattern
from typing import Any

# Of the standard library, without an address that is promised or typed.
code: Any = import_module("re._constants")
parser: Any = import_module("re._parser")

Node = tuple[Any, Any]
CATEGORIES: dict[Any, Callable[[str], bool]] = {
    code.CATEGORY_DIGIT: str.isdecimal,
    code.CATEGORY_SPACE: str.isspace,
    code.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
}
CATEGORIES |= {
    code.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    code.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
    code.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
}
SINGLE = (code.LITERAL, code.NOT_LITERAL, code.IN, code.ANY)


class Count:
    """What was counted so far."""

    def __init__(self) -> None:
        """Nothing."""
        self.steps = 0
        self.patterns: list[Steps] = []


class Text(str):
    """A text in which searching without a pattern counts, too."""

    count_of: Count

    def find(self, wanted: str, begin: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        found = super().find(wanted, begin, len(self) if end is None else end)
        self.count_of.steps += (found if found >= 0 else min(len(self), len(self) if end is None else end)) - begin
        return found


class Steps:
    """A pattern that counts."""

    def __init__(self, real: Pattern[str], count: Count) -> None:
        """As a module has it."""
        self.pattern, self._real, self._count = real.pattern, real, count
        self._nodes: list[Node] = list(parser.parse(real.pattern, real.flags))
        self._folds = bool(real.flags & IGNORECASE)
        self._text, self._end = "", 0
        # By the identity of a set, which lives as long as the pattern does, and a character.
        self._among: dict[tuple[int, str], bool] = {}
        self._groups: dict[int, tuple[int, int]] = {}
        count.patterns.append(self)

    def match(self, text: str, begin: int = 0, end: int | None = None) -> Match[str] | None:
        self._from(text, begin, begin, end)
        return self._real.match(text, begin, len(text) if end is None else end)

    def fullmatch(self, text: str, begin: int = 0, end: int | None = None) -> Match[str] | None:
        self._from(text, begin, begin, end, whole=True)
        return self._real.fullmatch(text, begin, len(text) if end is None else end)

    def search(self, text: str, begin: int = 0, end: int | None = None) -> Match[str] | None:
        found = self._real.search(text, begin, len(text) if end is None else end)
        self._from(text, begin, found.start() if found else len(text) if end is None else end, end)
        return found

    def finditer(self, text: str, begin: int = 0) -> Iterator[Match[str]]:
        while found := self.search(text, begin):
            yield found
            begin = max(found.end(), begin + (found.start() == found.end()))

    def sub(self, replaced: Callable[[Match[str]], str], text: str) -> str:
        for _ in self.finditer(text):
            pass
        return self._real.sub(replaced, text)

    def findall(self, text: str) -> list[Any]:
        for _ in self.finditer(text):
            pass
        return self._real.findall(text)

    def _from(self, text: str, first: int, last: int, end: int | None, whole: bool = False) -> None:
        """Try every place from the first to the last, where it succeeds if it does at all."""
        self._text, self._end = text, len(text) if end is None else min(end, len(text))
        for place in range(first, last + 1):
            for reached in self._run(self._nodes, 0, place):
                if not whole or reached == self._end:
                    assert place == last, f"{self.pattern} matches at {place}, and not at {last}"
                    break

    def _run(self, nodes: list[Node], index: int, place: int) -> Iterator[int]:
        """Where these nodes may end, the preferred first."""
        # A single character is there or not: there is nothing to come back to.
        while index < len(nodes) and nodes[index][0] in SINGLE:
            self._count.steps += 1
            if place >= self._end or not self._is(*nodes[index], self._text[place]):
                return
            index, place = index + 1, place + 1
        if index == len(nodes):
            yield place
            return
        for reached in self._one(*nodes[index], place):
            yield from self._run(nodes, index + 1, reached)

    def _first(self, nodes: Any, place: int) -> int | None:
        return next(self._run(nodes.data, 0, place), None)

    def _one(self, kind: Any, told: Any, place: int) -> Iterator[int]:
        self._count.steps += 1
        if kind is code.SUBPATTERN:
            for reached in self._run(told[3].data, 0, place):
                if told[0] is not None:
                    self._groups[told[0]] = (place, reached)
                yield reached
        elif kind is code.BRANCH:
            for nodes in told[1]:
                yield from self._run(nodes.data, 0, place)
        elif kind is code.MAX_REPEAT:
            yield from self._greedy(told, place)
        elif kind is code.POSSESSIVE_REPEAT:
            yield from self._possessive(told, place)
        elif kind is code.ATOMIC_GROUP:
            end = self._first(told, place)
            yield from () if end is None else (end,)
        else:
            yield from self._without_width(kind, told, place)

    def _without_width(self, kind: Any, told: Any, place: int) -> Iterator[int]:
        if kind in (code.ASSERT, code.ASSERT_NOT):
            direction, nodes = told
            begin = place if direction > 0 else place - nodes.getwidth()[0]
            if (begin >= 0 and self._first(nodes, begin) is not None) is (kind is code.ASSERT):
                yield place
        elif kind is code.GROUPREF:
            begin, end = self._groups[told]
            if self._text.startswith(self._text[begin:end], place):
                yield place + end - begin
        elif kind is code.AT and told is code.AT_END_STRING:
            if place == self._end:
                yield place
        elif kind is code.AT and told is code.AT_END:
            if self._text[place : self._end] in ("", "\n"):
                yield place
        else:
            raise NotImplementedError(f"{kind} {told} of {self.pattern}")

    def _greedy(self, told: tuple[int, int, Any], place: int) -> Iterator[int]:
        least, most, nodes = told
        if len(nodes.data) == 1 and nodes.data[0][0] in SINGLE:
            run = self._run_of(nodes.data[0], most, place)
            for count in range(run, least - 1, -1):
                self._count.steps += 1
                yield place + count
        else:
            yield from self._more(least, most, nodes.data, place, 0)

    def _more(self, least: int, most: int, nodes: list[Node], place: int, count: int) -> Iterator[int]:
        if count < most:
            for reached in self._run(nodes, 0, place):
                if reached > place or count < least:
                    yield from self._more(least, most, nodes, reached, count + 1)
        if count >= least:
            yield place

    def _possessive(self, told: tuple[int, int, Any], place: int) -> Iterator[int]:
        least, most, nodes = told
        if len(nodes.data) == 1 and nodes.data[0][0] in SINGLE:
            count = self._run_of(nodes.data[0], most, place)
            place += count
        else:
            count = 0
            while count < most and (reached := self._first(nodes, place)) is not None and reached > place:
                place, count = reached, count + 1
        if count >= least:
            yield place

    def _run_of(self, node: Node, most: int, place: int) -> int:
        count = 0
        while count < most and place + count < self._end and self._is(*node, self._text[place + count]):
            count += 1
        self._count.steps += count
        return count

    def _is(self, kind: Any, told: Any, character: str) -> bool:
        if kind is code.IN:
            known = self._among.get((id(told), character))
            if known is None:
                known = _among(told, character) or (self._folds and _among(told, character.swapcase()))
                self._among[id(told), character] = known
            return known
        if kind is code.ANY:
            return True
        same = ord(character) == told or (self._folds and ord(character.swapcase()[0]) == told)
        return bool(same) is (kind is code.LITERAL)


def _among(items: list[Node], character: str) -> bool:
    negated = items[0][0] is code.NEGATE
    return any(_item(*item, character) for item in items[negated:]) is not negated


def _item(kind: Any, told: Any, character: str) -> bool:
    if kind is code.LITERAL:
        return bool(ord(character) == told)
    if kind is code.RANGE:
        return bool(told[0] <= ord(character) <= told[1])
    return CATEGORIES[told](character)
