"""Rules for values of names like `password`: in `key=value`, JSON, YAML, headers, forms, XML and flags. Pure.

`secret_names` says what a name means; this module finds where its value begins and ends. A value without an end goes
on to the end of the text. A value that was found is not searched again.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from aftercommit.redaction.numbers import Span
from aftercommit.redaction.patterns import LONGEST_NAME, LookBudget, beginning_of_word, by_first_letter
from aftercommit.redaction.secret_names import (
    HINTS,
    JAR,
    LIKELY,
    MAYBE,
    PHRASES,
    SECRET,
    holds_several,
    kind_in_query,
    kind_of,
    looks_opaque,
    looks_personal,
    looks_secret,
)

# So many characters of a value behind a name like `phone` are looked at to see whether it is a number.
LONGEST_PERSONAL = 100
# The telling part of a name, the rest of it, what may close it (quotes of JSON, brackets of forms), and what separates
# it from its value.
_CLOSING = r"(?:%22|%5[bd]|[\"'`\\\[\])]){0,4}"
_NAMED = re.compile(
    rf"((?:{by_first_letter((*PHRASES, *HINTS))})[\w.-]{{0,{LONGEST_NAME}}}+)"
    rf"{_CLOSING}[ \t]{{0,3}}(?:\r?\n[ \t]{{0,3}})?"
    r"(?:[!~]?[:=]{1,3}>?|->|(?<=-)>|%3[ad])[ \t]{0,3}((?:\r?\n[ \t]{0,16}){0,2}(?:(?<=[\n ])-[ \t])?)"
)
_FLAG = re.compile(r"--([a-z][\w-]{0,64}+)(?:[\"'],[ \t]?|[ \t]{1,2})(?=[^\s-])")
# `name: …, value: …` in JSON and YAML; then a pair in brackets.
_QUOTE = r"(?:\\{0,3}[\"'])?"
_PAIR = re.compile(
    rf"(?:name|key|field|header|param|parameter|property|attribute|variable|setting)"
    rf"{_QUOTE}[ \t]{{0,3}}[:=][ \t]{{0,3}}{_QUOTE}([\w.\[\]-]{{2,64}}+){_QUOTE}[ \t]{{0,3}},?\s{{0,24}}"
    rf"{_QUOTE}(?:(?:new|old)_?)?val(?:ue)?{_QUOTE}[ \t]{{0,3}}[:=][ \t]{{0,3}}"
)
_IN_BRACKETS = re.compile(r"(?:\(|\[(?<=[\[,]\[)|\[(?<=, \[))b?[\"']([\w.-]{5,64}+)[\"'],[ \t]?(?=b?[\"'])")
# Elements of XML and HTML, their attributes, and elements whose attributes name a setting.
_ELEMENT = re.compile(r"<([a-z_][\w:.-]{0,64}+)((?:\s[^<>]{0,1000}+)?)>")
_ATTRIBUTE = re.compile(r"(?<![\w:.-])([\w:.-]{1,64}+)[ \t]{0,3}=[ \t]{0,3}(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'<>]++))")
_SETTINGS = frozenset("property entry item string add setting param variable env field".split())
# If the next line begins like this, the name before it has no value.
_ANOTHER = re.compile(r"[\w.\"'-]{1,64}+[ \t]{0,3}[:=]")
_BLOCK = re.compile(r"[|>][-+\d]{0,2}+[ \t]*+\r?\n[ \t]++([^\n]++(?:\n[\r\n]*+[ \t]++[^\n]++)*)")
_OPENING = re.compile(r"(?:[bBrRuU]{1,2}(?=[\"']))?(\\{0,7}[\"'`]|%22)")
_QUOTE_OR_ESCAPE = {quote: re.compile(rf"{quote}|\\.", re.DOTALL) for quote in ('"', "'", "`")}
_BRACKET = re.compile(r"[\[\]{}]")
_BARE = re.compile(r"[^\s&;\"'`<>]++")
_KEYISH = re.compile(r"\\{0,3}[\"'`]?([A-Za-z0-9+/_.~%-]{6,300}+={0,2})")
_LINE = re.compile(r"[^\r\n]++")
_TO_LINE_END = re.compile(r"[^\r\n\"'`<>]++")
_CREDENTIALS = re.compile(
    r"(digest|aws4-hmac-sha256|oauth|hawk|signature|ntlm)[ \t]|[a-z][\w-]{0,20}+[ \t]{1,3}", re.IGNORECASE
)
_NUMERIC = re.compile(r"[+(]{0,2}\d(?:[ ().\-/]{0,2}\d){4,20}")
_kind_of = lru_cache(maxsize=8192)(kind_of)
_kind_in_query = lru_cache(maxsize=1024)(kind_in_query)
_NOTHING = frozenset(
    "true false none null nil undefined yes no on off 0 1 ok enabled disabled required missing invalid expired".split()
)
_STATUS = re.compile(r"\d{1,3}")


def named_values(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """Values of names like `password`."""
    place = 0
    while match := _NAMED.search(lowered, place):
        looks.spend()
        place = match.end()
        first = beginning_of_word(lowered, match.start())
        name = text[first : match.end(1)]
        in_query = first > 0 and lowered[first - 1] in "?&"
        kind = _kind_in_query(name) if in_query else _kind_of(name)
        if kind is None or (match[2] and _ANOTHER.match(text, place)):
            continue
        span = _value(text, place, kind, name)
        if span is not None and not (in_query and _STATUS.fullmatch(text, *span[:2])):
            yield span
            place = span[1]
    if "--" in text:
        yield from _flags(text, lowered, looks)
    if "val" in lowered:
        yield from _matched(_PAIR, text, lowered, looks)
    if "'," in text or '",' in text:
        yield from _matched(_IN_BRACKETS, text, lowered, looks)
    if "<" in text and ">" in text:
        yield from _elements(text, lowered, looks)


def _value(text: str, place: int, kind: str, name: str | None) -> Span | None:
    """The value of this kind that begins here, if there is one. Without a name it is the content of an element."""
    if kind == JAR:
        if not holds_several(text[place : place + LONGEST_PERSONAL]):
            return None
        kind = SECRET
    if kind not in (SECRET, MAYBE, LIKELY) and not looks_personal(text[place : place + LONGEST_PERSONAL]):
        # Before the search for its end, which may be far away.
        return None
    if kind in (MAYBE, LIKELY):
        begin, end = _key_at(text, place, kind)
    elif name is None:
        begin, end = place, text.find("</", place)
        end = len(text) if end < 0 else end
    else:
        begin, end = _value_of(text, place, kind, name.lower())
    worth = begin < end and _is_worth_it(kind, text[begin : min(end, begin + LONGEST_PERSONAL)])
    return (begin, end, kind) if worth else None


def _is_worth_it(kind: str, value: str) -> bool:
    if kind in (SECRET, MAYBE, LIKELY):
        return value.lower() not in _NOTHING
    return looks_personal(value)


def _flags(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    place = 0
    while match := _FLAG.search(lowered, place):
        looks.spend()
        place = match.end()
        if _kind_of(match[1]) == SECRET:
            begin, place = _value_of(text, place, SECRET, "")
            yield begin, place, SECRET


def _matched(pattern: re.Pattern[str], text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """Names that the pattern finds, with the values behind them."""
    place = 0
    while match := pattern.search(lowered, place):
        looks.spend()
        place, name = match.end(), text[match.start(1) : match.end(1)]
        kind = _kind_of(name)
        if kind is not None and (span := _value(text, place, kind, name)):
            yield span
            place = span[1]


def _elements(text: str, lowered: str, looks: LookBudget) -> Iterator[Span]:
    """The content of `<password>`, and the value of `<input name="password">`."""
    place = 0
    while match := _ELEMENT.search(lowered, place):
        place = match.end()
        kind, settled = _kind_of(match[1].rpartition(":")[2]), match[1] in _SETTINGS
        if match[2]:
            looks.spend()
            named, value = _attributes(text[match.start(2) : match.end(2)])
            if value is not None and named in (SECRET, JAR):
                yield match.start(2) + value[0], match.start(2) + value[1], SECRET
            kind = kind or (named if settled else None)
        if kind is None or match[2].endswith("/"):
            continue
        looks.spend()
        if span := _value(text, place, kind, None):
            yield span
            place = span[1]


def _attributes(written: str) -> tuple[str | None, tuple[int, int] | None]:
    """What the attributes of an element say about its value, and where that is."""
    kind, value = None, None
    for match in _ATTRIBUTE.finditer(written):
        name, place = match[1].lower(), match.lastindex or 0
        if name == "value":
            value = match.span(place)
        elif name in ("name", "key", "id", "type"):
            kind = kind or _kind_of(match[place])
    return kind, value


def _key_at(text: str, place: int, kind: str) -> tuple[int, int]:
    """Where a value lies that looks like a key; an empty span if it does not."""
    found, looks_so = _KEYISH.match(text, place), looks_secret if kind == MAYBE else looks_opaque
    return found.span(1) if found is not None and looks_so(found[1]) else (place, place)


def _value_of(text: str, place: int, kind: str, name: str) -> tuple[int, int]:
    """Where the value begins and ends."""
    opening = _OPENING.match(text, place)
    if opening is not None:
        return opening.end(), _closed(text, opening.end(), opening[1])
    first = text[place : place + 1]
    if first in ("[", "{"):
        return place, _balanced(text, place)
    if first in ("|", ">") and (block := _BLOCK.match(text, place)):
        return block.span(1)
    if first == "<" and (end := text.find(">", place, place + LONGEST_PERSONAL)) > 0:
        return place + 1, end
    return place, _bare_end(text, place, kind, name)


def _closed(text: str, begin: int, opening: str) -> int:
    plain = _QUOTE_OR_ESCAPE.get(opening)
    if plain is not None:
        return next((found.start() for found in plain.finditer(text, begin) if found[0] == opening), len(text))
    # A quote of an inner string has more backslashes than the one that closes the outer string.
    end = text.find(opening, begin)
    while end > 0 and text[end - 1] == "\\":
        end = text.find(opening, end + 1)
    return len(text) if end < 0 else end


def _balanced(text: str, place: int) -> int:
    depth = 0
    for bracket in _BRACKET.finditer(text, place):
        depth += 1 if bracket[0] in "[{" else -1
        if depth == 0:
            return bracket.end()
    return len(text)


def _bare_end(text: str, place: int, kind: str, name: str) -> int:
    if kind == SECRET and name.endswith(("cookie", "cookies")):
        return _end_of(_TO_LINE_END, text, place)
    if kind == SECRET and name.endswith("authorization"):
        scheme = _CREDENTIALS.match(text, place)
        if scheme is not None and scheme[1]:
            # Parameters, with quotes of their own.
            return _end_of(_LINE, text, place)
        place = scheme.end() if scheme is not None else place
    if kind != SECRET:
        number = _NUMERIC.match(text, place)
        if number is not None:
            return number.end()
    end = _end_of(_BARE, text, place)
    # Punctuation at the end belongs to the sentence or list around the value.
    while end > place and text[end - 1] in ",.)]}\\":
        end -= 1
    return end


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return found.end() if found is not None else place
