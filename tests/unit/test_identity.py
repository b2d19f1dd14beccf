"""Event ids are UUIDs like any other, and nearly in the order in which they were made."""

import copy
import pickle
import time
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from aftercommit.event.identity import uuid7, uuid7s


def test_an_id_is_a_uuid_of_version_seven_and_of_this_moment() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000

    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before <= made.int >> 80 <= after


@given(st.integers(0, 300))
def test_many_ids_are_all_different_and_of_the_same_kind(count: int) -> None:
    made = uuid7s(count)

    assert len(set(made)) == len(made) == count
    assert {one.version for one in made} <= {7}
    assert {one.variant for one in made} <= {"specified in RFC 4122"}


def test_the_random_bits_are_random() -> None:
    """Over a thousand ids every one of the 74 bits was set and was not."""
    made = [one.int for one in uuid7s(1000)]
    free = (0xFFF << 64) | ((1 << 62) - 1)

    ever = always = made[0]
    for one in made:
        ever, always = ever | one, always & one
    assert ever & free == free
    assert always & free == 0


def test_an_id_cannot_be_told_from_one_made_by_the_standard_library() -> None:
    made = uuid7s(1)[0]
    same = UUID(int=made.int)

    assert made == same
    assert hash(made) == hash(same)
    assert (str(made), made.hex, made.bytes, repr(made)) == (str(same), same.hex, same.bytes, repr(same))
    assert made.is_safe is same.is_safe
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made  # noqa: S301
    assert sorted([made, UUID(int=0)]) == [UUID(int=0), made]
