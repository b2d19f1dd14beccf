"""Declaring a feed: what cannot work is refused at once, and the outbox learns which indexes its log needs."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from aftercommit.errors import BadParameter, DeclarationError, DuplicateDeclaration, UnknownEventType, UnknownStrand
from aftercommit.feed import (
    POSITION,
    TIME_AND_SEQ,
    AtLeast,
    BareArray,
    ByScope,
    ByStream,
    Cursor,
    Entry,
    Equals,
    Everything,
    Limits,
    Page,
    PagedBody,
    Wire,
)
from aftercommit.feed.strands.hub import FeedHub, HubSettings
from aftercommit.outbox import Outbox
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import LogFacet
from tests.support.feeding import LEVELS, log_feed, log_outbox

NOON = datetime(2025, 11, 12, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"select": ByStream("order")}, r"Outbox\(numbered=\['order'"),
        ({"select": ByScope("tenant_id")}, r"Outbox\(scope=\{'tenant_id'"),
        ({"types": ()}, "at least one"),
        ({"types": "log.recorded"}, "tuple of at least one event type"),
        ({"filters": (Equals("who", facet="who"),)}, "'who', which is not declared"),
        ({"filters": (Equals("limit", facet="level"),)}, "declared twice"),
        ({"filters": (Equals("a b", facet="level"),)}, "not valid"),
        ({"facets": {"level": "a..b"}}, "field names"),
        ({"name": "white space"}, "not valid"),
        ({"permission": "project:{project}:read"}, r"\(KeyError: 'project'\)"),
        ({"permission": "project:{key:read"}, "cannot be filled in"),
        ({"permission": "project::{key}"}, "empty segment"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(options: dict[str, Any], problem: str):
    name = options.pop("name", "logs")
    with pytest.raises(DeclarationError, match=problem):
        log_feed(log_outbox(), name, **options)


def test_an_event_type_that_nobody_declared_is_refused():
    with pytest.raises(UnknownEventType, match="declared types are"):
        log_feed(log_outbox(), types=("log.forgotten",))


def test_two_feeds_of_one_name_cannot_be_served_together():
    outbox = log_outbox()
    with pytest.raises(DuplicateDeclaration, match="'logs'"):
        FeedHub(Database("postgresql:///"), [log_feed(outbox), log_feed(outbox)])


def test_settings_that_could_not_work_are_refused():
    with pytest.raises(DeclarationError, match="positive"):
        HubSettings(ring_bytes=0)


def test_the_outbox_learns_which_indexes_the_filters_need_and_each_once():
    outbox = log_outbox()
    log_feed(outbox)
    log_feed(outbox, "again")
    log_feed(outbox, "project", select=ByScope("project_id"), facets={"level": "context.level", "f": str}, filters=())

    assert outbox.shape.facets == (
        LogFacet("stream", "investigation", ("level",)),
        LogFacet("stream", "investigation", ("source",)),
        LogFacet("stream", "investigation", ("service",)),
        LogFacet("scope", "project_id", ("context", "level")),
        LogFacet("scope", "project_id", ()),
    )
    names = [facet.name for facet in outbox.shape.facets]
    assert names[0].startswith("log_facet_investigation_level_")
    assert names[-1] == "log_scope_project_id"
    assert len(set(names)) == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LogFacet("stream", "a", ("b", "c")), LogFacet("stream", "a_b", ("c",))),
        (LogFacet("stream", "x" * 50, ("b",)), LogFacet("stream", "x" * 50, ("c",))),
        (LogFacet("stream", "a", ("b",)), LogFacet("scope", "a", ("b",))),
        (LogFacet("stream", "a", ("é",)), LogFacet("stream", "a", ("è",))),
    ],
)
def test_names_of_indexes_never_meet_and_fit(one: LogFacet, other: LogFacet):
    assert one.name != other.name
    assert max(len(one.name.encode()), len(other.name.encode())) <= 63


@pytest.mark.parametrize(
    "text", ["9", "1001", "0", "-1", "+50", " 50", "50 ", "5e1", "50.0", "٥٠", "1_0", "", "x", "9" * 500]
)
def test_a_limit_out_of_range_or_not_an_integer_is_refused(text: str):
    with pytest.raises(BadParameter, match=r"limit=.* must be an integer from 10 to 1000"):
        Limits(default=100, least=10, most=1000).parse("limit", text)


def test_a_limit_that_is_not_given_is_the_default():
    limits = Limits(default=100, least=10, most=1000)

    assert [limits.parse("limit", text) for text in (None, "10", "1000", "0100")] == [100, 10, 1000, 100]


@pytest.mark.parametrize("wrong", [{"default": 5, "least": 10}, {"most": 10}, {"least": 0}, {"most": 100_000}])
def test_limits_that_leave_no_page_are_refused(wrong: dict[str, int]):
    with pytest.raises(DeclarationError):
        Limits(**wrong)


def test_names_that_would_break_a_url_or_a_line_are_refused():
    with pytest.raises(DeclarationError, match="wire name"):
        Wire(event_name="log\nid: 1")
    with pytest.raises(DeclarationError, match="twice"):
        Wire(cursor="limit")
    with pytest.raises(DeclarationError, match="bye, reset, hold"):
        Wire(event_name="bye")


@pytest.mark.parametrize(
    ("scope", "key", "value"),
    [(int, "42", 42), (int, "-7", -7), (UUID, str(UUID(int=5)), UUID(int=5)), (str, "p 1", "p 1")],
)
def test_a_scope_key_is_read_in_the_type_of_its_column(scope: type[Any], key: str, value: Any):
    outbox = Outbox("typed", scope={"owner": scope})

    assert ByScope("owner").parameter(outbox, key) == value


@pytest.mark.parametrize(
    ("scope", "key"),
    [
        (int, "042"),
        (int, "x"),
        (int, ""),
        (int, str(2**63)),
        (int, "1_0"),
        (UUID, "5"),
        (UUID, str(UUID(int=5)).upper().replace("0", "A", 1)),
    ],
)
def test_one_value_has_one_key_and_all_else_is_unknown(scope: type[Any], key: str):
    outbox = Outbox("typed", scope={"owner": scope})

    with pytest.raises(UnknownStrand, match="owner"):
        ByScope("owner").parameter(outbox, key)


def page(*entries: Entry, **parts: Any) -> Page:
    whole = {"looked": Cursor(0), "limit": 10, "total": 2, "head": 2, **parts}
    return Page(entries, **whole)


def entry(number: int) -> Entry:
    return Entry(number, number, NOON, str(number), b'{"n":%d}' % number, ())


@pytest.mark.contract("L5")
def test_a_paged_body_has_its_items_and_where_to_go_on():
    body = PagedBody("logs").encode(
        page(entry(1), entry(2), after=Cursor(0), looked=Cursor(2, NOON), has_more=True), TIME_AND_SEQ
    )

    assert json.loads(body) == {
        "logs": [{"n": 1}, {"n": 2}],
        "pagination": {
            "afterCursor": "1970-01-01T00:00:00.000Z#000",
            "nextCursor": "2025-11-12T12:00:00.000Z#002",
            "hasMore": True,
            "limit": 10,
            "returned": 2,
        },
    }


def test_a_page_that_was_read_back_says_so_and_moves_nobody_who_reads_on():
    body = PagedBody("logs").encode(page(entry(1), before=Cursor(2, NOON), has_more=False), TIME_AND_SEQ)

    pagination = json.loads(body)["pagination"]
    assert (pagination["beforeCursor"], pagination["previousCursor"]) == ("2025-11-12T12:00:00.000Z#002", None)
    assert (pagination["afterCursor"], pagination["nextCursor"]) == (None, None)


def test_what_is_withheld_tells_its_place_as_the_others_do():
    paged = PagedBody("logs").withheld(entry(7), TIME_AND_SEQ, "item failed")
    assert paged == {
        "event_id": "7",
        "ts": "2025-11-12T12:00:00.000Z",
        "seq": 7,
        "withheld": "item failed",
    }
    assert PagedBody("logs").withheld(entry(7), POSITION, "x") == {
        "event_id": "7",
        "position": 7,
        "withheld": "x",
    }
    assert BareArray().withheld(entry(7), POSITION, "x") == {"event_id": 7, "withheld": "x"}


@pytest.mark.parametrize("twice", [{"before": "afterCursor"}, {"from_time": "limit"}, {"limit": "afterCursor"}])
def test_two_parameters_cannot_have_one_name(twice: dict[str, str]):
    with pytest.raises(DeclarationError, match="twice"):
        Wire(**twice)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="declared twice"):
        log_feed(log_outbox(), filters=(AtLeast("fromTime", facet="level", order=LEVELS),))


def test_an_empty_page_has_no_cursor_and_a_bare_array_has_only_items():
    empty = json.loads(PagedBody("logs").encode(page(), POSITION))

    assert empty["pagination"]["nextCursor"] is None
    assert empty["logs"] == []
    assert BareArray().encode(page(entry(1)), POSITION) == b'[{"n":1}]'


def test_the_whole_log_has_one_key():
    assert Everything().parameter(log_outbox(), "") == ""
    with pytest.raises(UnknownStrand):
        Everything().parameter(log_outbox(), "x")


def test_a_default_counts_when_the_parameter_is_not_given():
    feed = log_feed(log_outbox(), filters=(AtLeast("min", facet="level", order=LEVELS, default="WARN"),))

    assert feed.chosen({}) == feed.chosen({"min": "WARN"})
    assert feed.chosen({"min": "DEBUG"}).tests == ()
