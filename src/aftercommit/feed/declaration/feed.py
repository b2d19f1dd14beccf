"""The declaration of a feed, which polls, long polls and streams share. Connects to nothing.

logs = Feed(
    "logs", outbox,
    select=ByStream("investigation"), types=("log.recorded",), cursor=TIME_AND_SEQ,
    facets={"level": "level"}, filters=(AtLeast("minLevel", facet="level", order=("INFO", "ERROR")),),
    item=to_item, redactor=Redactor(), permission="investigation:{key}:read",
)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aftercommit.access.key_count import Rate
from aftercommit.access.permissions import permission_for, problem_of
from aftercommit.errors import BadParameter, DeclarationError, DuplicateDeclaration
from aftercommit.event.definition import checked_name
from aftercommit.feed.declaration.cursor import POSITION, CursorFormat
from aftercommit.feed.declaration.entry import Item, LogEvent, Redacting
from aftercommit.feed.declaration.facets import Facets
from aftercommit.feed.declaration.filters import EVERYTHING, Chosen, Equals, Filter, choose
from aftercommit.feed.declaration.page import Body, PagedBody
from aftercommit.feed.declaration.selection import ByScope, FeedSelection
from aftercommit.outbox.declaration import Outbox

_LONGEST_NAME: Final = 50
_RESERVED: Final = ("bye", "reset", "hold", "heartbeat")
_MOST_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How many items a page has: by default, at least, and at most."""

    default: int = 100
    least: int = 1
    most: int = 1000

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.default <= self.most <= _MOST_AT_ONCE:
            raise DeclarationError(f"{self!r}: must be 1 <= least <= default <= most <= {_MOST_AT_ONCE}")

    def parse(self, parameter: str, text: str | None) -> int:
        """Parse the limit of a request, or raise BadParameter."""
        if text is None:
            return self.default
        # int() also accepts signs, spaces, underscores and the digits of other scripts.
        is_readable = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
        if not is_readable or not self.least <= int(text) <= self.most:
            raise BadParameter(parameter, text, f"must be an integer from {self.least} to {self.most}")
        return int(text)


