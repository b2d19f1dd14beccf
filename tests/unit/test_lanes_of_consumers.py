"""How the checkpoints of lanes become those of other lanes."""

import random

import pytest

from aftercommit.consumer.lanes import redivide
from aftercommit.errors import DeclarationError
from aftercommit.outbox.declaration import Outbox
from aftercommit.postgres.shape import LANES


@pytest.mark.parametrize("lanes", [1, 2, 3, 8, 63, 64])
def test_one_checkpoint_becomes_that_of_every_lane(lanes: int) -> None:
    assert redivide([7], lanes) == ([7] * lanes, True)


def test_twice_as_many_lanes_keep_each_checkpoint() -> None:
    assert redivide([5, 9], 4) == ([5, 9, 5, 9], True)


def test_lanes_at_different_positions_cannot_be_joined_exactly() -> None:
    assert redivide([5, 9], 1) == ([5], False)
    assert redivide([5, 5], 1) == ([5], True)


@pytest.mark.parametrize("seed", range(20))
def test_no_aggregate_begins_after_its_old_checkpoint(seed: int) -> None:
    chance = random.Random(seed)
    old = [chance.randrange(5) for _ in range(chance.randint(1, LANES))]
    lanes = chance.randint(1, LANES)
    new, is_exact = redivide(old, lanes)
    begins = [(new[hashed % lanes], old[hashed % len(old)]) for hashed in range(LANES)]
    assert all(after <= before for after, before in begins)
    assert is_exact == all(after == before for after, before in begins)


@pytest.mark.parametrize("lanes", [0, -1, 65, 1.5, None, "8"])
def test_a_number_of_lanes_that_cannot_be_is_refused(lanes: object) -> None:
    outbox = Outbox(schema="shop")
    with pytest.raises(DeclarationError, match="must be a number from 1 to 64"):
        outbox.consumer("index", lanes=lanes)  # type: ignore[arg-type]
    assert outbox.consumers == {}


def test_the_name_of_a_divided_consumer_leaves_room_for_the_number_of_a_lane() -> None:
    outbox = Outbox(schema="shop")
    assert outbox.consumer("x" * 97, lanes=64).lanes == 64
    with pytest.raises(DeclarationError, match="at most 97 characters"):
        outbox.consumer("y" * 98, lanes=2)
    assert outbox.consumer("y" * 100).lanes == 1
