"""Loads the SQL files once, and renders them with the schema and the declared columns of an outbox."""

import re
from functools import cache
from importlib.resources import files

from psycopg import sql

from aftercommit.postgres.shape import Shape

_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def _texts() -> dict[str, str]:
    """All queries by name."""
    found: dict[str, str] = {}
    for path in sorted(files(__package__).joinpath("queries").iterdir(), key=lambda path: path.name):
        parts = _NAMED.split(path.read_text())
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise AssertionError(f"the SQL files have two queries {name!r}")
            found[name] = text.strip()
    return found


@cache
def _part(name: str) -> str:
    """A query without the lines that say what it is for, and without indentation."""
    return "\n".join(line.strip() for line in _texts()[name].splitlines() if not line.startswith("--"))


def scope_list(shape: Shape, alias: str = "") -> sql.Composable:
    """`, "a", "b"` for the declared columns (scope, then audience), each with an optional alias."""
    prefix = f"{alias}." if alias else ""
    parts = [sql.SQL(", " + prefix) + sql.Identifier(name) for name in shape.carried]
    return sql.Composed(parts)


class Statements:
    """The queries of one outbox, rendered on first use."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._rendered: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        rendered = self._rendered.get(name)
        if rendered is None:
            rendered = self._rendered[name] = self.render(name).encode()
        return rendered

    def part(self, name: str, **parts: sql.Composable) -> sql.SQL:
        """A query as a part of another query."""
        return sql.SQL(self._composed(_part(name), **parts))

    def short(self, name: str, **parts: sql.Composable) -> bytes:
        """A query without its purpose and indentation. Up to 4,096 characters, psycopg remembers its parameters."""
        return self._composed(_part(name), **parts).encode()

    def render(self, name: str, **parts: sql.Composable) -> str:
        """The text of a query with schema, declared columns and other parts filled in."""
        return self._composed(_texts()[name], **parts)

    def _composed(self, template: str, /, **parts: sql.Composable) -> str:
        shape, lane_of_letter = self.shape, sql.SQL(_part("lane_of_letter"))
        composed = sql.SQL(template).format(
            schema=sql.Identifier(shape.schema),
            fence=sql.SQL(_part("fence")).format(schema=sql.Identifier(shape.schema)),
            awaiting=sql.SQL(_part("awaiting")).format(schema=sql.Identifier(shape.schema)),
            lane_is_held=sql.SQL(_part("lane_is_held")).format(schema=sql.Identifier(shape.schema)),
            mark=sql.SQL(_part("mark")),
            lane_of_letter=lane_of_letter,
            whole_consumers=sql.SQL(_part("whole_consumers")).format(schema=sql.Identifier(shape.schema)),
            consumer_status=sql.SQL(_part("consumer_status")).format(
                schema=sql.Identifier(shape.schema), lane_of_letter=lane_of_letter
            ),
            failed_letters=sql.SQL(_part("failed_letters")).format(
                schema=sql.Identifier(shape.schema), scope_names=scope_list(shape), log_scope=scope_list(shape, "log")
            ),
            session_settings=sql.SQL(_part("session_settings")).format(),
            scope_names=scope_list(shape),
            moved_scope=scope_list(shape, "moved"),
            settled_scope=scope_list(shape, "settled"),
            log_scope=scope_list(shape, "log"),
            handed_scope=scope_list(shape, "event"),
            due_scope=scope_list(shape, "due"),
            audience_bytes=sql.SQL(_part("audience_bytes") if shape.audience else ""),
            **{"due_columns": sql.SQL(_part("due_columns")), **parts},
        )
        return composed.as_string()
