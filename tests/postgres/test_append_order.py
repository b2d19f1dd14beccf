"""Positions follow seq, however the rows lie in the outbox, and are gapless even if a seq was written twice."""

from collections.abc import AsyncIterator

import pytest

from aftercommit.relay.lanes import Lanes
from aftercommit.relay.settle import Settlement
from tests.support.shop import OrderPlaced, Shop

LANES = range(64)
ALL = 1000
RENUMBER = """
    with old as (delete from outbox returning *)
    insert into outbox (id, seq, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id)
    overriding system value
    select id, {seq}, aggregate_type, aggregate_id, event_type, correlation_id, payload, tenant_id from old
    order by seq
"""


@pytest.fixture
async def settlement(shop: Shop) -> AsyncIterator[Settlement]:
    """That of a relay which holds every lane."""
    lanes = Lanes(shop.outbox.shape, "relay", 600.0)
    made = Settlement(shop.outbox, lanes.token)
    connection = await shop.database.connect()
    await lanes.tick(connection)
    await made.recognise_server(connection)
    yield made
    await connection.close()


async def append(shop: Shop, settlement: Settlement) -> None:
    connection = await shop.database.connect()
    await settlement.append_due(connection, LANES, 0, ALL)
    await connection.close()


@pytest.mark.parametrize(("seq", "numbers"), [("seq", range(50)), ("1000 - seq", range(49, -1, -1))])
async def test_positions_follow_seq_and_not_the_place_of_a_row(
    shop: Shop, settlement: Settlement, seq: str, numbers: range
) -> None:
    shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(50)))
    shop.rows(RENUMBER.format(seq=seq))

    await append(shop, settlement)

    found = shop.rows("select position, (payload ->> 'number')::int from log order by position")
    assert found == list(zip(range(1, 51), numbers, strict=True))


async def test_events_that_share_a_seq_get_positions_of_their_own(shop: Shop, settlement: Settlement) -> None:
    shop.publish(*(OrderPlaced(f"o-{number}", number) for number in range(30)))
    shop.rows(RENUMBER.format(seq="1 + seq / 3"))

    await append(shop, settlement)

    assert shop.rows("select position from log order by seq, id") == [(position,) for position in range(1, 31)]
    assert shop.value("select position from head") == 30
