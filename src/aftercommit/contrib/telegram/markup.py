"""Text as Telegram shows it: HTML of a few tags, values that cannot break out of it, a length that fits. Pure."""

import html
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Final

from aftercommit.errors import DeclarationError

LONGEST_MESSAGE: Final = 4096
CUT: Final = " […]"
# How much of a value is shown: all of it, or less and less until the message fits.
_ALLOWANCES: Final = (3000, 1500, 700, 300, 100, 30)
_TAGS: Final = frozenset("a b strong i em u ins s strike del code pre blockquote tg-spoiler".split())
_PLACEHOLDER: Final = re.compile(r"\{([a-z_][a-z0-9_.]*)\}")
_BREAK: Final = re.compile(r"\r\n?|\u2028|\u2029")
# Line breaks, and what joins the parts of an emoji or keeps letters of a word apart: seen by their effect alone.
_SHOWN: Final = frozenset("\n\u200c\u200d")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Values = Mapping[str, str | Html | None]


def render(lines: Sequence[str], values: Values) -> str:
    """The lines with their values; a line that needs a value which is not there is left out."""
    text = ""
    for allowance in _ALLOWANCES:
        text = "\n".join(_filled(line, values, allowance) for line in lines if _has_all(line, values))
        if visible_length(text) <= LONGEST_MESSAGE:
            return text
    # Only a table of hundreds of lines comes here: rather a part of it than a message that is never taken.
    return html.escape(_cut(html.unescape(re.sub(r"<[^>]*>", "", text)), LONGEST_MESSAGE // 2))


def escape(text: str, allowance: int = LONGEST_MESSAGE) -> str:
    """Foreign text, as text: without markup, without characters that are not shown, and not longer than allowed."""
    printable = "".join(
        character if character in _SHOWN or character.isprintable() else " " for character in _BREAK.sub("\n", text)
    )
    clean = printable.encode("utf-8", "replace").decode()
    return html.escape(_cut(clean.strip(), allowance), quote=True)


def is_seen(text: str) -> bool:
    """Whether anything of a text is to be seen."""
    return any(character.isprintable() and not character.isspace() for character in text)


def link(address: str, text: str) -> Html:
    """Text that leads somewhere; it is bold where there is no address."""
    inner = escape(text, 300)
    return Html(f'<a href="{html.escape(address, quote=True)}">{inner}</a>' if address else f"<b>{inner}</b>")


def visible_length(text: str) -> int:
    """How long a message is to Telegram: without its tags, in units of UTF-16."""
    return _units(plain(text))


def plain(text: str) -> str:
    """What people see of a message, without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", text))


def placeholders(line: str) -> set[str]:
    """The values that a line needs."""
    return set(_PLACEHOLDER.findall(line))


def check_line(line: str, where: str) -> None:
    """DeclarationError, if Telegram would not understand the markup of this line."""
    checker = _Checker()
    checker.feed(line)
    checker.close()
    problem = checker.problem or (f"<{checker.open[-1]}> is not closed" if checker.open else None)
    if problem is None and re.search(r"[{}]", _PLACEHOLDER.sub("", line)):
        problem = "a brace that belongs to no {value}: names are of small letters, digits, _ and ."
    if problem is not None:
        raise DeclarationError(f"{where}: {line!r:.100}: {problem}")


class _Checker(HTMLParser):
    """Whether tags are known, and closed in the line in which they are opened."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problem: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            self.problem = f"<{tag}> is no tag that Telegram knows: there are {', '.join(sorted(_TAGS))}"
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problem = f"</{tag}> closes what is not open"

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
