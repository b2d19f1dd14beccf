"""Mistakes that systems of this kind are known for: edits to the source, each with the checker that must see it."""

from dataclasses import dataclass

RELAY_SQL = "src/aftercommit/postgres/queries/relay.sql"
DUE_SQL = "src/aftercommit/postgres/queries/due.sql"
LEASE_SQL = "src/aftercommit/postgres/queries/lease.sql"
SLICES_SQL = "src/aftercommit/postgres/queries/slices.sql"
PUBLISH_SQL = "src/aftercommit/postgres/queries/publish.sql"
CARRIER = "src/aftercommit/relay/carrier.py"
SETTLE = "src/aftercommit/relay/settle.py"
LANES = "src/aftercommit/relay/lanes.py"
SLICES = "src/aftercommit/consumer/slices.py"
RUNNER = "src/aftercommit/consumer/runner.py"
EXECUTE = "src/aftercommit/consumer/slice_executor.py"
CONVERSATION = "src/aftercommit/consumer/conversation.py"
LOANS = "src/aftercommit/consumer/loans.py"
COMMITS = "src/aftercommit/postgres/commits.py"
FAILURES = "src/aftercommit/consumer/dead_letters.py"
ROWS = "src/aftercommit/outbox/row_maker.py"


@dataclass(frozen=True)
class Edit:
    """One place, right and wrong."""

    file: str
    right: str
    wrong: str


@dataclass(frozen=True)
class Bug:
    """A mistake: its edits, the run that is to find it, and the checkers of which one must."""

    name: str
    edits: tuple[Edit, ...]
    run: str
    seen_by: frozenset[str]
    needs: str = ""


def _bug(name: str, *edits: Edit, run: str, seen_by: str, needs: str = "") -> Bug:
    return Bug(name, edits, run, frozenset(seen_by.split()), needs)


_FIRST_ANSWER = """\
        return talk.hear(row, connection.pgconn)
"""


def _committed_early(when: str) -> str:
    return f"""\
        if {when}:
            await connection.execute("commit; begin")
        return talk.hear(row, connection.pgconn)
"""


_KILLS = "--only kills --kills 30 --seconds 20"
_ZOMBIES = "--only zombies --zombies 8 --seconds 30"

