"""What may be read over HTTP: a declaration, used by polls, long-polls and streams alike. Nothing is connected here.

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

from aftercommit.access.permissions import needed, problem_of
from aftercommit.access.rate_limit import Rate
from aftercommit.errors import BadParameter, DeclarationError, DuplicateDeclaration
from aftercommit.event.definition import checked_name
from aftercommit.feed.declaration.cursor import POSITION, CursorFormat
from aftercommit.feed.declaration.entry import Item, LogEvent, Redacting
from aftercommit.feed.declaration.facets import Facets
from aftercommit.feed.declaration.filters import EVERYTHING, Chosen, Equals, Filter, choose
from aftercommit.feed.declaration.page import Body, PagedBody
from aftercommit.feed.declaration.selection import FeedSelection
from aftercommit.outbox.declaration import Outbox

_LONGEST_NAME: Final = 50
_MOST_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How many items a page may have: when nothing is said, at least, and at most."""

    default: int = 100
    least: int = 1
    most: int = 1000

    def __post_init__(self) -> None:
        """Refuse limits that leave no page."""
        if not 1 <= self.least <= self.default <= self.most <= _MOST_AT_ONCE:
            raise DeclarationError(f"{self!r}: 1 <= least <= default <= most <= {_MOST_AT_ONCE} is needed")

    def parse(self, parameter: str, text: str | None) -> int:
        """The limit that a request asks for, or BadParameter."""
        if text is None:
            return self.default
        # int() also reads signs, spaces, underscores and the digits of other scripts.
        is_readable = text.isascii() and text.isdigit() and len(text) <= len(str(self.most))
        if not is_readable or not self.least <= int(text) <= self.most:
            raise BadParameter(parameter, text, f"must be an integer from {self.least} to {self.most}")
        return int(text)


@dataclass(frozen=True, slots=True)
class Wire:
    """Names on the wire: of the query parameters and of SSE events; and the form of the body.

    `cursor` is read on from, `before` is read back from, and from `from_time` on is read what came then.
    """

    cursor: str = "afterCursor"
    limit: str = "limit"
    body: Body = field(default_factory=lambda: PagedBody("items"))
    event_name: str = "message"
    before: str = "beforeCursor"
    from_time: str = "fromTime"

    def __post_init__(self) -> None:
        """Refuse what would break a URL or a line of a stream."""
        for name in (*self.parameters, self.event_name):
            checked_name(name, "wire name", _LONGEST_NAME)
        for name in self.parameters:
            if self.parameters.count(name) > 1:
                raise DeclarationError(f"two of {self!r} cannot both be the parameter {name!r}")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The query parameters that are no filters."""
        return self.cursor, self.limit, self.before, self.from_time


class Feed:
    """A declaration of what may be read."""

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
        """Declare; the outbox is told which indexes its log needs, and `migrate` makes them.

        A facet is the name of a payload's field (`"level"`, `"context.tenant"`), which history finds by index, or a
        function of the event, for which history has to look at event by event. `begins` says what comes first without
        a cursor: the newest page, or the oldest that is kept, so that whoever just goes on has read everything.
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
        self.begins = _checked_begin(name, begins)
        self.item_schema = dict(item_schema or {"type": "object"})
        self._facets = Facets(name, facets or {})
        select.check(outbox)
        self._check_filters()
        indexes = (select.facet(path) for path in self._facets.paths if path is not None)
        outbox.index_log(index for index in indexes if index is not None)

    @property
    def version(self) -> str:
        """What besides events changes an item: the rules of the redactor."""
        return self.redactor.version if self.redactor is not None else ""

    @property
    def facet_paths(self) -> tuple[tuple[str, ...] | None, ...]:
        """For each facet the place in the payload by which history finds it; None for a function."""
        return self._facets.paths

    def facets_of(self, payload: bytes, event: LogEvent[Any] | None) -> tuple[str | None, ...]:
        """What filters look at, from the payload as it is stored; without an event the functions' are UNKNOWN."""
        return self._facets.of(payload, event)

    def chosen(self, given: Mapping[str, str]) -> Chosen:
        """What the filters among these query parameters ask for; BadParameter for what they do not take."""
        if not self.filters:
            return EVERYTHING
        chosen = choose(self.filters, self._facets.names, given)
        self._refuse_what_is_redacted(given)
        return chosen

    def takes(self, event_type: str) -> bool:
        """Whether events of this type can be in the feed."""
        return self.types is None or event_type in self.types

    def _refuse_what_is_redacted(self, given: Mapping[str, str]) -> None:
        """Filters look at what is stored: whoever guesses at what is not shown must not learn that it is there."""
        if self.redactor is None:
            return
        for declared in self.filters:
            text = given.get(declared.parameter)
            if text is not None and isinstance(declared, Equals) and self.redactor.value(text) != text:
                said = "is redacted wherever it stands, and cannot be asked for: leave this filter out"
                raise BadParameter(declared.parameter, text, said)

    def _check_filters(self) -> None:
        parameters = list(self.wire.parameters)
        for declared in self.filters:
            if declared.facet not in self._facets.names:
                known = ", ".join(self._facets.names) or "none"
                raise DeclarationError(
                    f"feed {self.name!r}: filter {declared.parameter!r} looks at the facet {declared.facet!r}, "
                    f"which is not among its facets ({known})"
                )
            checked_name(declared.parameter, "filter", _LONGEST_NAME)
            if declared.parameter in parameters:
                raise DeclarationError(f"feed {self.name!r}: the parameter {declared.parameter!r} is declared twice")
            parameters.append(declared.parameter)


def all_different(feeds: Sequence[Feed]) -> tuple[Feed, ...]:
    """The feeds themselves, if no two have the same name."""
    names = [feed.name for feed in feeds]
    for feed in feeds:
        if names.count(feed.name) > 1:
            raise DuplicateDeclaration(f"feed {feed.name!r} is declared twice: give one of the two another name")
    return tuple(feeds)


def _checked_begin(name: str, begins: Literal["newest", "oldest"]) -> Literal["newest", "oldest"]:
    if begins not in ("newest", "oldest"):
        raise DeclarationError(f"feed {name!r}: begins={begins!r:.60} must be 'newest' or 'oldest'")
    return begins


def _checked_permission(name: str, permission: str | None) -> str | None:
    """Refused here and not at the first request, which could only be answered 500."""
    if permission is None:
        return None
    try:
        problem = problem_of(needed(permission, key="x"))
    except (LookupError, ValueError, AttributeError) as error:
        problem = f"it cannot be filled in ({type(error).__name__}: {error})"
    if problem is not None:
        raise DeclarationError(
            f"feed {name!r}: permission={permission!r:.100}: {problem}. Write it like investigation:{{key}}:read, "
            "where {key} stands for the key of a strand"
        )
    return permission


def _checked_types(name: str, outbox: Outbox, types: Sequence[str] | None) -> tuple[str, ...] | None:
    if types is None:
        return None
    if isinstance(types, str) or not types:
        raise DeclarationError(f"feed {name!r}: types={types!r} must be a tuple of event types, one at least")
    return tuple(outbox.registry.named(each).name for each in types)
