"""Checks of the log's life: whether it goes on where it should, and whether somebody has read further than it goes."""

from collections.abc import Iterator

import psycopg
from psycopg import sql

from aftercommit.doctor.findings import Case, Check, Trouble, problem, warning
from aftercommit.postgres import lives
from aftercommit.postgres.catalog import asking
from aftercommit.text import plural

_RESTORED = "start a relay, which begins the new life, or run `aftercommit restored`"


def _life(case: Case) -> Iterator[Trouble]:
    for number, *told in case.rows("present_life"):
        identity = [_told(case, question) for question in ("server_identifier", "server_timeline")]
        reason = lives.difference(lives.Server(*told[:4]), lives.Server(*identity, *told[4:]))
        if reason is not None:
            yield problem(f"{reason}; life {number} of the log is over, and the next has not begun", _RESTORED)
    yield from _places(case)


def _told(case: Case, question: str) -> int | None:
    """What the server says about itself, where this user may ask."""
    try:
        with case.connection.transaction():
            return next((int(row[0]) for row in case.rows(question)), None)
    except (*lives.NOT_TOLD, psycopg.errors.InternalError_):
        return None


def _places(case: Case) -> Iterator[Trouble]:
    """Bookmarks and places of bots in this database, which may be of another log, where this one has never been."""
    for schema, table, name, place in case.rows("doctor_place_tables"):
        parts = {"table": sql.Identifier(schema, table), "reader": sql.Identifier(name), "place": sql.Identifier(place)}
        found = asking(case.connection)(case.statements.render("doctor_places", **parts), {})
        if found:
            first, number = found[0]
            yield warning(
                f"{plural(len(found), 'place')} in {schema}.{table} lie past the end of the log, for example "
                f"{first!r:.60} at {number}: the log was restored and they were not, or they belong to another log",
                "if they belong to this log, run `aftercommit restored`: their readers then go on with new events",
            )


LIVES = (Check("life", "no restore goes unnoticed, and nobody has read past the end of the log", _life),)