BUGS = (
    _bug(
        "the sequence is the readers' cursor",
        Edit(
            RELAY_SQL,
            """(select position - (select moved from total) from tip)
+ case when (select cardinality(seqs) = moved from total)
       then width_bucket(moved.seq, (select seqs from total))
       else (select count(*) from moved before where (before.seq, before.id) <= (moved.seq, moved.id)) end""",
            "moved.seq",
        ),
        run="--only restarts --seconds 10",
        seen_by="gap poll_skip",
    ),
    _bug(
        "the append is not fenced",
        Edit(
            RELAY_SQL,
            "where {which} and fence.held = %(lane_count)s",
            "where {which} and fence.held >= 0",
        ),
        run=f"{_ZOMBIES} --points relay.deliver,relay.delivered,relay.read",
        seen_by="intrusion",
    ),
    _bug(
        "marked before delivered",
        Edit(
            CARRIER,
            "        outcome = await self.deliver(batch)\n        await self.settle(connection, batch, outcome)",
            "        await self.settle(connection, batch, BatchOutcome(list(batch.events), []))\n"
            "        await self.deliver(batch)",
        ),
        run=f"{_KILLS} --points relay.deliver,handler.begun",
        seen_by="lost_effect",
    ),
    _bug(
        "an event of the bus counts as new although the inbox has it",
        Edit(
            SLICES_SQL,
            "    order by event_id\n)\nselect 1, null, null, {mark}",
            "    order by event_id\n    on conflict do nothing\n)\nselect 1, null, null, {mark}",
        ),
        run=f"{_ZOMBIES} --points handler.written",
        seen_by="duplicated_effect",
    ),
    _bug(
        "the inbox row is committed before the effects",
        Edit(EXECUTE, _FIRST_ANSWER, _committed_early("True")),
        run=f"{_KILLS} --points handler.begun,handler.written",
        seen_by="lost_effect",
    ),
    _bug(
        "the checkpoint alone is committed before the effects",
        Edit(EXECUTE, _FIRST_ANSWER, _committed_early('"without_inbox" in step.name')),
        run="--only kills --kills 60 --seconds 30 --points handler.begun,handler.written",
        seen_by="lost_effect",
    ),
    _bug(
        "handlers share the consumer's own connection, and nobody reads the answer to COMMIT",
        Edit(LOANS, "lock=asyncio.Lock(), **_own(connection)", "**_own(connection)"),
        Edit(LOANS, "        return not lent.lock.locked() and _taken_back(lent)", "        return True"),
        Edit(
            CONVERSATION,
            "    raise _still_in_use(call)\n\n\ndef recovery_from",
            "    return False\n\n\ndef recovery_from",
        ),
        Edit(COMMITS, 'if tag != "COMMIT":', 'if tag == "nothing":'),
        run="--only handlers --seconds 30",
        seen_by="lost_effect stuck",
    ),
    _bug(
        "the consumer's slice is fenced neither by its lease nor by its checkpoint",
        Edit(
            SLICES_SQL,
            "where name = %(checkpoint)s and token = %(token)s for no key update\n),\nfence as (",
            "where name = %(checkpoint)s for no key update\n),\nfence as (",
        ),
        Edit(
            SLICES_SQL,
            "select (select count(*) from fence), null, (select position from fence),",
            "select (select count(*) from fence), null, null::bigint,",
        ),
        run=f"{_ZOMBIES} --points consumer.read",
        seen_by="duplicated_effect",
    ),
    _bug(
        "a worker of a divided consumer reads the log of all lanes",
        Edit(
            "src/aftercommit/postgres/queries/consumer.sql",
            "  and (%(lanes)s::integer = 1 or mod(lane, %(lanes)s::integer) = %(lane)s::integer)\norder by position",
            "order by position",
        ),
        Edit(
            "src/aftercommit/postgres/queries/consumer.sql",
            "          and (%(lanes)s::integer = 1 or mod(lane, %(lanes)s::integer) = %(lane)s::integer)\n    ) sized",
            "    ) sized",
        ),
        run="--only restarts --seconds 15",
        seen_by="duplicated_effect reordered_effect",
    ),
    _bug(
        "a lane is given away while a slice of it is at work",
        Edit(
            "src/aftercommit/consumer/lease_taker.py",
            "given = [each for each in held[share:] if each.task is None]",
            "given = held[share:]",
        ),
        Edit(
            SLICES_SQL,
            "where name = %(checkpoint)s and token = %(token)s for no key update\n),\nfence as (",
            "where name = %(checkpoint)s for no key update\n),\nfence as (",
        ),
        Edit(
            SLICES_SQL,
            "select (select count(*) from fence), null, (select position from fence),",
            "select (select count(*) from fence), null, null::bigint,",
        ),
        run=f"{_KILLS} --points consumer.active",
        seen_by="duplicated_effect",
    ),
    _bug(
        "without an inbox a slice whose COMMIT was not answered is handled again",
        Edit(
            SLICES_SQL,
            "select (select count(*) from fence), null, (select position from fence),",
            "select (select count(*) from fence), null, null::bigint,",
        ),
        run="--only network --seconds 90",
        seen_by="duplicated_effect",
    ),
    _bug(
        "the watermark passes events of transactions that are still open",
        Edit(
            "src/aftercommit/relay/plan.py",
            "self.value = max(self.value, min(reached, resolved))",
            "self.value = max(self.value, reached)",
        ),
        run="--only restarts --seconds 25",
        seen_by="reordered",
    ),
    _bug(
        "ordered by when a transaction began",
        Edit(
            "src/aftercommit/schema/migrations/0001_engine.sql",
            "    created_at timestamptz not null default clock_timestamp(),\n    last_error",
            "    created_at timestamptz not null default now(),\n    last_error",
        ),
        Edit(
            RELAY_SQL,
            "width_bucket(moved.seq, (select seqs from total))",
            "(select count(*) from moved before where (before.created_at, before.id) <= (moved.created_at, moved.id))",
        ),
        run=_KILLS,
        seen_by="reordered",
    ),
    _bug(
        "under strict ordering the relay goes on behind a failed event",
        Edit(
            DUE_SQL,
            """  and not exists (
      select from {schema}.outbox held
      where held.aggregate_type = o.aggregate_type and held.aggregate_id = o.aggregate_id and held.seq < o.seq
        and (held.status = 'failed' or held.next_retry_at is not null)
  )
order by o.seq""",
            "order by o.seq",
        ),
        run="--only restarts --seconds 15",
        seen_by="reordered",
    ),
    _bug(
        "under strict ordering a consumer goes on behind a failed event",
        Edit(FAILURES, "return {(row[0], row[1]) for row in rows}", "return {(row[0], row[1]) for row in rows[:0]}"),
        run="--only restarts --seconds 15",
        seen_by="reordered_effect",
    ),
    _bug(
        "the event is published on a connection of its own",
        Edit(
            "src/aftercommit/outbox/adapters/psycopg.py",
            "        await psycopg.AsyncCursor(self._connection, row_factory=_TUPLES).execute(",
            "        other = await psycopg.AsyncConnection.connect(self._connection.info.dsn, autocommit=True)\n"
            "        async with other:\n"
            "            await psycopg.AsyncCursor(other, row_factory=_TUPLES).execute(",
        ),
        run="--only restarts --seconds 10",
        seen_by="unexpected",
    ),
    _bug(
        "a commit that failed is taken for one that did not",
        Edit(
            RUNNER,
            "            walk.lost(segment, problem)",
            "            walk.done(segment, time.monotonic() - started)",
        ),
        run="--only connections,network --seconds 25",
        seen_by="lost_effect",
    ),
    _bug(
        "outbox and log are changed in two transactions",
        Edit(
            SETTLE,
            "        async def write() -> Appended:\n",
            """        async def write() -> Appended:
            schema = self._statements.shape.schema
            columns = (
                "id, seq, aggregate_type, aggregate_id, event_type, schema_version, occurred_at, correlation_id, "
                "causation_id, payload, status, retry_count, next_retry_at, created_at, last_error, tenant_id, region"
            )
            pair = (f"{schema}.outbox", f"{schema}.on_its_way")
            move = (
                "with gone as (delete from {0} where id = any(%s) returning {2}) "
                "insert into {1} ({2}) overriding system value select * from gone"
            )
            there = f"create table if not exists {pair[1]} as select {columns} from {pair[0]} where false"
            await connection.execute(there.encode())
            await connection.execute(move.format(*pair, columns).encode(), [list(ids)])
            await __import__("asyncio").sleep(0.05)
            await connection.execute(move.format(*reversed(pair), columns).encode(), [list(ids)])
""",
        ),
        run="--only kills --kills 60 --seconds 20",
        seen_by="lost",
    ),
    _bug(
        "a lease has run out by the taker's own clock",
        Edit(
            LANES,
            'return {"relay": self.relay, "token": self.token, "lease": self.lease, **more}',
            'return {"relay": self.relay, "token": self.token, "lease": self.lease, "now": utc_now(), **more}',
        ),
        Edit(
            LANES,
            "from aftercommit.postgres.listen import",
            "from aftercommit.clock import utc_now\nfrom aftercommit.postgres.listen import",
        ),
        Edit(
            LEASE_SQL,
            "where id <> %(relay)s\n      and leased_until not between clock_timestamp() and",
            "where id <> %(relay)s\n      and leased_until not between %(now)s::timestamptz and",
        ),
        run="--only kills,clock --kills 40 --seconds 25",
        seen_by="intrusion",
        needs="clock",
    ),
    _bug(
        "scope values change places",
        Edit(
            ROWS,
            "            values.append(value)\n        return values",
            "            values.append(value)\n        return values[::-1]",
        ),
        run="--only restarts --seconds 8",
        seen_by="foreign_scope",
    ),
    _bug(
        "an idempotency key that is known is written again",
        Edit(
            PUBLISH_SQL,
            "    on conflict (key, scope) do nothing\n",
            "    on conflict (key, scope) do update set event_ids = excluded.event_ids\n",
        ),
        run="--only network --seconds 30",
        seen_by="duplicated",
    ),
)
