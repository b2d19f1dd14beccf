"""The Django app: registers checks, and brings outboxes up to their declaration after `migrate`."""

import sys
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate

from aftercommit.consumer.threads import AT_END
from aftercommit.contrib.django.operations import (
    OUTBOXES,
    follow_declaration,
    outboxes_by_database,
    outboxes_on,
    register_check,
)
from aftercommit.schema.references import shape_named


class AftercommitConfig(AppConfig):  # type: ignore[misc]
    """The app `aftercommit`."""

    name = "aftercommit.contrib.django"
    label = "aftercommit"
    verbose_name = "aftercommit"

    def ready(self) -> None:
        """Register checks and signal handlers."""
        checks.register(_check_settings)
        for database, outboxes in outboxes_by_database().items():
            for outbox in outboxes:
                register_check(outbox, database)
        if connections.close_all not in AT_END:
            # Each handler's thread has its own ORM connections, which nothing else closes.
            AT_END.append(connections.close_all)
        post_migrate.connect(_follow_declarations, sender=self, dispatch_uid="aftercommit")


def _check_settings(app_configs: Any = None, **options: Any) -> list[Any]:
    if any(outboxes_by_database().values()):
        return []
    hint = f"Set {OUTBOXES} = ['package.module.outbox'], or take the app out of INSTALLED_APPS."
    return [checks.Warning(f"{OUTBOXES} is empty: no outbox is migrated", hint=hint, id="aftercommit.W003")]


def _follow_declarations(
    sender: Any, using: str, verbosity: int = 1, plan: Any = None, stdout: Any = None, **options: Any
) -> None:
    """After `migrate`: bring scope, indexes and views up to the declaration, even if no migration had to run."""
    # `flush` sends the same signal, without a plan.
    if plan is None or not router.allow_migrate(using, sender.label):
        return
    module, _ = MigrationLoader.migrations_module(sender.label)
    for outbox in outboxes_on(using):
        # In test runs without migrations, this makes the tables.
        if follow_declaration(outbox, using, with_migrations=module is None) and verbosity >= 1:
            (stdout or sys.stdout).write(f"Brought outbox {shape_named(outbox).schema!r} up to its declaration\n")
