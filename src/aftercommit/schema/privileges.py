"""The privileges that a role needs to publish, relay and consume.

With them, the role can read the log and append to it, but not update or delete it, and cannot change table definitions.
"""

from collections.abc import Mapping

from psycopg import sql

from aftercommit.postgres.blocks import without_purpose
from aftercommit.postgres.shape import AUDIENCE, Shape, checked_identifier
from aftercommit.postgres.statements import Statements
from aftercommit.schema.views import views

RUNTIME: Mapping[str, str] = {
    "migration": "select",
    "head": "select, update",
    "life": "select, insert, update",
    "outbox": "select, insert, update, delete",
    "outbox_seq_seq": "select",
    "log": "select, insert",
    "stream": "select, insert, update",
    "relay": "select, insert, update, delete",
    "lane": "select, update",
    "published_key": "select, insert, delete",
    "consumer": "select, insert, update, delete",
    "processed_events": "select, insert, update, delete",
    "dead_letter_events": "select, insert, update, delete",
    "operation": "select, insert, update, delete",
    "operation_event": "select, insert, update, delete",
    "upkeep": "select, insert, update",
    "service_token": "select, insert, update",
    "revoked_token": "select, insert, update, delete",
    "rate_window": "select, insert, update, delete",
    "rate_log": "select, insert, update, delete",
    "version_wait": "select, insert, update, delete",
    "consumer_worker": "select, insert, update, delete",
}


def grants(shape: Shape, role: str) -> list[str]:
    """The statements that let a role do everything except migrate and drop old partitions. Run them as the owner.

    Run them again after an upgrade that adds a table; repeating them is harmless.
    """
    statements = Statements(shape)
    grantee = sql.Identifier(checked_identifier(role, "role"))
    found = [statements.render("grant_on_schema", role=grantee)]
    relations = dict(RUNTIME)
    if shape.audience:
        relations[AUDIENCE] = RUNTIME["log"]
    for view in views(shape):
        relations[view.name] = "select, insert" if view.writable else "select"
    for relation, privileges in relations.items():
        found.append(
            statements.render(
                "grant_on_relation", privileges=sql.SQL(privileges), relation=sql.Identifier(relation), role=grantee
            )
        )
    found.append(statements.render("grant_on_function", function=sql.Identifier("make_partitions"), role=grantee))
    return [without_purpose(statement) for statement in found]
