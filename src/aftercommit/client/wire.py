"""A feed over HTTP: the addresses of requests, and the contents of answers. Pure."""

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
# How much of an unreadable answer is kept. It is more than is shown: redaction can only find whole secrets.
_MOST_KEPT: Final = 16 << 10
_QUOTED: Final = 80
# The fields of a note in place of an event. An item with any other field is an event, even if it has `withheld`.
_NOTE: Final = {"event_id", "ts", "seq", "position", "withheld"}
# The place after the newest event: the page before it is the newest page.
END: Final = "end"


class Unreadable(ValueError):
    """An answer or event does not follow the protocol: what is wrong (`said`), and the beginning of it (`quoted`)."""

    def __init__(self, said: str, quoted: str = "") -> None:
        super().__init__(f"{said}: {quoted[:_QUOTED]!r}" if quoted else said)
        self.said = said
        self.quoted = quoted


class FeedEvent(msgspec.Struct, frozen=True):
    """One event of a feed. To go on after it, use `cursor`; `number` is the number in that cursor.

    If the server could not show the event, `withheld` says why, and `data` has only its id and place.
    """

    id: str
    data: Mapping[str, Any]
    cursor: str | None = None
    number: int | None = None
    withheld: str | None = None


class Reset(msgspec.Struct, frozen=True):
    """The server replaced our cursor by `restart` (None: begin without one)."""

    reason: str
    restart: str | None
    message: str


class FetchedPage(msgspec.Struct, frozen=True):
    """A page. `next` is the cursor to go on with; None means: keep your own.

    A page that was read backwards has no `next`. Its `previous` is the cursor to go further back with, None at the
    beginning. The newest page has a `previous` if the server did not look at all events. `never_given` are ranges of
    numbers before its events that belong to no event.
    """

    events: tuple[FeedEvent, ...]
    next: str | None
    more: bool
    previous: str | None = None
    never_given: tuple[tuple[int, int], ...] = ()


class Wire(msgspec.Struct, frozen=True):
    """The names and the form that a feed declares: its query parameters, whether pages are objects or bare arrays, and
    the cursor before all events."""

    cursor: str = "afterCursor"
    limit: str = "limit"
    body: Literal["paged", "array"] = "paged"
    beginning: str | None = "1970-01-01T00:00:00.000Z#000"
    before: str = "beforeCursor"
    from_time: str = "fromTime"

    def page(self, body: bytes, headers: Mapping[str, str], after: str | None) -> FetchedPage:
        """The page in a body. Raises Unreadable."""
        return (_array if self.body == "array" else _paged)(_json(body), headers, after)

    def page_back(self, body: bytes, headers: Mapping[str, str]) -> FetchedPage:
        """The page in a body, where the page before a cursor was requested."""
        page = self.page(body, headers, None)
        return msgspec.structs.replace(page, next=None, more=False)


LOGS: Final = Wire()
"""The default: pages are objects, and the cursor is `afterCursor`."""
TASKS: Final = Wire(cursor="after_id", body="array", beginning="0", before="before_id", from_time="from_time")
"""Pages are bare arrays, and the cursor is `after_id`."""


