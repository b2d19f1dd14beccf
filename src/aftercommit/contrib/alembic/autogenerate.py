"""Autogenerate and `alembic check` ignore the tables of the outbox, and propose to migrate an outbox that is behind.

They propose it only for outboxes that the option `aftercommit_outboxes` names.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import UpgradeOps
from sqlalchemy import Connection, text

from aftercommit.contrib.alembic.branch import outboxes_of
from aftercommit.contrib.alembic.operations import DropOutbox, KeepOutbox, MigrateOutbox
from aftercommit.errors import DeclarationError
from aftercommit.postgres.shape import AUDIENCE, ENGINE_TABLES, PARTITION_NAME
from aftercommit.schema import migrate
from aftercommit.schema.catalog import Ask
from aftercommit.schema.references import Declared, shape_named

IncludeObject = Callable[[Any, str | None, str, bool, Any], bool]
_VERSIONS = Path(__file__).with_name("versions")
_PARAMETER = re.compile(r"%\((\w+)\)s")


def include_object(outbox: Declared, also: IncludeObject | None = None) -> IncludeObject:
    """A filter for `context.configure(include_object=…)`, so that autogenerate does not propose to drop our tables.

    `also` is your own filter, or that of another outbox, for everything else.
    """
    shape = shape_named(outbox)
    ours = ENGINE_TABLES | {view.name for view in shape.views} | {"event_outbox", "event_log", AUDIENCE}

    def is_ours(table: str) -> bool:
        return table in ours or PARTITION_NAME.fullmatch(table) is not None

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        table = thing if kind == "table" else getattr(thing, "table", None)
        # Alembic leaves out the schema if it is the default one of the search path.
        if table is not None and (table.schema or "public") == shape.schema and is_ours(table.name):
            return False
        return True if also is None else also(thing, name, kind, reflected, compare_to)

    return include


@comparators.dispatch_for("schema")
def _propose(context: AutogenContext, operations: UpgradeOps, schemas: Any) -> None:
    config = context.migration_context.config
    if config is None or context.connection is None:
        return
    # None if a program calls Alembic, and not its command line.
    command = config.cmd_opts.cmd[0].__name__ if config.cmd_opts is not None else None
    if command == "revision":
        _refuse_our_folder(context.migration_context.opts["revision_context"])
    for outbox in outboxes_of(config):
        found = migrate.status_by(asking(context.connection), shape_named(outbox))
        if not found.is_current and not found.newer:
            operations.ops.append(MigrateOutbox(outbox, is_new=not found.applied))


def _refuse_our_folder(asked: Any) -> None:
    """Alembic writes a revision into the folder of the one before it: in a new project, that would be ours."""
    if asked.command_args.get("version_path"):
        return
    heads = asked.command_args.get("head") or "head"
    if heads == "head" and len(asked.script_directory.get_heads()) > 1:
        # Alembic itself refuses to choose between several heads.
        return
    followed = asked.script_directory.get_revisions(heads)
    if any(Path(each.path).parent == _VERSIONS for each in followed if each is not None):
        raise DeclarationError(
            f"the new revision would follow one of aftercommit's, and Alembic would write it into {_VERSIONS}: begin "
            "your own branch with `alembic revision --head base --version-path PATH`, PATH being your versions folder"
        )


def asking(connection: Connection) -> Ask:
    """Runs queries on a SQLAlchemy connection, with any driver."""

    def ask(query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        # Escape colons, then turn our placeholders into SQLAlchemy's.
        ours = _PARAMETER.sub(r":\1", query.replace(":", "\\:"))
        return connection.execute(text(ours), dict(parameters)).fetchall()

    return ask


@renderers.dispatch_for(MigrateOutbox)
def _render_migrate(context: AutogenContext, operation: MigrateOutbox) -> str:
    return f"op.migrate_outbox({operation.outbox!r})"


@renderers.dispatch_for(DropOutbox)
def _render_drop(context: AutogenContext, operation: DropOutbox) -> str:
    return f"op.drop_outbox({operation.outbox!r})"


@renderers.dispatch_for(KeepOutbox)
def _render_keep(context: AutogenContext, operation: KeepOutbox) -> list[str]:
    return []
