"""Feeds as an ASGI application: `FeedApp`, to mount in your own, and `service`, a complete application around it.

`routes` and `service` use Starlette and need `aftercommit[serve]`; `FeedApp` does not.
"""

from aftercommit.feed.app.feed_app import FeedApp, run_lifespan

__all__ = ["FeedApp", "run_lifespan"]
