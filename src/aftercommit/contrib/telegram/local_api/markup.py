"""Parses HTML as Telegram does, into text and entities, with Telegram's own error messages. Pure.

Unknown and unclosed tags are refused. An `&` that starts no character reference known to Telegram stands for itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MOST_ENTITIES: Final = 100

# Entity type by tag; `span`, `pre` and `code` also depend on their attributes.
_TYPES: Final = {
    "a": "text_link",
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "u": "underline",
    "ins": "underline",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "tg-spoiler": "spoiler",
    "span": "spoiler",
    "tg-emoji": "custom_emoji",
    "pre": "pre",
    "code": "code",
    "blockquote": "blockquote",
}
_SPACE: Final = " \t\r\n\0\v"
_REFERENCE: Final = re.compile(
    r"&(?:#x(?P<hex>[0-9a-fA-F]{1,6})|#(?P<decimal>[0-9]{1,7})|(?P<name>lt|gt|amp|quot)(?![a-zA-Z]));?"
)
_NAMED: Final = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}
_NAME_TOKEN: Final = re.compile(r"[A-Za-z0-9.-]*")
_LINK: Final = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+-]*):(?://)?)?(?P<rest>\S+)")
_HOST: Final = re.compile(r"(?:[^:@]*[^:@.]\.[^:@.]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")


class CannotParse(ValueError):
    """Telegram refuses this HTML; the message is Telegram's."""


class Entity(NamedTuple):
    """A formatted part of a text. Offset and length count UTF-16 code units, as the Bot API does."""

    type: str
    offset: int
    length: int
    argument: str | None = None

    def told(self) -> dict[str, Any]:
        """The entity in the Bot API's format."""
        said: dict[str, Any] = {"offset": self.offset, "length": self.length, "type": self.type}
        named = {"text_link": "url", "pre": "language", "custom_emoji": "custom_emoji_id"}.get(self.type)
        if named is not None and self.argument:
            said[named] = self.argument
        return said


class Formatted(NamedTuple):
    """A plain text with its entities."""

    text: str
    entities: tuple[Entity, ...]


@dataclass
class _Open:
    """A tag that is not closed yet."""

    tag: str
    argument: str
    begins: int
    piece: int


@dataclass
class _Reader:
    """The state of the parser."""

    source: str
    at: int = 0
    text: list[str] = field(default_factory=list)
    length: int = 0
    open: list[_Open] = field(default_factory=list)
    entities: list[Entity] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.text.append(text)
        self.length += utf16_length(text)

    def offset(self, at: int) -> int:
        """The byte offset of a character, for error messages."""
        return len(self.source[:at].encode("utf-8", "surrogatepass"))

    def peek(self) -> str:
        return self.source[self.at] if self.at < len(self.source) else ""

    def skip_space(self) -> None:
        while self.at < len(self.source) and self.source[self.at] in _SPACE:
            self.at += 1

    def until(self, ends: str) -> str:
        begin = self.at
        while self.at < len(self.source) and self.source[self.at] not in ends:
            self.at += 1
        return self.source[begin : self.at]


def parse_html(source: str) -> Formatted:
    """The text and its entities; raises CannotParse."""
    reader = _Reader(source)
    while reader.at < len(source):
        character = source[reader.at]
        if character == "<":
            (_end_tag if source.startswith("</", reader.at) else _start_tag)(reader)
        elif character == "&":
            reader.add(_reference(reader))
        else:
            reader.add(reader.until("<&"))
    if reader.open:
        raise CannotParse(f"Can't find end tag corresponding to start tag {reader.open[-1].tag}")
    return Formatted(_whole("".join(reader.text)), tuple(reader.entities))


