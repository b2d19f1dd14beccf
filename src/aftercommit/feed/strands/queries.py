"""The SQL statements that read one feed, each rendered once. Pure text."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal

from psycopg import sql

from aftercommit.feed.declaration.feed import Feed
from aftercommit.feed.declaration.selection import Everything
from aftercommit.postgres.statements import Statements

Direction = Literal["asc", "desc"]
_NOTHING: Final = sql.SQL("")
_LOW: Final = sql.Placeholder("low")
_HIGH: Final = sql.Placeholder("high")


class FeedQueries:
    """The queries of one feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._statements = Statements(feed.outbox.shape)
        self._kind = "stream" if feed.select.by_stream else "position"
        self._pages: dict[tuple[Direction, int | None, tuple[int, ...]], bytes] = {}
        self._reaches: dict[tuple[Direction, int | None], bytes] = {}
        self._number = sql.Identifier("stream_seq" if feed.select.by_stream else "position")
        self._parts: dict[str, sql.Composable] = {
            **feed.select.parts(),
            "number": self._number,
            "columns": self._statements.part("feed_columns"),
            "bytes": self._statements.part("feed_bytes"),
            "types": self._statements.part("feed_types") if feed.types is not None else _NOTHING,
        }
        self._parts["constant"] = self._part(f"feed_constant_{self._kind}")
        if feed.select.by_stream:
            self._parts["strand"] = self._part("feed_strand_stream")
        for name in ("kept", "known", "known_ts", "gaps"):
            self._parts[name] = self._part(f"feed_{name}_{self._kind}")

    @cached_property
    def load(self) -> bytes:
        """The state of a strand, and its newest events."""
        return self._render("feed_load", total=self._total(), page=self._cut("desc", None, ()))

    @cached_property
    def moment(self) -> bytes:
        """The last event of a strand before a moment."""
        ends = self._range("asc", None, low=sql.SQL("middle.number - 1"), high=sql.SQL("search.high"))
        probe = self._part("feed_probe_heard" if self._feed.select.by_audience else "feed_probe", **ends)
        return self._render("feed_moment", probe=probe)

    def page(self, direction: Direction, driver: int | None, rest: Sequence[int]) -> bytes:
        """A page along the strand, or along the index of one facet (`driver`), with further filters (`rest`)."""
        which = (direction, driver, tuple(rest))
        if which not in self._pages:
            place, page = self._part(f"feed_place_{self._kind}"), self._cut(direction, driver, rest)
            self._pages[which] = self._render("feed_page", place=place, page=page)
        return self._pages[which]

    def reach(self, direction: Direction, facet: int | None) -> bytes:
        """How far the next events with certain values of a facet reach; without a facet, those of an audience."""
        if (direction, facet) not in self._reaches:
            parts = {**self._range(direction, facet), "direction": sql.SQL(direction)}
            name = "feed_reach" if facet is not None else "feed_reach_heard"
            self._reaches[direction, facet] = self._render(name, **parts)
        return self._reaches[direction, facet]

    def _cut(self, direction: Direction, driver: int | None, rest: Sequence[int]) -> sql.Composable:
        allowed = {each: sql.Placeholder(allowed_name(each)) for each in rest}
        filters = [self._part("feed_rest", value=self._value(each), allowed=allowed[each]) for each in rest]
        parts = {**self._range(direction, driver), "direction": sql.SQL(direction), "rest": sql.SQL("\n").join(filters)}
        name = "feed_candidates" if driver is None else "feed_candidates_by_facet"
        if self._feed.select.by_audience:
            name = "feed_candidates_heard"
        return self._part("feed_cut", candidates=self._part(name, **parts), direction=sql.SQL(direction))

    def _range(
        self,
        direction: Direction,
        driver: int | None,
        low: sql.Composable = _LOW,
        high: sql.Composable = _HIGH,
    ) -> dict[str, sql.Composable]:
        """The columns and the order of the index that is walked, and both ends of the range."""
        column = self._feed.select.column
        keys: list[tuple[sql.Composable, sql.Composable]] = []
        if column is not None:
            keys.append((sql.Identifier(column), sql.Placeholder("key")))
        if driver is not None:
            keys.append((self._value(driver), sql.SQL("allowed._value")))
        columns = [*(column for column, _ in keys), self._number]
        values = [value for _, value in keys]
        comma, bigint = sql.SQL(", "), sql.SQL("{}::bigint")
        return {
            "place": comma.join(columns),
            "low": comma.join([*values, bigint.format(low)]),
            "high": comma.join([*values, bigint.format(high)]),
            "order": comma.join(sql.SQL("{} " + direction).format(each) for each in columns),
        }

    def _total(self) -> sql.Composable:
        feed = self._feed
        if feed.types is None and (feed.select.by_stream or isinstance(feed.select, Everything)):
            # Every number from the first that is kept to the last is an event, except the gaps.
            return self._part("feed_total")
        return self._part("feed_count") if feed.select.by_stream else sql.SQL("null")

    def _value(self, facet: int) -> sql.Composable:
        path = self._feed.facet_paths[facet]
        return self._part("facet_value", path=sql.Literal(list(path or ())))

    def _part(self, name: str, **parts: sql.Composable) -> sql.SQL:
        return self._statements.part(name, **{**self._parts, **parts})

    def _render(self, name: str, **parts: sql.Composable) -> bytes:
        return self._statements.render(name, **{**self._parts, **parts}).encode()


def allowed_name(facet: int) -> str:
    """The parameter with the values of a facet that is compared, and not walked."""
    return f"allowed_{facet}"
