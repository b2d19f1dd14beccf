"""aftercommit as a Django app: its migrations make the tables, and `manage.py aftercommit` is the command line.

    INSTALLED_APPS = [..., "aftercommit.contrib.django"]
    AFTERCOMMIT_OUTBOXES = ["shop.events.outbox"]

Needs the extra `django`.
"""

from typing import TYPE_CHECKING

from aftercommit.lazy import lazy

if TYPE_CHECKING:
    from aftercommit.contrib.django.operations import MigrateOutbox, register_check
else:
    __getattr__ = lazy(__name__, {"aftercommit.contrib.django.operations": ("MigrateOutbox", "register_check")})

__all__ = ["MigrateOutbox", "register_check"]