def _whole(text: str) -> str:
    """Join surrogate pairs that were written as two references; a single half is refused."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise CannotParse(
            "Text contains invalid Unicode characters after decoding HTML entities, check for unmatched surrogate code "
            "units"
        ) from None


def _reference(reader: _Reader) -> str:
    """The character of a reference, or else the ampersand."""
    found = _REFERENCE.match(reader.source, reader.at)
    if found is not None:
        code = int(found["hex"], 16) if found["hex"] else int(found["decimal"] or 0)
        character = _NAMED[found["name"]] if found["name"] else (chr(code) if 0 < code < 0x10FFFF else "")
        if character:
            reader.at = found.end()
            return character
    reader.at += 1
    return "&"


def _start_tag(reader: _Reader) -> None:
    begins = reader.at
    reader.at += 1
    tag = reader.until(_SPACE + ">").lower()
    if not reader.peek():
        raise CannotParse(f"Unclosed start tag at byte offset {reader.offset(begins)}")
    if tag not in _TYPES:
        raise CannotParse(f'Unsupported start tag "{tag}" at byte offset {reader.offset(begins)}')
    argument = ""
    reader.skip_space()
    while reader.peek() != ">":
        name, value = _attribute(reader, tag, begins)
        argument = _argument(tag, name, value) or argument
        reader.skip_space()
    reader.at += 1
    if tag == "span" and argument != "spoiler":
        raise CannotParse(f'Tag "span" must have class "tg-spoiler" at byte offset {reader.offset(begins)}')
    reader.open.append(_Open(tag, argument, reader.length, len(reader.text)))


def _attribute(reader: _Reader, tag: str, begins: int) -> tuple[str, str]:
    name = reader.until(_SPACE + "=>")
    if tag == "blockquote" and name == "expandable" and reader.peek() != "=":
        return name, ""
    if not name and reader.peek():
        raise CannotParse(f'Empty attribute name in the tag "{tag}" at byte offset {reader.offset(begins)}')
    reader.skip_space()
    if reader.peek() not in ("", "="):
        raise CannotParse(
            f'Expected equal sign in declaration of an attribute of the tag "{tag}" at byte offset '
            f"{reader.offset(begins)}"
        )
    reader.at += 1
    reader.skip_space()
    value = _quoted(reader) if reader.peek() in ("'", '"') else _token(reader)
    if not reader.peek():
        raise CannotParse(f'Unclosed start tag "{tag}" at byte offset {reader.offset(begins)}')
    return name, value


def _quoted(reader: _Reader) -> str:
    end = reader.peek()
    reader.at += 1
    value: list[str] = []
    while reader.peek() not in ("", end):
        value.append(_reference(reader) if reader.peek() == "&" else reader.until("&" + end))
    reader.at += 1
    return _whole("".join(value))


def _token(reader: _Reader) -> str:
    begins = reader.at
    found = _NAME_TOKEN.match(reader.source, reader.at)
    reader.at = found.end() if found is not None else reader.at
    if reader.peek() and reader.peek() not in _SPACE + ">":
        raise CannotParse(f"Unexpected end of name token at byte offset {reader.offset(begins)}")
    return reader.source[begins : reader.at].lower()


def _argument(tag: str, name: str, value: str) -> str:
    match tag, name:
        case ("a", "href") | ("tg-emoji", "emoji-id"):
            return value
        case ("code", "class") if value.startswith("language-"):
            return value.removeprefix("language-")
        case ("span", "class") if value.startswith("tg-"):
            return value.removeprefix("tg-")
    return ""


def _end_tag(reader: _Reader) -> None:
    begins = reader.at
    if not reader.open:
        raise CannotParse(f"Unexpected end tag at byte offset {reader.offset(begins)}")
    reader.at += 2
    tag = reader.until(_SPACE + ">").lower()
    reader.skip_space()
    if reader.peek() != ">":
        raise CannotParse(f"Unclosed end tag at byte offset {reader.offset(begins)}")
    reader.at += 1
    opened = reader.open.pop()
    if tag and tag != opened.tag:
        raise CannotParse(
            f'Unmatched end tag at byte offset {reader.offset(begins)}, expected "</{opened.tag}>", found "</{tag}>"'
        )
    if reader.length > opened.begins:
        _close(reader, opened)


def _close(reader: _Reader, opened: _Open) -> None:
    """Add the entity of a pair of tags, if there is one."""
    made = Entity(_TYPES[opened.tag], opened.begins, reader.length - opened.begins, opened.argument or None)
    last = reader.entities[-1] if reader.entities else None
    same_place = last is not None and last[1:3] == made[1:3]
    if opened.tag == "pre" and last is not None and same_place and last.type == "code" and last.argument:
        reader.entities[-1] = last._replace(type="pre")
    elif opened.tag == "code" and last is not None and same_place and last.type == "pre" and made.argument:
        reader.entities[-1] = last._replace(argument=made.argument)
    elif opened.tag == "a":
        url = checked_link(opened.argument or "".join(reader.text[opened.piece :]))
        if url is not None:
            reader.entities.append(made._replace(argument=url))
    elif opened.tag == "tg-emoji" and not (opened.argument.isdecimal() and int(opened.argument)):
        raise CannotParse("Invalid custom emoji identifier specified")
    else:
        reader.entities.append(made)


def checked_link(url: str) -> str | None:
    """The address as Telegram stores it; None if Telegram makes no link, as for `http://localhost`."""
    found = _LINK.fullmatch(url.strip())
    if found is None:
        return None
    scheme = (found["scheme"] or "http").lower()
    if scheme in ("tg", "ton", "mailto", "tel"):
        return url.strip()
    authority = re.split("[/?#]", found["rest"], maxsplit=1)[0]
    if scheme not in ("http", "https") or _HOST.fullmatch(authority.rpartition("@")[2]) is None:
        return None
    return f"{scheme}://{found['rest']}" + ("/" if authority == found["rest"] else "")


def formatted(text: str, entities: Sequence[Entity]) -> Formatted:
    """Strip the text, sort the entities, and limit their number."""
    stripped = text.strip()
    # Each white-space character is one code unit.
    leading, length = len(text) - len(text.lstrip()), utf16_length(stripped)
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda each: (each.offset, -each.length)):
        begin = max(entity.offset - leading, 0)
        end = min(entity.offset + entity.length - leading, length)
        if end > begin:
            argument = None if entity.type == "code" else entity.argument
            kept.append(Entity(entity.type, begin, end - begin, argument))
    return Formatted(stripped, tuple(kept[:MOST_ENTITIES]))


def utf16_length(text: str) -> int:
    """The length of a text as Telegram counts it."""
    return len(text) if text.isascii() else len(text) + sum(character > "\uffff" for character in text)
