"""How a feed looks over HTTP: addresses to ask, and what the answers say. Pure; when to ask is decided elsewhere."""

import email.utils
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from aftercommit.client.read_position import number_in
from aftercommit.client.sse_decoder import SseMessage
from aftercommit.errors import DeclarationError, FeedRefused

_SCHEMES: Final = ("http", "https")
_RANGE: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
# Of what is not understood so much is kept: whoever takes secrets out before it is shown has to find them whole.
_MOST_KEPT: Final = 16 << 10
_QUOTED: Final = 80
# All that a note in place of an event may have. An item with anything else is an event, whatever it calls `withheld`.
_NOTE: Final = {"event_id", "ts", "seq", "position", "withheld"}
# Before what is yet to come: asks for the newest page, wherever a feed begins.
END: Final = "end"


class Unreadable(ValueError):
    """An answer or event is not what the protocol says it is. Its text has the beginning of what it is (`quoted`)."""

    def __init__(self, said: str, quoted: str = "") -> None:
        """`said` is what is wrong with it."""
        super().__init__(f"{said}: {quoted[:_QUOTED]!r}" if quoted else said)
        self.said = said
        self.quoted = quoted


class FeedEvent(msgspec.Struct, frozen=True):
    """One event of a feed. `cursor` is the place after it; `number` its number in the strand, as the cursor has it.

    Where the server could not show it, `withheld` says why, and `data` has nothing of it: then it was not received.
    """

    id: str
    data: Mapping[str, Any]
    cursor: str | None = None
    number: int | None = None
    withheld: str | None = None


class Reset(msgspec.Struct, frozen=True):
    """The server replaced our cursor: why, by which (None: begin without one), and in words."""

    reason: str
    restart: str | None
    message: str


class FetchedPage(msgspec.Struct, frozen=True):
    """What a poll brought. `next` is the cursor to go on with; None means: keep your own.

    One that was read back has no next; `previous` is the cursor to go further back with, None at the beginning. The
    newest page has one as well where the server did not look at all that there is. `never_given` are ranges of numbers
    before its events that belong to no event.
    """

    events: tuple[FeedEvent, ...]
    next: str | None
    more: bool
    previous: str | None = None
    never_given: tuple[tuple[int, int], ...] = ()


class Wire(msgspec.Struct, frozen=True):
    """The names and the form that a feed declares: its parameters, whether pages are objects or bare arrays, and the
    cursor that stands before everything."""

    cursor: str = "afterCursor"
    limit: str = "limit"
    body: Literal["paged", "array"] = "paged"
    beginning: str | None = "1970-01-01T00:00:00.000Z#000"
    before: str = "beforeCursor"
    from_time: str = "fromTime"

    def page(self, body: bytes, headers: Mapping[str, str], after: str | None) -> FetchedPage:
        """The page in a body; Unreadable when it is none."""
        decoded = _json(body)
        if self.body == "array":
            return _array(decoded, headers, after)
        return _paged(decoded, headers, after)

    def page_back(self, body: bytes, headers: Mapping[str, str]) -> FetchedPage:
        """The page in a body that was asked for by what comes after it."""
        page = self.page(body, headers, None)
        return msgspec.structs.replace(page, next=None, more=False)


LOGS: Final = Wire()
"""How feeds speak unless they declare otherwise."""
TASKS: Final = Wire(cursor="after_id", body="array", beginning="0", before="before_id", from_time="from_time")
"""How feeds speak that answer with a bare array and take `after_id`."""


