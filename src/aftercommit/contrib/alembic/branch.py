"""The branch `aftercommit`: one revision for each numbered migration, applied to the outboxes of the project.

The configuration names them: `aftercommit_outboxes = shop.events:outbox billing.events:outbox` in alembic.ini, or a
list under that name in `config.attributes`, where env.py can put objects. The newest revision makes what an outbox
declares; if a declaration changes later, add a revision of your own.
"""

from collections.abc import Callable, Sequence

from alembic import op
from alembic.config import Config

from aftercommit.contrib.alembic.operations import DropOutbox, MigrateOutbox
from aftercommit.errors import DatabaseError, DeclarationError
from aftercommit.schema.numbered import numbered
from aftercommit.schema.references import Declared, shape_named

OUTBOXES = "aftercommit_outboxes"
DROP_ALL_EVENTS = "aftercommit_drop_all_events"


def steps_of(version: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """The upgrade and downgrade of a revision, which is one numbered migration for every outbox.

    A downgrade leaves the tables as they are, because older code can work with them, unless the migration says
    otherwise. The downgrade of the first migration drops all events, if the project allows it.
    """

    def upgrade() -> None:
        for outbox in _named(_config()):
            op.invoke(MigrateOutbox(outbox, after=numbered(version)[1], to=version))

    def downgrade() -> None:
        config = _config()
        migration, _ = numbered(version)
        if version == 1:
            _drop(config)
        elif migration.needs_code == version:
            raise DatabaseError(
                f"cannot downgrade migration {migration}: older code cannot work with its tables. Restore a backup "
                "from before the upgrade, or stay at this version"
            )

    return upgrade, downgrade


def outboxes_of(config: Config) -> Sequence[Declared]:
    """The outboxes that the configuration names; may be empty."""
    given = config.attributes.get(OUTBOXES) or config.get_main_option(OUTBOXES) or ()
    return given.replace(",", " ").split() if isinstance(given, str) else tuple(given)


def _drop(config: Config) -> None:
    said = config.attributes.get(DROP_ALL_EVENTS) or config.get_main_option(DROP_ALL_EVENTS) or ""
    for outbox in _named(config):
        if str(said).lower() not in ("true", "yes", "on", "1"):
            raise DatabaseError(
                f"a downgrade would drop schema {shape_named(outbox).schema!r} with all its events: to do that, set "
                f"{DROP_ALL_EVENTS} = true in the Alembic configuration; otherwise leave the tables as they are"
            )
        op.invoke(DropOutbox(outbox, drop_all_events=True))


def _named(config: Config) -> Sequence[Declared]:
    if not (found := outboxes_of(config)):
        raise DeclarationError(
            f"the branch 'aftercommit' has no outbox to migrate: set {OUTBOXES} = package.module:name in the Alembic "
            f"configuration, or config.attributes[{OUTBOXES!r}] in env.py"
        )
    return found


def _config() -> Config:
    config = op.get_context().config
    if config is None:
        raise DeclarationError("run the branch 'aftercommit' with the alembic command, or with alembic.command")
    return config
