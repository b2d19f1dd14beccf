"""The outbox in your Django migrations: the same statements as `aftercommit migrate up`, in Django's transaction.

Most projects need the settings of `aftercommit.contrib.django` only: the app has the migrations. To migrate the outbox
in a migration of your own, write there:

    operations = [MigrateOutbox("shop.events.outbox")]

`sqlmigrate`, test databases, routers and all of Django's PostgreSQL drivers work. Needs the extra `django`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aftercommit.errors import AftercommitError, DatabaseError, DeclarationError, MissingExtra, SchemaDrift
from aftercommit.postgres.blocks import without_purpose
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements
from aftercommit.schema import migrate
from aftercommit.schema.catalog import Ask
from aftercommit.schema.numbered import numbered
from aftercommit.schema.references import Declared, shape_named

try:
    from django.conf import settings
    from django.core import checks
    from django.db import DatabaseError as DjangoDatabaseError
    from django.db import connections, router, transaction
    from django.db.migrations.operations.base import Operation, OperationCategory
except ImportError as missing:
    raise MissingExtra("django", "django") from missing

OUTBOXES = "AFTERCOMMIT_OUTBOXES"
DROP_ALL_EVENTS = "AFTERCOMMIT_DROP_ALL_EVENTS"
_SHOULD_BE = "a list such as ['shop.events.outbox'], or for several databases {'default': [...], 'billing': [...]}"


def outboxes_on(database: str) -> Sequence[Declared]:
    """The outboxes of one of the project's databases; a plain list in the settings is for the default one."""
    return outboxes_by_database().get(database, ())


def outboxes_by_database() -> Mapping[str, Sequence[Declared]]:
    """The setting AFTERCOMMIT_OUTBOXES, by database."""
    given = getattr(settings, OUTBOXES, ())
    by_database = given if isinstance(given, Mapping) else {"default": given}
    for database, outboxes in by_database.items():
        if not isinstance(outboxes, list | tuple):
            raise DeclarationError(
                f"{OUTBOXES} has {outboxes!r:.100} for database {database!r}: it should be {_SHOULD_BE}"
            )
        if database not in connections:
            raise DeclarationError(f"{OUTBOXES} names database {database!r}, which DATABASES does not have")
    return by_database


class ApplyMigration(Operation):  # type: ignore[misc]
    """One numbered migration, for every outbox of the database. The migrations of the app consist of it.

    The newest one also makes what the outboxes declare. A reverse migration leaves the tables as they are, because
    older code can work with them; that of the first one drops all events, if AFTERCOMMIT_DROP_ALL_EVENTS allows it.
    """

    category = OperationCategory.SQL
    reduces_to_sql = True

    def __init__(self, version: int) -> None:
        self.version = version

    @property
    def reversible(self) -> bool:
        """Whether Django may reverse it."""
        if self.version == 1:
            return bool(getattr(settings, DROP_ALL_EVENTS, False))
        return numbered(self.version)[0].needs_code < self.version

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """The form that Django writes into a migration file."""
        return type(self).__qualname__, [self.version], {}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Changes no Django models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make what is missing, on databases that the routers allow."""
        for shape in self._shapes(app_label, schema_editor):
            _execute(schema_editor, list(migrate.statements(shape, numbered(self.version)[1], self.version)))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop everything if it is the first migration; otherwise leave the tables."""
        for shape in self._shapes(app_label, schema_editor) if self.version == 1 else ():
            _execute(schema_editor, [_drop_everything(shape)])

    def describe(self) -> str:
        """The text that `migrate --plan` prints."""
        return f"Apply migration {numbered(self.version)[0]} to every outbox of {OUTBOXES}"

    def _shapes(self, app_label: str, schema_editor: Any) -> list[Shape]:
        alias = schema_editor.connection.alias
        allowed = router.allow_migrate(alias, app_label)
        return [shape_named(outbox) for outbox in outboxes_on(alias)] if allowed else []


class MigrateOutbox(Operation):  # type: ignore[misc]
    """Brings the tables of an outbox up to this version of aftercommit and to its declaration.

    Add a migration with it after an upgrade of aftercommit, and after a change of the outbox's scope, indexes or views.
    Name the outbox by its path, so that Django can squash the migration. Without `drop_all_events=True` the operation
    cannot be reversed; with it, the reverse drops the schema with everything in it.
    """

    category = OperationCategory.SQL
    reduces_to_sql = True

    def __init__(self, outbox: Declared, drop_all_events: bool = False) -> None:
        self.outbox = outbox
        self.drop_all_events = drop_all_events
        self.reversible = drop_all_events

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """The form that Django writes into a migration file."""
        options = {"drop_all_events": True} if self.drop_all_events else {}
        return type(self).__qualname__, [self.outbox], options

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Changes no Django models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make what is missing, on databases that the routers allow."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            _execute(schema_editor, list(migrate.statements(shape_named(self.outbox))))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop everything; Django calls this only if `drop_all_events` is set."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            _execute(schema_editor, [_drop_everything(shape_named(self.outbox))])

    def describe(self) -> str:
        """The text that `migrate --plan` prints."""
        return f"Bring the outbox {shape_named(self.outbox).schema!r} up to date"


def register_check(outbox: Declared, database: str = "default") -> Callable[..., list[Any]]:
    """Let `manage.py check --database` and `migrate` warn if the tables of the outbox are behind; returns the check.

    Call it in `AppConfig.ready()`.
    """

    def check_outbox(app_configs: Any = None, databases: Sequence[str] | None = None, **options: Any) -> list[Any]:
        return _warnings(outbox, database) if database in (databases or ()) else []

    checks.register(check_outbox, checks.Tags.database)
    return check_outbox


def follow_declaration(outbox: Declared, database: str, *, with_migrations: bool = False) -> bool:
    """After `manage.py migrate`, make what an outbox declares and lacks; returns whether there was something to do.

    Pending migrations are left to Django, unless `with_migrations` says that it does not run them.
    """
    shape = shape_named(outbox)
    found = migrate.status_by(_ask(database), shape)
    if found.is_current or found.newer or (found.pending and not with_migrations):
        return False
    if found.conflicts:
        raise SchemaDrift("; ".join(found.conflicts))
    with transaction.atomic(using=database), connections[database].schema_editor() as schema_editor:
        _execute(schema_editor, list(migrate.statements(shape)))
    return True


def _warnings(outbox: Declared, database: str) -> list[Any]:
    shape = shape_named(outbox)
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


def _ask(database: str) -> Ask:
    def ask(query: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        with connections[database].cursor() as cursor:
            cursor.execute(query, parameters)
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows

    return ask


def _drop_everything(shape: Shape) -> str:
    return without_purpose(Statements(shape).render("drop_everything"))


def _execute(schema_editor: Any, statements: Sequence[str]) -> None:
    connection = schema_editor.connection
    if connection.vendor != "postgresql":
        raise DatabaseError(
            f"the Django database {connection.alias!r} is {connection.vendor}: aftercommit needs PostgreSQL. Keep the "
            "migration away from it with a database router (allow_migrate)"
        )
    for statement in statements:
        # None, so that the driver does not look for placeholders.
        schema_editor.execute(statement, params=None)