class FeedAddress:
    """Where a feed is, and what is asked of it."""

    def __init__(
        self,
        url: str,
        wire: Wire = LOGS,
        *,
        stream: str | None = None,
        limit: int | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> None:
        """`stream` is the address of the stream where it is not `/stream` behind `url`."""
        _checked(url)
        self._url = url
        self._wire = wire
        self._stream = _checked(stream) if stream is not None else _below(url, "stream")
        self._limit = [] if limit is None else [(wire.limit, str(limit))]
        self._filters = list((filters or {}).items())

    def poll(self, cursor: str | None) -> str:
        """The address of the page after the cursor."""
        place = [] if cursor is None else [(self._wire.cursor, cursor)]
        return _with_query(self._url, place + self._limit + self._filters)

    def page_before(self, cursor: str) -> str:
        """The address of the page before the cursor."""
        return _with_query(self._url, [(self._wire.before, cursor), *self._limit, *self._filters])

    def page_from(self, time: str) -> str:
        """The address of the page that begins at a time."""
        return _with_query(self._url, [(self._wire.from_time, time), *self._limit, *self._filters])

    def stream(self) -> str:
        """The address of the stream; its cursor travels in a header."""
        return _with_query(self._stream, self._limit + self._filters)


def event_in(message: SseMessage) -> FeedEvent:
    """The event that a message of the stream carries."""
    item = _json(message.data.encode("utf-8", "surrogatepass"))
    return _event(item, message.id or None)


def reset_in(message: SseMessage) -> Reset:
    """What a `reset` of the stream says."""
    told = _json(message.data.encode("utf-8", "surrogatepass"))
    if not isinstance(told, dict):
        raise Unreadable("a reset is an object", message.data)
    return _reset(told, told.get("message"))


def refusal(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> FeedRefused:
    """What an answer says about why there is nothing else."""
    try:
        told = _json(body)
    except Unreadable:
        told = None
    told = told if isinstance(told, dict) else {}
    details = told.get("details")
    message = told.get("message") or _kept(body) or "no message"
    if 300 <= status < 400:
        message = f"redirects to {headers.get('location', '?')}: ask that address"
    return FeedRefused(
        status,
        _text(told.get("error")),
        str(message),
        details if isinstance(details, dict) else {},
        _retry_after(headers.get("retry-after"), told.get("retry_after"), now),
    )


def reset_of(refused: FeedRefused) -> Reset:
    """What a 410 says."""
    return _reset(refused.details, refused.message)


def _paged(decoded: Any, headers: Mapping[str, str], after: str | None) -> FetchedPage:
    pagination = decoded.get("pagination") if isinstance(decoded, dict) else None
    lists = [value for value in decoded.values() if isinstance(value, list)] if isinstance(decoded, dict) else []
    if not isinstance(pagination, dict) or len(lists) != 1:
        raise Unreadable("a page is an object with `pagination` and one list of events")
    # At the end of a strand the body has none, and a header says how far filters have looked.
    following = _text(pagination.get("nextCursor")) or headers.get("x-next-cursor")
    events = tuple(_event(item, _cursor_of(item)) for item in lists[0])
    # A server that promises more and stays where it is would be asked for ever.
    more = pagination.get("hasMore") is True and following not in (None, after)
    return FetchedPage(events, following, more, _text(pagination.get("previousCursor")), _never_given(headers))


def _array(decoded: Any, headers: Mapping[str, str], after: str | None) -> FetchedPage:
    if not isinstance(decoded, list):
        raise Unreadable("a page of this feed is an array")
    events = tuple(_event(item, _identity(item)) for item in decoded)
    following = headers.get("x-next-cursor") or (events[-1].cursor if events else None)
    more = following not in (None, after) and headers.get("x-has-more", "").lower() == "true"
    return FetchedPage(events, following, more, headers.get("x-previous-cursor"), _never_given(headers))


def _never_given(headers: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """The ranges that a page's header names."""
    found = _RANGE.findall(headers.get("x-never-given", ""))
    return tuple((int(low), int(high)) for low, high in found)


def _event(item: Any, cursor: str | None) -> FeedEvent:
    return FeedEvent(_identity(item), item, cursor, number_in(cursor), _withheld(item))


def _withheld(item: Mapping[str, Any]) -> str | None:
    """Why the server could not show an event; None where the item is one."""
    return _text(item.get("withheld")) if item.keys() <= _NOTE else None


def _cursor_of(item: Any) -> str | None:
    """The cursor after an item that shows what its cursor is made of."""
    if not isinstance(item, dict):
        return None
    ts, seq, position = item.get("ts"), item.get("seq"), item.get("position")
    if isinstance(ts, str) and isinstance(seq, int):
        return f"{ts}#{seq:03d}"
    # What other items call their position is their own affair.
    return str(position) if isinstance(position, int) and _withheld(item) else None


def _identity(item: Any) -> str:
    identity = item.get("event_id") if isinstance(item, dict) else None
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise Unreadable("an event without `event_id`", str(item))
    return str(identity)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Unreadable(f"it is no JSON ({problem})", _kept(body)) from None


def _kept(body: bytes) -> str:
    return body[:_MOST_KEPT].decode("utf-8", "replace")


def _reset(told: Mapping[str, Any], message: Any) -> Reset:
    return Reset(str(told.get("reason") or "reset"), _text(told.get("restart")), str(message or ""))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _retry_after(header: str | None, in_body: Any, now: datetime) -> float | None:
    """Seconds, from a header that has a number or a date, or else from the body."""
    if header is not None and header.strip().isdecimal() and header.isascii():
        return float(header)
    if header is not None:
        try:
            return max(0.0, (email.utils.parsedate_to_datetime(header) - now).total_seconds())
        except (TypeError, ValueError):
            pass
    return seconds_in(in_body)


def seconds_in(told: Any) -> float | None:
    """How long somebody asks for, from a value of JSON; None when that is no time, or one beyond all numbers."""
    if not isinstance(told, int | float) or isinstance(told, bool):
        return None
    try:
        return max(0.0, float(told))
    except OverflowError:
        return None


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise DeclarationError(f"{url!r} is no address of a feed: give one that begins with http:// or https://")
    return url


def _below(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def _with_query(url: str, parameters: list[tuple[str, str]]) -> str:
    parts = urlsplit(url)
    added = [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in parameters]
    return urlunsplit(parts._replace(query="&".join([*filter(None, [parts.query]), *added]), fragment=""))
