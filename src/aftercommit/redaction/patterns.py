"""What keeps redaction quick: alternatives that are told apart early, and a limit on single checks. Pure."""

from collections.abc import Iterable, Mapping

# How many matches of one text may be checked one by one: so many, and one more per so many characters.
LOOKS = 1000
CHARACTERS_PER_LOOK = 32
# How many texts and new names of one value may need the rules, and one more per so many characters.
PARTS = 2000
# So many characters of a name are looked at.
LONGEST_NAME = 64


class TooDense(Exception):
    """The text has so many possible secrets that checking each would take too long."""


class LookBudget:
    """How many matches may still be checked: a rule spends one for each.

    Matching a pattern is cheap; checking each match is what costs. No text that is written to be read comes near the
    limit. The parts of a value are counted as well.
    """

    __slots__ = ("_parts", "_rest", "left")

    def __init__(self, length: int) -> None:
        """For a text of this length."""
        more, self._rest = divmod(length, CHARACTERS_PER_LOOK)
        self.left = LOOKS + more
        self._parts = PARTS

    def add(self, length: int) -> bool:
        """Add one more text of the same value, of this length. False behind one that was too dense."""
        more, self._rest = divmod(self._rest + length, CHARACTERS_PER_LOOK)
        self._parts += more - 1
        if self.left < 0 or self._parts < 0:
            return False
        self.left += more
        return True

    def spend(self, matches: int = 1) -> None:
        """So many more matches are checked."""
        self.left -= matches
        if self.left < 0:
            raise TooDense


def beginning_of_word(text: str, place: int) -> int:
    """Where the name or number that ends here begins, `LONGEST_NAME` characters back at most."""
    furthest = max(0, place - LONGEST_NAME)
    while place > furthest and (text[place - 1].isalnum() or text[place - 1] in "_.-"):
        place -= 1
    return place


def by_first_letter(patterns: Iterable[str]) -> str:
    """Alternatives as one pattern that branches on the first character, so that few have to be tried."""
    branches: dict[str, list[str]] = {}
    for pattern in patterns:
        branches.setdefault(pattern[0], []).append(pattern[1:])
    return "|".join(f"{first}(?:{'|'.join(rests)})" for first, rests in branches.items())


def either(branches: Mapping[str, str]) -> str:
    """One of these patterns, each tried only where its beginning matches."""
    return "|".join(f"(?={head})(?:{pattern})" for head, pattern in branches.items())
