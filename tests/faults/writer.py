"""Writers: business rows and events in one transaction, committed early, late, in part, or not at all."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import psycopg

from aftercommit.outbox import Outbox
from tests.faults import workload
from tests.faults.history import History, Kind
from tests.faults.workload import BOOK, POST, REGIONS, TENANTS, Moved

TASKS: Final = 3
ACCOUNTS: Final = 40
PATIENCE: Final = 6.0
# On a slow machine a writer rests when the consumers are so many events behind, so that they also come to an end at
# times. After so many seconds it goes on whatever they do.
MOST_BEHIND: Final = 1_500
LONGEST_REST: Final = 15.0
BEHIND: Final = "select max(book.given(head.gaps, consumer.position, head.position)) from book.consumer, book.head"
# How often each kind of transaction is written.
KINDS: Final = {
    "plain": 40,
    "bulk": 6,
    "rollback": 10,
    "savepoint": 8,
    "late": 8,
    "early": 8,
    "both": 6,
    "keyed": 14,
    "flaky": 3,
    "poison": 1,
}

LOCK_ACCOUNT: Final = """
    insert into shop.account as account (outbox, id, version) values (%(outbox)s, %(id)s, %(count)s)
    on conflict (outbox, id) do update set version = account.version + %(count)s
    returning version
