"""Renders messages for Telegram: a few HTML tags, escaped values, and a length that fits. Pure."""

import html
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Final

from aftercommit.errors import DeclarationError

LONGEST_MESSAGE: Final = 4096
CUT: Final = " […]"
# Characters shown of each value, reduced until the message fits.
_ALLOWANCES: Final = (3000, 1500, 700, 300, 100, 30)
_TAGS: Final = frozenset("a b strong i em u ins s strike del code pre blockquote tg-spoiler".split())
_PLACEHOLDER: Final = re.compile(r"\{([a-z_][a-z0-9_.]*)\}")
_BREAK: Final = re.compile(r"\r\n?|\u2028|\u2029")
# Line breaks, and joiners inside emoji and words: kept although they are not printable.
_SHOWN: Final = frozenset("\n\u200c\u200d")


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


Values = Mapping[str, str | Html | None]


def render(lines: Sequence[str], values: Values) -> str:
    """Fill in the values; lines with a missing value are left out."""
    text = ""
    for allowance in _ALLOWANCES:
        text = "\n".join(_filled(line, values, allowance) for line in lines if _has_all(line, values))
        if visible_length(text) <= LONGEST_MESSAGE:
            return text
    # Only a text of hundreds of lines gets here: a part of it is better than a message that Telegram refuses.
    return html.escape(_cut(html.unescape(re.sub(r"<[^>]*>", "", text)), LONGEST_MESSAGE // 2))


def escape(text: str, allowance: int = LONGEST_MESSAGE) -> str:
    """Escape a value: no markup, no unprintable characters, and cut to the allowed length."""
    printable = "".join(
        character if character in _SHOWN or character.isprintable() else " " for character in _BREAK.sub("\n", text)
    )
    clean = printable.encode("utf-8", "replace").decode()
    return html.escape(_cut(clean.strip(), allowance), quote=True)


def is_seen(text: str) -> bool:
    """Whether a text has any visible character."""
    return any(character.isprintable() and not character.isspace() for character in text)


def link(address: str, text: str) -> Html:
    """A link; without an address, bold text."""
    inner = escape(text, 300)
    return Html(f'<a href="{html.escape(address, quote=True)}">{inner}</a>' if address else f"<b>{inner}</b>")


def visible_length(text: str) -> int:
    """The length as Telegram counts it: without tags, in UTF-16 code units."""
    return _units(plain(text))


def plain(text: str) -> str:
    """The message without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", text))


def placeholders(line: str) -> set[str]:
    """The placeholders of a line."""
    return set(_PLACEHOLDER.findall(line))


def check_line(line: str, where: str) -> None:
    """Raise DeclarationError if Telegram would refuse the markup of this line."""
    checker = _Checker()
    checker.feed(line)
    checker.close()
    problem = checker.problem or (f"<{checker.open[-1]}> is not closed" if checker.open else None)
    if problem is None and re.search(r"[{}]", _PLACEHOLDER.sub("", line)):
        problem = "a brace outside a {value}: names have lower-case letters, digits, _ and ."
    if problem is not None:
        raise DeclarationError(f"{where}: {line!r:.100}: {problem}")


class _Checker(HTMLParser):
    """Checks that tags are known, and closed in the same line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problem: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            self.problem = f"Telegram does not know <{tag}>; it knows {', '.join(sorted(_TAGS))}"
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problem = f"</{tag}> has no matching start tag"

    def handle_data(self, data: str) -> None:
        if "<" in data:
            self.problem = "a bare <: write &lt;"


def _filled(line: str, values: Values, allowance: int) -> str:
    def value(match: re.Match[str]) -> str:
        found = values[match[1]]
        return found if isinstance(found, Html) else escape(found or "", allowance)

    return _PLACEHOLDER.sub(value, line)


def _has_all(line: str, values: Values) -> bool:
    return all(values.get(name) for name in placeholders(line))


def _cut(text: str, allowance: int) -> str:
    if _units(text) <= allowance:
        return text
    kept = text.encode("utf-16-le")[: 2 * allowance].decode("utf-16-le", "ignore")
    return kept.rstrip() + CUT


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "replace")) // 2
