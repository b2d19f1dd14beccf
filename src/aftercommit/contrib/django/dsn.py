"""The DSN of a Django connection, for programs that connect by themselves."""

from typing import Any

from psycopg import pq
from psycopg.conninfo import make_conninfo

from aftercommit.errors import DatabaseError


def dsn_of(connection: Any) -> str:
    """The DSN for Django's settings: NAME, USER and so on, and the OPTIONS that libpq knows."""
    if connection.vendor != "postgresql":
        raise DatabaseError(
            f"the Django database {connection.alias!r} is {connection.vendor}: aftercommit needs PostgreSQL, choose "
            "another one with --database"
        )
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    parameters = {name: value for name, value in connection.get_connection_params().items() if name in known}
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        # In `options`, a backslash escapes the next character and a blank ends the value.
        escaped = "".join(f"\\{character}" if character in "\\ " else character for character in role)
        parameters["options"] = f"{parameters.get('options') or ''} -c role={escaped}".strip()
    return make_conninfo("", **parameters)