"""
ENTRY: Final = "insert into shop.entry (outbox, op, part, account, number) values (%s, %s, %s, %s, %s)"


class Writer:
    """Several transactions at a time, each on a connection of its own."""

    def __init__(self, name: str, dsn: str, lines: History, seed: str, *, storm: bool = False) -> None:
        self._name = name
        self._dsn = dsn
        self._lines = lines
        self._seed = seed
        self._storm = storm
        self._outboxes = workload.declare()

    async def run(self, stopping: asyncio.Event) -> None:
        await asyncio.gather(*(self._task(number, stopping) for number in range(TASKS)))

    async def _task(self, number: int, stopping: asyncio.Event) -> None:
        chance = random.Random(f"{self._seed}/{self._name}/{number}")
        count = 0
        while not stopping.is_set():
            try:
                async with asyncio.timeout(PATIENCE):
                    connection = await psycopg.AsyncConnection.connect(self._dsn, prepare_threshold=None)
            except (psycopg.Error, OSError, TimeoutError):
                await asyncio.sleep(0.1)
                continue
            while not stopping.is_set() and not connection.closed:
                count += 1
                op = Op(f"{self._name}.{self._seed}.{number}.{count}", chance, self._outboxes, self._lines)
                await self._one(op, connection)
                await asyncio.sleep(chance.expovariate(25.0))
                if count % 100 == 0:
                    await self._rest(connection, stopping)
            await connection.close()

    async def _rest(self, connection: psycopg.AsyncConnection[Any], stopping: asyncio.Event) -> None:
        """Until the consumers have come to the end, if they are far behind."""
        try:
            async with asyncio.timeout(LONGEST_REST):
                most = MOST_BEHIND
                while not stopping.is_set() and await self._behind(connection) > most:
                    most = 0
                    await asyncio.sleep(0.2)
        except (psycopg.Error, OSError, TimeoutError):
            await connection.close()

    async def _behind(self, connection: psycopg.AsyncConnection[Any]) -> int:
        found = await (await connection.execute(BEHIND)).fetchone()
        await connection.rollback()
        return int(found[0]) if found and found[0] is not None else 0

    async def _one(self, op: "Op", connection: psycopg.AsyncConnection[Any]) -> None:
        outcome = await self._attempt(op, connection)
        while outcome == "info" and op.kind == "keyed":
            # Nobody knows whether it was committed. With the key it is safe to write it again until somebody does.
            await asyncio.sleep(0.05)
            try:
                async with asyncio.timeout(PATIENCE):
                    again = await psycopg.AsyncConnection.connect(self._dsn, prepare_threshold=None)
            except (psycopg.Error, OSError, TimeoutError):
                continue
            async with again:
                outcome = "ok" if await self._attempt(op, again) == "ok" else "info"

    async def _attempt(self, op: "Op", connection: psycopg.AsyncConnection[Any]) -> Kind:
        """One transaction and its outcome. A connection that failed is closed."""
        patience = op.chance.uniform(0, 0.03) if self._storm and op.chance.random() < 0.3 else PATIENCE
        op.begin()
        try:
            async with asyncio.timeout(patience):
                await op.write(connection)
                if op.rolls_back:
                    await connection.rollback()
                else:
                    op.committing = True
                    await connection.commit()
        except (psycopg.Error, OSError, TimeoutError) as problem:
            refused = isinstance(problem, psycopg.Error) and problem.sqlstate is not None and not connection.broken
            outcome: Kind = "info" if op.committing and not refused else "fail"
            op.end(outcome, type(problem).__name__)
            await connection.close()
            return outcome
        outcome = "fail" if op.rolls_back else "ok"
        op.end(outcome)
        return outcome


class Op:
    """One transaction of a writer, with its parts numbered."""

    def __init__(self, name: str, chance: random.Random, outboxes: dict[str, Outbox], lines: History) -> None:
        self.name = name
        self.chance = chance
        self.kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
        self.rolls_back = self.kind == "rollback"
        self.committing = False
        self.parts: list[int] = []
        self._outboxes = outboxes
        self._lines = lines
        self._scope: dict[str, Any] = {"tenant_id": chance.choice(TENANTS), "region": chance.choice(REGIONS)}
        self._next_part = 0

    def begin(self) -> None:
        self.parts, self._next_part, self.committing = [], 0, False
        self._lines.write("invoke", "publish", op=self.name, kind=self.kind)

    def end(self, kind: Kind, error: str | None = None) -> None:
        self._lines.write(kind, "publish", op=self.name, kind=self.kind, parts=self.parts, error=error)

    async def write(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("select set_config('lock_timeout', '2s', true)")
        special: dict[str, Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]] = {
            "savepoint": self._savepoint,
            "late": self._late,
            "early": self._early,
            "both": self._both,
            "keyed": self._keyed,
            "flaky": self._flaky,
            "poison": self._poison,
        }
        if self.kind in special:
            await special[self.kind](connection)
        else:
            count = self.chance.randint(15, 40) if self.kind == "bulk" else 1
            await self._move(connection, self._outbox(), self._account(), count)

    async def _savepoint(self, connection: psycopg.AsyncConnection[Any]) -> None:
        outbox, account = self._outbox(), self._account()
        await self._move(connection, outbox, account)
        kept = list(self.parts)
        async with connection.transaction(force_rollback=True):
            await self._move(connection, outbox, account)
        self.parts = kept
        await self._move(connection, outbox, account)

    async def _late(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """An early seq, committed when others with later ones have long been."""
        await self._move(connection, self._outbox(), self._account())
        await asyncio.sleep(self.chance.uniform(0.05, 0.8))

    async def _early(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """An early transaction id, and a late lock."""
        await connection.execute("select pg_current_xact_id()")
        await asyncio.sleep(self.chance.uniform(0.05, 0.5))
        await self._move(connection, self._outbox(), self._account())

    async def _both(self, connection: psycopg.AsyncConnection[Any]) -> None:
        for outbox in (BOOK, POST):
            await self._move(connection, outbox, self._account())

    async def _keyed(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """An aggregate of its own, so that the second time says the same as the first."""
        outbox, account = BOOK if self.name[-1] in "02468" else POST, f"keyed-{self.name}"
        event = self._event(account, 1, 0)
        receipt = await self._outboxes[outbox].publish(connection, event, idempotency_key=self.name, **self._scope)
        self.parts = [0]
        if not receipt.duplicate:
            await connection.execute(ENTRY, (outbox, self.name, 0, account, 1))

    async def _flaky(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await self._move(connection, self._outbox(), self._account(), fails=self.chance.randint(1, 2))

    async def _poison(self, connection: psycopg.AsyncConnection[Any]) -> None:
        outbox, account = self._outbox(), f"{workload.POISON}-{self.name}"
        await self._move(connection, outbox, account, fails=-1)
        await self._move(connection, outbox, account)

    async def _move(
        self, connection: psycopg.AsyncConnection[Any], outbox: str, account: str, count: int = 1, fails: int = 0
    ) -> None:
        parameters = {"outbox": outbox, "id": account, "count": count}
        row = await (await connection.execute(LOCK_ACCOUNT, parameters)).fetchone()
        assert row is not None
        numbers = range(row[0] - count + 1, row[0] + 1)
        parts = range(self._next_part, self._next_part + count)
        self._next_part += count
        events = [self._event(account, number, part, fails) for number, part in zip(numbers, parts, strict=True)]
        await self._enter(connection, outbox, account, list(zip(parts, numbers, strict=True)))
        await self._outboxes[outbox].publish(connection, events, **self._scope)
        self.parts += parts

    async def _enter(
        self, connection: psycopg.AsyncConnection[Any], outbox: str, account: str, rows: Sequence[tuple[int, int]]
    ) -> None:
        async with connection.cursor() as cursor:
            await cursor.executemany(ENTRY, [(outbox, self.name, part, account, number) for part, number in rows])

    def _event(self, account: str, number: int, part: int, fails: int = 0) -> Moved:
        scope = self._scope
        return Moved(account, number, self.name, part, scope["tenant_id"], scope["region"], fails, "." * 200)

    def _outbox(self) -> str:
        return BOOK if self.chance.random() < 0.6 else POST

    def _account(self) -> str:
        return f"account-{self.chance.randint(1, ACCOUNTS)}"
