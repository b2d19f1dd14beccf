"""What keeps redaction quick: alternatives that are told apart early, and a bound on what is judged. Pure."""

from collections.abc import Iterable, Mapping

# What may be looked at one by one in a text: so much in any, and one more for so many characters.
LOOKS = 1000
CHARACTERS_PER_LOOK = 32
# So many parts of a value may be texts and new names that no quick test lets pass, and one more for so many characters.
PARTS = 2000
# Of a name so much is looked at.
LONGEST_NAME = 64


class TooDense(Exception):
    """There is so much in a text that may be a secret that it would take too long to look at each."""


class LookBudget:
    """How much of a text may still be looked at: every rule spends one for each thing that may be what it looks for.

    Patterns pass over a text in no time; what is judged one by one is what costs. No text that people or machines
    write to be read comes near the bound. Of a value the parts are counted as well: each has its own beginning and end.
    """

    __slots__ = ("_parts", "_rest", "left")

    def __init__(self, length: int) -> None:
        """For a text of this length."""
        more, self._rest = divmod(length, CHARACTERS_PER_LOOK)
        self.left = LOOKS + more
        self._parts = PARTS

    def add(self, length: int) -> bool:
        """For one more text, of this length, in the same value. Behind one that was too dense there is none: False."""
        more, self._rest = divmod(self._rest + length, CHARACTERS_PER_LOOK)
        self._parts += more - 1
        if self.left < 0 or self._parts < 0:
            return False
        self.left += more
        return True

    def spend(self) -> None:
        """One more."""
        self.left -= 1
        if self.left < 0:
            raise TooDense


def beginning_of_word(text: str, place: int) -> int:
    """Where the name or number that ends here begins, as far as one goes back."""
    furthest = max(0, place - LONGEST_NAME)
    while place > furthest and (text[place - 1].isalnum() or text[place - 1] in "_.-"):
        place -= 1
    return place


def by_first_letter(patterns: Iterable[str]) -> str:
    """Alternatives as one pattern that tells them apart by their first character: of many, few have to be tried."""
    branches: dict[str, list[str]] = {}
    for pattern in patterns:
        branches.setdefault(pattern[0], []).append(pattern[1:])
    return "|".join(f"{first}(?:{'|'.join(rests)})" for first, rests in branches.items())


def either(branches: Mapping[str, str]) -> str:
    """One of these patterns, each tried only where its beginning is there."""
    return "|".join(f"(?={head})(?:{pattern})" for head, pattern in branches.items())
