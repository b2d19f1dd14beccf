"""An outbox whose handlers are in a module that nobody has imported, as `tests.no_handlers_app:outbox`."""

from tests.shop import shop_outbox

outbox = shop_outbox()
