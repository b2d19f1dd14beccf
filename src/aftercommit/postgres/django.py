"""The outbox inside your Django migrations: the same statements as `aftercommit migrate up`, in Django's transaction.

    from django.db import migrations
    from aftercommit.postgres.django import MigrateOutbox

    class Migration(migrations.Migration):
        operations = [MigrateOutbox("shop.events.outbox")]

`sqlmigrate`, test databases, routers and any driver that Django has work alike. Needs the extra `django`; nothing here
decides when to migrate.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aftercommit.errors import AftercommitError, DatabaseError, MissingExtra
from aftercommit.postgres import migrate
from aftercommit.postgres.blocks import without_purpose
from aftercommit.postgres.shape import HasShape, Shape, shape_of
from aftercommit.postgres.statements import Statements

try:
    from django.core import checks
    from django.db import DatabaseError as DjangoDatabaseError
    from django.db import connections, router
    from django.db.migrations.operations.base import Operation, OperationCategory
    from django.utils.module_loading import import_string
except ImportError as missing:
    raise MissingExtra("django", "django") from missing

Declared = HasShape | Shape | str


class MigrateOutbox(Operation):  # type: ignore[misc]
    """Brings the tables of an outbox up to this version of aftercommit and to its declaration.

    Add a migration with it after an upgrade of aftercommit and after a change of the outbox's scope, indexes or views:
    each statement acts only where something is missing. The outbox is best named by its path, which Django can write
    into a squashed migration. Without `drop_all_events=True` the operation cannot be reversed; with it, reversing drops
    the schema with everything in it.
    """

    category = OperationCategory.SQL
    reduces_to_sql = True

    def __init__(self, outbox: Declared, drop_all_events: bool = False) -> None:
        self.outbox = outbox
        self.drop_all_events = drop_all_events
        self.reversible = drop_all_events

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """How Django writes this operation into a file."""
        options = {"drop_all_events": True} if self.drop_all_events else {}
        return type(self).__qualname__, [self.outbox], options

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No model of Django's changes."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make what is missing, on databases that the routers allow."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            _execute(schema_editor, list(migrate.statements(_shape(self.outbox))))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop everything; Django calls this only where `drop_all_events` allows it."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            _execute(schema_editor, [without_purpose(Statements(_shape(self.outbox)).render("drop_everything"))])

    def describe(self) -> str:
        """What `migrate` prints with a plan."""
        return f"Bring the outbox {_shape(self.outbox).schema!r} up to date"


def register_check(outbox: Declared, database: str = "default") -> Callable[..., list[Any]]:
    """Have `manage.py check --database` and `migrate` warn when the outbox's tables are behind; returns the check.

    Call it in `AppConfig.ready()`.
    """

    def check_outbox(app_configs: Any = None, databases: Sequence[str] | None = None, **options: Any) -> list[Any]:
        return _warnings(outbox, database) if database in (databases or ()) else []

    checks.register(check_outbox, checks.Tags.database)
    return check_outbox


def _warnings(outbox: Declared, database: str) -> list[Any]:
    shape = _shape(outbox)
    try:
        found = migrate.status_by(_ask(database), shape)
    except (AftercommitError, DjangoDatabaseError) as problem:
        return [checks.Warning(f"outbox {shape.schema!r}: {problem}", obj=database, id="aftercommit.W002")]
    if found.is_current:
        return []
    lacking = [f"migration {migration} is missing" for migration in found.pending]
    return [
        checks.Warning(
            f"outbox {shape.schema!r} is behind: {'; '.join([*lacking, *found.declaration])}",
            hint="Add a migration with MigrateOutbox(…) if there is none, and run `manage.py migrate`.",
            obj=database,
            id="aftercommit.W001",
        )
    ]


def _ask(database: str) -> Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]:
    def ask(query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        with connections[database].cursor() as cursor:
            cursor.execute(query, parameters)
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows

    return ask


def _shape(outbox: Declared) -> Shape:
    return shape_of(import_string(outbox) if isinstance(outbox, str) else outbox)


def _execute(schema_editor: Any, statements: Sequence[str]) -> None:
    connection = schema_editor.connection
    if connection.vendor != "postgresql":
        raise DatabaseError(
            f"the Django database {connection.alias!r} is {connection.vendor}: aftercommit needs PostgreSQL. Keep the "
            "migration away from it with a database router (allow_migrate)"
        )
    for statement in statements:
        # None, so that the driver looks for no placeholders.
        schema_editor.execute(statement, params=None)
