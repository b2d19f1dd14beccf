"""An application that forgot an upcaster, as `tests.support.unfinished_app:outbox`."""

from tests.support.shop import OrderPlaced, shop_outbox

outbox = shop_outbox()
outbox.declare("order.moved", version=3)
outbox.upcast("order.moved", from_version=1)(lambda payload: payload)


@outbox.on(OrderPlaced, consumer="index")
async def index(event: object) -> None:
    """Never called."""
