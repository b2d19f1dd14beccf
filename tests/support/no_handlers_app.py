"""An outbox whose handlers are in a module that nobody has imported, as `tests.support.no_handlers_app:outbox`."""

from tests.support.shop import shop_outbox

outbox = shop_outbox()
