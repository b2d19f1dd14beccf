"""The normalised copy of a text that redaction searches, so that a disguise hides nothing. Pure.

Digits, letters and spaces of other scripts and widths become plain ones. Invisible characters are left out. Letters
that look Latin become Latin in words that mix alphabets. `[.]`, `(at)` and the like become the sign they mean.
"""

import re
import string
import unicodedata
from functools import cache, partial
from itertools import compress
from typing import Final

from aftercommit.redaction.patterns import LookBudget

# Invisible, or marks above and below a letter: they may stand anywhere within a secret.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u00ad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e01ef]"
)
_LAST_FOLDED = 0x1FFFF
LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
# Cyrillic and Greek letters, each followed by the Latin letter that it looks like.
_LIKE = "аaеeоoрpсcуyхxіiѕsјjԁdһhԛqԝwкkмmтtАAВBЕEКKМMНHОOРPСCТTХXІIЅSЈJУYαaοoρpνvτtκkιiυuΑAΒBΕEΗHΙIΚKΜMΝNΟOΡPΤTΧXΥYΖZ"
_LATIN: Final = dict(zip(map(ord, _LIKE[::2]), _LIKE[1::2], strict=True))
_MIXED = re.compile(f"[A-Za-z][{_LIKE[::2]}]|[{_LIKE[::2]}][A-Za-z]")
_WORD = re.compile(r"\w++")
# Signs in brackets, which people write so that an address is not made a link.
_DEFANGED = re.compile(r"[\[({] ?(\.|[Dd]ot|DOT|@|[Aa]t|AT|:) ?[\])}]")
_SIGNS: Final = {".": ".", "dot": ".", "@": "@", "at": "@", ":": ":"}


def folded(text: str, looks: LookBudget) -> tuple[str, list[int] | None]:
    """The normalised text, and the places of its characters in the original if some were left out."""
    places = None
    plain = text.isascii()
    if not (plain and text.isprintable()):
        if _UNSEEN.search(text):
            seen = list(map(frozenset(filter(_UNSEEN.match, set(text))).isdisjoint, text))
            places = list(compress(range(len(text)), seen))
            text = "".join(compress(text, seen))
        if not plain and not _plain_characters().keys().isdisjoint(map(ord, set(text))):
            text = text.translate(_plain_characters())
        if not plain and _MIXED.search(text):
            text = _WORD.sub(partial(_as_latin, looks), text)
    if ("]" in text or ")" in text or "}" in text) and _DEFANGED.search(text):
        return _with_signs(text, places, looks)
    return text, places


def _as_latin(looks: LookBudget, word: re.Match[str]) -> str:
    if not _MIXED.search(word[0]):
        return word[0]
    looks.spend()
    return word[0].translate(_LATIN)


def _with_signs(text: str, places: list[int] | None, looks: LookBudget) -> tuple[str, list[int]]:
    """Replace `(at)` and the like by their sign, with one space on either side except around dots and colons."""
    parts: list[str] = []
    kept: list[int] = []
    done = 0
    for match in _DEFANGED.finditer(text):
        looks.spend()
        begin, end, sign = match.start(), match.end(), _SIGNS[match[1].lower()]
        if match[1] not in ".:":
            begin -= text[max(done, begin - 1) : begin] == " "
            end += text[end : end + 1] == " "
        parts += (text[done:begin], sign)
        kept += range(done, begin)
        kept.append(begin)
        done = end
    parts.append(text[done:])
    kept += range(done, len(text))
    return "".join(parts), kept if places is None else [places[place] for place in kept]


@cache
def _plain_characters() -> dict[int, str]:
    """Digits, letters, spaces and line breaks of other widths, styles and scripts, with their plain form."""
    found: dict[int, str] = {}
    for code in range(0x80, _LAST_FOLDED):
        character = chr(code)
        category = unicodedata.category(character)
        plain = unicodedata.normalize("NFKC", character)
        if category == "Nd":
            found[code] = str(unicodedata.decimal(character))
        elif category == "Zs":
            found[code] = " "
        elif category == "Pd" or code == 0x2212:
            found[code] = "-"
        elif category in ("Zl", "Zp") or code == 0x85:
            found[code] = "\n"
        elif len(plain) == 1 and plain.isascii():
            found[code] = plain
        else:
            letters = [each for each in unicodedata.normalize("NFKD", character) if not unicodedata.combining(each)]
            if len(letters) == 1 and letters[0].isascii():
                found[code] = letters[0]
    return found