class FeedAddress:
    """The addresses of a feed's pages and stream, with limit and filters."""

    def __init__(
        self,
        url: str,
        wire: Wire = LOGS,
        *,
        stream: str | None = None,
        limit: int | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> None:
        """`stream` is the address of the stream if it is not `/stream` below `url`."""
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
        """The address of the stream. The cursor is sent in a header."""
        return _with_query(self._stream, self._limit + self._filters)


def event_in(message: SseMessage) -> FeedEvent:
    """The event in a message of the stream. Raises Unreadable."""
    item = _json(message.data.encode("utf-8", "surrogatepass"))
    return _event(item, message.id or None)


def reset_in(message: SseMessage) -> Reset:
    """The reset in a message of the stream. Raises Unreadable."""
    told = _json(message.data.encode("utf-8", "surrogatepass"))
    if not isinstance(told, dict):
        raise Unreadable("a reset must be an object", message.data)
    return _reset(told, told.get("message"))


def refusal(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> FeedRefused:
    """The error in an answer that is not a page."""
    try:
        told = _json(body)
    except Unreadable:
        told = None
    told = told if isinstance(told, dict) else {}
    details = told.get("details")
    message = told.get("message") or _kept(body) or "no message"
    if 300 <= status < 400:
        message = f"redirects to {headers.get('location', '?')}: use that address"
    return FeedRefused(
        status,
        _text(told.get("error")),
        str(message),
        details if isinstance(details, dict) else {},
        _retry_after(headers.get("retry-after"), told.get("retry_after"), now),
    )


def reset_of(refused: FeedRefused) -> Reset:
    """The reset in a 410."""
    return _reset(refused.details, refused.message)


def _paged(decoded: Any, headers: Mapping[str, str], after: str | None) -> FetchedPage:
    pagination = decoded.get("pagination") if isinstance(decoded, dict) else None
    lists = [value for value in decoded.values() if isinstance(value, list)] if isinstance(decoded, dict) else []
    if not isinstance(pagination, dict) or len(lists) != 1:
        raise Unreadable("a page must be an object with `pagination` and one list of events")
    # At the end of a strand the body has none, and a header says how far the server looked.
    following = _text(pagination.get("nextCursor")) or headers.get("x-next-cursor")
    events = tuple(_event(item, _cursor_of(item)) for item in lists[0])
    # A server that promises more without moving on would be asked for ever.
    more = pagination.get("hasMore") is True and following not in (None, after)
    return FetchedPage(events, following, more, _text(pagination.get("previousCursor")), _never_given(headers))


def _array(decoded: Any, headers: Mapping[str, str], after: str | None) -> FetchedPage:
    if not isinstance(decoded, list):
        raise Unreadable("a page of this feed must be an array")
    events = tuple(_event(item, _identity(item)) for item in decoded)
    following = headers.get("x-next-cursor") or (events[-1].cursor if events else None)
    more = following not in (None, after) and headers.get("x-has-more", "").lower() == "true"
    return FetchedPage(events, following, more, headers.get("x-previous-cursor"), _never_given(headers))


def _never_given(headers: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    return tuple((int(low), int(high)) for low, high in _RANGE.findall(headers.get("x-never-given", "")))


def _event(item: Any, cursor: str | None) -> FeedEvent:
    return FeedEvent(_identity(item), item, cursor, number_in(cursor), _withheld(item))


def _withheld(item: Mapping[str, Any]) -> str | None:
    """Why the server could not show an event; None if it could."""
    return _text(item.get("withheld")) if item.keys() <= _NOTE else None


def _cursor_of(item: Any) -> str | None:
    """The cursor of an item that has the parts of it as fields."""
    if not isinstance(item, dict):
        return None
    ts, seq, position = item.get("ts"), item.get("seq"), item.get("position")
    if isinstance(ts, str) and isinstance(seq, int):
        return f"{ts}#{seq:03d}"
    # In an event, a field of this name may mean anything; in a note it is the cursor.
    return str(position) if isinstance(position, int) and _withheld(item) else None


def _identity(item: Any) -> str:
    identity = item.get("event_id") if isinstance(item, dict) else None
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise Unreadable("an event has no `event_id`", str(item))
    return str(identity)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Unreadable(f"it is not JSON ({problem})", _kept(body)) from None


def _kept(body: bytes) -> str:
    return body[:_MOST_KEPT].decode("utf-8", "replace")


def _reset(told: Mapping[str, Any], message: Any) -> Reset:
    return Reset(str(told.get("reason") or "reset"), _text(told.get("restart")), str(message or ""))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _retry_after(header: str | None, in_body: Any, now: datetime) -> float | None:
    """Seconds from a header with a number or a date, or else from the body."""
    if header is not None and header.strip().isdecimal() and header.isascii():
        return float(header)
    if header is not None:
        try:
            return max(0.0, (email.utils.parsedate_to_datetime(header) - now).total_seconds())
        except (TypeError, ValueError):
            pass
    return seconds_in(in_body)


def seconds_in(told: Any) -> float | None:
    """A JSON value as a number of seconds; None if it is not a number, or too large."""
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
        raise DeclarationError(f"{url!r} is not the address of a feed: pass one like https://host/logs")
    return url


def _below(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def _with_query(url: str, parameters: list[tuple[str, str]]) -> str:
    parts = urlsplit(url)
    added = [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in parameters]
    return urlunsplit(parts._replace(query="&".join([*filter(None, [parts.query]), *added]), fragment=""))
