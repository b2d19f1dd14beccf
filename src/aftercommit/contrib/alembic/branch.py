"""The branch `aftercommit`: one revision for each numbered migration, applied to the outboxes that the project names.

The project's configuration says which they are: `aftercommit_outboxes = shop.events:outbox billing.events:outbox` in
alembic.ini, or a list under that name in `config.attributes`, where env.py can put objects. What an outbox declares is
made with the newest revision; a declaration that changes later is for a revision of the project's own.
"""

from collections.abc import Sequence

from alembic import op
from alembic.config import Config

from aftercommit.contrib.alembic.operations import DropOutbox, MigrateOutbox
from aftercommit.errors import DatabaseError, DeclarationError
from aftercommit.schema.numbered import migrations
from aftercommit.schema.references import Declared, shape_named

OUTBOXES = "aftercommit_outboxes"
DROP_ALL_EVENTS = "aftercommit_drop_all_events"


def upgrade_to(version: int) -> None:
    """The upgrade of a revision: one numbered migration, for every outbox."""
    for outbox in _named(_config()):
        op.invoke(MigrateOutbox(outbox, after=version - 1, to=version))


def downgrade_below(version: int) -> None:
    """The downgrade of a revision: tables stay, unless it is the first one and the project allows to drop all events.

    The way back from a migration is the code before it, which can work with the new tables where the migration says so.
    """
    config = _config()
    migration = migrations()[version - 1]
    if version == 1:
        _drop(config)
    elif migration.needs_code == version:
        raise DatabaseError(
            f"migration {migration} cannot be taken back: code from before it cannot work with what it made. Restore a "
            "backup from before the upgrade, or stay"
        )


def outboxes_of(config: Config) -> Sequence[Declared]:
    """The outboxes that a project names; none if it uses neither the branch nor autogenerate for them."""
    given = config.attributes.get(OUTBOXES) or config.get_main_option(OUTBOXES) or ()
    return given.replace(",", " ").split() if isinstance(given, str) else tuple(given)


def _drop(config: Config) -> None:
    said = config.attributes.get(DROP_ALL_EVENTS) or config.get_main_option(DROP_ALL_EVENTS) or ""
    for outbox in _named(config):
        if str(said).lower() not in ("true", "yes", "on", "1"):
            raise DatabaseError(
                f"a downgrade would drop schema {shape_named(outbox).schema!r} with all its events: set "
                f"{DROP_ALL_EVENTS} = true in the Alembic configuration if that is meant, or leave the tables where "
                "they are"
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
        raise DeclarationError("the branch 'aftercommit' is run by the alembic command, or by alembic.command")
    return config