@dataclass(frozen=True, slots=True)
class Wire:
    """The names of the query parameters and of SSE events, and the form of the body.

    `cursor` names the parameter to read forwards, `before` to read backwards, `from_time` to start at a time.
    """

    cursor: str = "afterCursor"
    limit: str = "limit"
    body: Body = field(default_factory=lambda: PagedBody("items"))
    event_name: str = "message"
    before: str = "beforeCursor"
    from_time: str = "fromTime"

    def __post_init__(self) -> None:
        """Refuse names that would break a URL or a line of a stream."""
        for name in (*self.parameters, self.event_name):
            checked_name(name, "wire name", _LONGEST_NAME)
        if self.event_name in _RESERVED:
            raise DeclarationError(f"{self!r}: streams use the event names {', '.join(_RESERVED)} themselves")
        for name in self.parameters:
            if self.parameters.count(name) > 1:
                raise DeclarationError(f"{self!r} uses the parameter {name!r} twice: choose another name")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The query parameters, without the filters."""
        return self.cursor, self.limit, self.before, self.from_time


class Feed:
    """The declaration of a feed: which events readers get, and in which form."""

    def __init__(
        self,
        name: str,
        outbox: Outbox,
        *,
        select: FeedSelection,
        item: Item,
        types: Sequence[str] | None = None,
        cursor: CursorFormat = POSITION,
        facets: Mapping[str, str | Callable[[LogEvent[Any]], str | None]] | None = None,
        filters: Sequence[Filter] = (),
        redactor: Redacting | None = None,
        limits: Limits | None = None,
        wire: Wire | None = None,
        permission: str | None = None,
        rates: Sequence[Rate] = (),
        begins: Literal["newest", "oldest"] = "newest",
        item_schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Declares the feed, and adds the indexes that it needs to the outbox; `migrate` makes them.

        A facet is a payload field (`"level"`, `"context.tenant"`), which history finds by index, or a function of the
        event, for which history is searched event by event. `begins` says which page a reader without a cursor gets:
        the newest, or the oldest that is kept, so that a reader who continues from there reads everything.
        """
        self.name = checked_name(name, "feed", _LONGEST_NAME)
        self.outbox = outbox
        self.select = select
        self.types = _checked_types(name, outbox, types)
        self.cursor = cursor
        self.filters = tuple(filters)
        self.item = item
        self.redactor = redactor
        self.limits = limits or Limits()
        self.wire = wire or Wire()
        self.permission = _checked_permission(name, permission)
        self.rates = tuple(rates)
        self.begins = begins
        self.item_schema = dict(item_schema or {"type": "object"})
        self._facets = Facets(name, facets or {})
        if begins not in ("newest", "oldest"):
            raise DeclarationError(f"feed {name!r}: begins={begins!r:.60} must be 'newest' or 'oldest'")
        select.check(outbox)
        self._check_filters()
        paths = [path for path in self._facets.paths if path is not None]
        indexes = [select.facet(path) for path in paths]
        if isinstance(select, ByScope):
            indexes.append(select.facet(()))
        outbox.index_log(index for index in indexes if index is not None)

    @property
    def version(self) -> str:
        """The version of the redactor: items change with it although events do not."""
        return self.redactor.version if self.redactor is not None else ""

    @property
    def facet_paths(self) -> tuple[tuple[str, ...] | None, ...]:
        """For each facet its path in the payload, by which history finds events; None for a function."""
        return self._facets.paths

    def facets_of(self, payload: bytes, event: LogEvent[Any] | None) -> tuple[str | None, ...]:
        """The facets of an event, from its stored payload; without a typed event, those of functions are UNKNOWN."""
        return self._facets.of(payload, event)

    def chosen(self, given: Mapping[str, str]) -> Chosen:
        """The filters of these query parameters; BadParameter for a value that a filter does not accept."""
        if not self.filters:
            return EVERYTHING
        chosen = choose(self.filters, self._facets.names, given)
        self._refuse_what_is_redacted(given)
        return chosen

    def takes(self, event_type: str) -> bool:
        """Whether events of this type can be in the feed."""
        return self.types is None or event_type in self.types

    def _refuse_what_is_redacted(self, given: Mapping[str, str]) -> None:
        """Filters compare stored values. A reader must not find out a redacted value by guessing."""
        if self.redactor is None:
            return
        for declared in self.filters:
            text = given.get(declared.parameter)
            if text is not None and isinstance(declared, Equals) and self.redactor.value(text) != text:
                reason = "is redacted in items, so you cannot filter by it: leave this parameter out"
                raise BadParameter(declared.parameter, text, reason)

    def _check_filters(self) -> None:
        parameters = list(self.wire.parameters)
        for declared in self.filters:
            if declared.facet not in self._facets.names:
                known = ", ".join(self._facets.names) or "none"
                raise DeclarationError(
                    f"feed {self.name!r}: filter {declared.parameter!r} uses the facet {declared.facet!r}, which is "
                    f"not declared: add it to facets (declared: {known})"
                )
            checked_name(declared.parameter, "filter", _LONGEST_NAME)
            if declared.parameter in parameters:
                raise DeclarationError(f"feed {self.name!r}: the parameter {declared.parameter!r} is declared twice")
            parameters.append(declared.parameter)


def all_different(feeds: Sequence[Feed]) -> tuple[Feed, ...]:
    """The feeds; DuplicateDeclaration if two have the same name."""
    names = [feed.name for feed in feeds]
    for feed in feeds:
        if names.count(feed.name) > 1:
            raise DuplicateDeclaration(f"feed {feed.name!r} is declared twice: give one of the two another name")
    return tuple(feeds)


def _checked_permission(name: str, permission: str | None) -> str | None:
    """Checked here, because a request could only be answered with 500."""
    if permission is None:
        return None
    try:
        problem = problem_of(permission_for(permission, key="x"))
    except (LookupError, ValueError, AttributeError) as error:
        problem = f"it cannot be filled in ({type(error).__name__}: {error})"
    if problem is not None:
        raise DeclarationError(
            f"feed {name!r}: permission={permission!r:.100}: {problem}. Write it like investigation:{{key}}:read, "
            "where {key} is the key in the path"
        )
    return permission


def _checked_types(name: str, outbox: Outbox, types: Sequence[str] | None) -> tuple[str, ...] | None:
    if types is None:
        return None
    if isinstance(types, str) or not types:
        raise DeclarationError(f"feed {name!r}: types={types!r} must be a tuple of at least one event type")
    return tuple(outbox.registry.named(each).name for each in types)
