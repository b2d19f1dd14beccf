"""Permissions: exact by segment, and no key reaches further than itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.access.permissions import LONGEST, MOST, Permissions, checked, permission_for, problem_of, segment
from aftercommit.errors import DeclarationError

READ = "investigation:{key}:read"


@pytest.mark.parametrize(
    ("granted", "asked", "allowed"),
    [
        ("investigation:INV-1:read", "investigation:INV-1:read", True),
        ("investigation:INV-1:read", "investigation:INV-2:read", False),
        ("investigation:INV-1:read", "investigation:INV-1:write", False),
        ("investigation:INV-1:read", "investigation:INV-1", False),
        ("investigation:INV-1:read", "investigation:INV-1:read:more", False),
        ("investigation:INV-1:read", "Investigation:INV-1:read", False),
        ("investigation:*:read", "investigation:INV-1:read", True),
        ("investigation:*:read", "investigation:INV-1:write", False),
        ("investigation:*:read", "investigation:a:b:read", False),
        ("investigation:*:read", "investigation::read", False),
        ("*:*:read", "investigation:INV-1:read", True),
        ("*", "investigation:INV-1:read", False),
        ("*", "act-as-user", True),
        ("*:*:*", "investigation:INV-1:read", True),
        ("investigation:INV-*:read", "investigation:INV-1:read", False),
        ("investigation:INV-*:read", "investigation:INV-*:read", False),
        ("investigation:.*:read", "investigation:INV-1:read", False),
        ("investigation:INV.1:read", "investigation:INV-1:read", False),
        ("investigation::read", "investigation::read", False),
        ("", "", False),
    ],
)
def test_a_pattern_covers_what_has_the_same_segments(granted, asked, allowed):
    assert Permissions([granted]).allow(asked) is allowed


def test_any_of_several_patterns_will_do():
    permissions = Permissions(["task:me:read", "investigation:*:read", "investigation:INV-1:write"])

    assert permissions.allow("task:me:read")
    assert permissions.allow("investigation:INV-9:read")
    assert permissions.allow("investigation:INV-1:write")
    assert not permissions.allow("investigation:INV-9:write")
    assert not Permissions().allow("task:me:read")


@pytest.mark.parametrize("key", ["INV-1:read", "*", "a:*", "INV-1:x:read", ":", "%3A", "a b", "\n", "%2A"])
def test_a_key_stays_one_segment_whatever_it_holds(key):
    asked = permission_for(READ, key=key)

    assert asked.count(":") == 2
    assert Permissions(["investigation:*:read"]).allow(asked)
    assert not Permissions(["investigation:INV-1:read", "investigation:INV-1:*:read"]).allow(asked)
    assert Permissions(checked([asked])).allow(asked)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_two_keys_never_ask_for_the_same_permission(one, other):
    assert (permission_for(READ, key=one) == permission_for(READ, key=other)) is (one == other)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_a_permission_for_one_key_never_opens_another(granted, asked):
    permissions = Permissions([permission_for(READ, key=granted)])

    assert permissions.allow(permission_for(READ, key=asked)) is (granted == asked)


def test_a_right_that_must_be_named_is_not_given_by_a_wildcard():
    assert Permissions(["*"]).allow("act-as-user")
    assert not Permissions(["*"]).name("act-as-user")
    assert Permissions(["act-as-user"]).name("act-as-user")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "it is empty"),
        ("a::b", "an empty segment"),
        ("a:b*:c", "neither a name nor a single"),
        ("a:b c", "neither a name nor a single"),
        ("a:%zz", "neither a name nor a single"),
        ("a:" + "b" * LONGEST, "longer than"),
    ],
)
def test_what_cannot_be_granted_is_refused_with_the_reason(pattern, problem):
    with pytest.raises(DeclarationError, match=problem):
        checked([pattern])


def test_too_many_permissions_are_refused():
    with pytest.raises(DeclarationError, match="too many"):
        checked(f"a:{number}" for number in range(MOST + 1))


def test_digest_and_equality_follow_the_set_of_patterns():
    one, same, other = Permissions(["a:b", "c:d"]), Permissions(["c:d", "a:b", "a:b"]), Permissions(["a:b"])

    assert one == same
    assert hash(one) == hash(same)
    assert one.digest == same.digest != other.digest
    assert repr(one) == "Permissions(['a:b', 'c:d'])"


def test_a_plain_name_is_its_own_segment():
    assert segment("INV-1") == "INV-1"
    assert segment("Übung") == "Übung"
    assert problem_of("investigation:Übung:read") is None
