"""What the database knows about publishers: the last seq that one of them drew, and which of them are still open."""

from psycopg import sql

from aftercommit.errors import DatabaseUnavailable
from aftercommit.postgres.commits import AsyncConnection
from aftercommit.postgres.shape import Shape
from aftercommit.postgres.statements import Statements


class Writers:
    """Looks at the publishers of one outbox, on one server."""

    def __init__(self, shape: Shape) -> None:
        self._statements = Statements(shape)
        self._outbox = sql.Identifier(shape.schema, "outbox").as_string()
        self._seen: tuple[object, int] | None = None

    async def open(self, connection: AsyncConnection) -> set[str]:
        """Open transactions that have published."""
        cursor = await connection.execute(self._statements["open_writers"], {"outbox": self._outbox})
        row = await cursor.fetchone()
        return set(row[0]) if row else set()

    async def last_seq(self, connection: AsyncConnection) -> int:
        """The last seq that anybody drew; DatabaseUnavailable when another server answers."""
        row = await (await connection.execute(self._statements["last_seq"])).fetchone()
        last_seq, started_at = row or (0, None)
        if self._seen is not None and (self._seen[0] != started_at or self._seen[1] > last_seq):
            raise DatabaseUnavailable("the server behind this connection was restarted, restored or replaced")
        self._seen = (started_at, last_seq)
        return int(last_seq)

    def forget(self) -> None:
        """After a reconnect: accept whatever server answers now."""
        self._seen = None
