"""Who hears of an event, as publish takes it and as feeds select by it. Nothing is connected."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

import pytest

from aftercommit.errors import AudienceViolation, DeclarationError, UnknownStrand
from aftercommit.event.envelope import Record
from aftercommit.feed import ByAudience, Feed
from aftercommit.feed.declaration.entry import StoredEvent
from aftercommit.outbox import Outbox
from aftercommit.outbox.row_maker import RowMaker
from aftercommit.postgres.arrays import text_array
from aftercommit.postgres.shape import MAX_AUDIENCE, DeclaredView


def outbox(**options: Any) -> Outbox:
    declared = Outbox("tasks", **{"audience": True, **options})
    declared.declare("task.changed")
    return declared


def audiences(declared: Outbox, *events: Any, audience: Any = None, **scope: Any) -> list[Any]:
    """What the rows of a publish say about who hears, as the statement gets it."""
    rows = RowMaker(declared.registry, declared.shape, 1000).rows(list(events), scope, audience)
    return [text_array(row[-1]) for row in rows]


def stored(*readers: str) -> StoredEvent:
    now = datetime.now(UTC)
    record = Record(uuid4(), "task.changed", 1, "task", "t-1", now, "c", None, b"{}", now, 1, 7, audience=readers)
    return StoredEvent(record, now, None)


class Role(StrEnum):
    EDITOR = "role:editor"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([], "{}"),
        (["user:17"], '{"user:17"}'),
        (("b", "a", "b"), '{"b","a"}'),
        ({"one"}, '{"one"}'),
        ((f"user:{number}" for number in range(2)), '{"user:0","user:1"}'),
        ([Role.EDITOR], '{"role:editor"}'),
        (["x" * 255], '{"' + "x" * 255 + '"}'),
        (['q"', "b\\", "{,}"], '{"q\\"","b\\\\","{,}"}'),
    ],
)
def test_readers_are_kept_in_their_order_and_each_once(given, kept):
    declared = outbox()
    note = declared.registry.named("task.changed").draft({})

    assert audiences(declared, note, note, audience=given) == [kept, kept]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, r"this outbox requires publish\(…, audience=\[…\]\); an empty list means no readers"),
        ("user:17", r"audience='user:17' is str: give a list of readers"),
        (b"user:17", "is bytes"),
        ({"user:17": True}, "is dict"),
        (17, "audience=17 is int"),
        ([17], r"17 \(int\) is not a valid reader"),
        ([None], r"None \(NoneType\)"),
        ([""], "1 to 255 characters"),
        (["x" * 256], "1 to 255 characters"),
        (["a\x00b"], "no NUL or lone surrogate"),
        (["\ud800"], "no NUL or lone surrogate"),
        ((f"user:{number}" for number in range(MAX_AUDIENCE + 1)), "10,001 readers; the limit is 10,000"),
    ],
)
def test_what_is_no_audience_is_refused_with_the_remedy(given, said):
    declared = outbox()

    with pytest.raises(AudienceViolation, match=said):
        audiences(declared, declared.registry.named("task.changed").draft({}), audience=given)


def test_a_draft_may_have_its_own_and_in_a_list_a_violation_names_the_event():
    declared = outbox()
    draft = declared.registry.named("task.changed").draft

    assert audiences(declared, draft({}), draft({}, audience=["b"]), audience=["a"]) == ['{"a"}', '{"b"}']
    assert audiences(declared, draft({}, audience=["a"]), draft({}, audience=[])) == ['{"a"}', "{}"]
    with pytest.raises(AudienceViolation, match="event 1 of 2: the audience of this event is missing"):
        audiences(declared, draft({}, audience=["a"]), draft({}))
    with pytest.raises(AudienceViolation, match=r"event 1 of 2: 3 \(int\)"):
        audiences(declared, draft({}), draft({}, audience=[3]), audience=["a"])  # type: ignore[list-item]


def test_scope_and_audience_stand_side_by_side():
    declared = outbox(scope={"tenant_id": str})
    draft = declared.registry.named("task.changed").draft
    rows = RowMaker(declared.registry, declared.shape, 1000).rows(
        [draft({}), draft({}, scope={"tenant_id": "b"})], {"tenant_id": "a"}, ["user:1"]
    )

    assert [row[-2:] for row in rows] == [("a", ("user:1",)), ("b", ("user:1",))]


def test_an_audience_is_refused_where_none_is_declared():
    declared = outbox(audience=False)
    draft = declared.registry.named("task.changed").draft

    with pytest.raises(AudienceViolation, match=r"declare Outbox\(…, audience=True\)"):
        audiences(declared, draft({}), audience=["user:1"])
    with pytest.raises(AudienceViolation, match=r"audience=\[\] was given"):
        audiences(declared, draft({}, audience=[]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"audience": ["user:17"]}, "must be True or False"),
        ({"scope": {"audience": str}}, "scope name 'audience' is not valid"),
        ({"views": [DeclaredView("audience", {"id": "id"})]}, "has the name of a table"),
        ({"views": [DeclaredView("audience_000001", {"id": "id"})]}, "has the name of a table"),
        ({"audience": False, "views": [DeclaredView("v", {"readers": "audience"})]}, "not a column of an event"),
    ],
)
def test_declarations_that_cannot_work_are_refused(options, said):
    with pytest.raises(DeclarationError, match=said):
        outbox(**options)


def test_text_arrays_of_nothing_are_empty():
    assert text_array([]) == "{}"


@pytest.mark.parametrize(
    ("reader", "audience", "keys"),
    [
        ("{key}", ["user:1", "team:2"], ["user:1", "team:2"]),
        ("user:{key}", ["user:1", "team:2", "user:", "xuser:3", "user:user:4"], ["1", "user:4"]),
        ("{key}@here", ["a@here", "@here", "b@there"], ["a"]),
        ("a{key}a", ["aa", "aba", "a"], ["b"]),
    ],
)
def test_a_feed_has_a_strand_for_every_reader_of_its_kind(reader, audience, keys):
    select = ByAudience(reader)

    assert list(select.keys_of(stored(*audience))) == keys
    assert [select.parameter(outbox(), key) for key in keys] == [each for each in audience if _is_of(reader, each)]


def _is_of(template: str, reader: str) -> bool:
    before, _, after = template.partition("{key}")
    return reader.startswith(before) and reader.endswith(after) and len(reader) > len(before) + len(after)


@pytest.mark.parametrize("key", ["", "x" * 251, "\x00", "\ud800"])
def test_a_key_that_no_reader_can_have_is_unknown(key):
    with pytest.raises(UnknownStrand):
        ByAudience("user:{key}").parameter(outbox(), key)


@pytest.mark.parametrize(
    "reader", ["", "user", "{key}{key}", "{key}:{tenant}", "{", "x" * 255 + "{key}", "\x00{key}", None, 7]
)
def test_a_pattern_of_readers_holds_the_key_once(reader):
    with pytest.raises(DeclarationError, match=r"must contain \{key\} once"):
        ByAudience(reader)


def test_a_feed_by_audience_needs_an_outbox_that_has_one_and_makes_no_index():
    with pytest.raises(DeclarationError, match=r"needs Outbox\('tasks', audience=True\)"):
        Feed("mine", outbox(audience=False), select=ByAudience(), item=lambda event: {})
    declared = outbox()

    feed = Feed("mine", declared, select=ByAudience(), item=lambda event: {}, facets={"kind": "kind"})

    assert feed.facet_paths == (("kind",),)
    assert declared.shape.facets == ()
