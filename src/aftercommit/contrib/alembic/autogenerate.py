"""Autogenerate and `alembic check`: our tables are left alone, and an outbox that is behind is proposed to be migrated.

The latter only where the option `aftercommit_outboxes` names outboxes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.config import Config
from alembic.operations.ops import UpgradeOps
from sqlalchemy import Connection, text

from aftercommit.contrib.alembic.branch import outboxes_of
from aftercommit.contrib.alembic.operations import DropOutbox, KeepOutbox, MigrateOutbox
from aftercommit.errors import DeclarationError
from aftercommit.postgres.shape import AUDIENCE, ENGINE_TABLES, PARTITION_NAME, Shape
from aftercommit.schema import migrate
from aftercommit.schema.catalog import Ask
from aftercommit.schema.references import Declared, shape_named

IncludeObject = Callable[[Any, str | None, str, bool, Any], bool]
_VERSIONS = Path(__file__).with_name("versions")
_PARAMETER = re.compile(r"%\((\w+)\)s")


def include_object(outbox: Declared, also: IncludeObject | None = None) -> IncludeObject:
    """A filter for `context.configure(include_object=…)`, so that autogenerate does not propose to drop our tables.

    `also` is a filter of your own, or that of another outbox, asked about everything else.
    """
    shape = shape_named(outbox)
    ours = ENGINE_TABLES | {view.name for view in shape.views} | {"event_outbox", "event_log", AUDIENCE}

    def is_ours(table: str) -> bool:
        return table in ours or PARTITION_NAME.fullmatch(table) is not None

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        table = thing if kind == "table" else getattr(thing, "table", None)
        if table is not None and _is_here(table, shape) and is_ours(table.name):
            return False
        return True if also is None else also(thing, name, kind, reflected, compare_to)

    return include


def _is_here(table: Any, shape: Shape) -> bool:
    # Alembic leaves the schema out where it is the default one of the search path.
    return (table.schema or "public") == shape.schema


@comparators.dispatch_for("schema")
def _propose(context: AutogenContext, operations: UpgradeOps, schemas: Any) -> None:
    config = context.migration_context.config
    if config is None or context.connection is None:
        return
    if _command(config) == "revision":
        _refuse_our_folder(context.migration_context.opts["revision_context"])
    for outbox in outboxes_of(config):
        found = migrate.status_by(asking(context.connection), shape_named(outbox))
        if not found.is_current and not found.newer:
            operations.ops.append(MigrateOutbox(outbox, is_new=not found.applied))


def _command(config: Config) -> str | None:
    """What the alembic command was told to do; None where a program calls Alembic."""
    return config.cmd_opts.cmd[0].__name__ if config.cmd_opts is not None else None


def _refuse_our_folder(asked: Any) -> None:
    """Alembic writes a revision beside the one it follows: in a project that has none of its own yet, beside ours."""
    if asked.command_args.get("version_path"):
        return
    heads = asked.command_args.get("head") or "head"
    if heads == "head" and len(asked.script_directory.get_heads()) > 1:
        # Alembic asks which one is meant.
        return
    followed = asked.script_directory.get_revisions(heads)
    if any(Path(each.path).parent == _VERSIONS for each in followed if each is not None):
        raise DeclarationError(
            f"the new revision would follow one of aftercommit's, and Alembic would write it into {_VERSIONS}: begin a "
            "branch of your own with `alembic revision --head base --version-path PATH`, where PATH is your folder of "
            "versions"
        )


def asking(connection: Connection) -> Ask:
    """Questions on a connection of SQLAlchemy's, whatever driver it has."""

    def ask(query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        # Every colon of ours is a colon; only our placeholders become SQLAlchemy's.
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
