"""Feeds as an application: `FeedApp`, in a framework of your own or as the whole `service` that stands around it.

`routes` and `service` are for Starlette, and need `aftercommit[serve]`; `FeedApp` needs nothing.
"""

from aftercommit.feed.app.feed_app import FeedApp, run_lifespan

__all__ = ["FeedApp", "run_lifespan"]
