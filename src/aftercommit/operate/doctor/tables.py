"""Checks of the tables: migrations, privileges, partitions, vacuum, indexes, and the log itself."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from psycopg import sql

from aftercommit.errors import DatabaseError
from aftercommit.operate.doctor.findings import Check, CheckContext, CheckProblem, problem, warning
from aftercommit.operate.overview import empty_head
from aftercommit.schema import migrate, partitions
from aftercommit.schema.catalog import asking
from aftercommit.schema.privileges import RUNTIME
from aftercommit.text import MIGRATE, OF_APP

# How many samples of the log are checked, and their size; the newest events are always among them.
SAMPLES, SAMPLE_SIZE = 20, 1000
# Dead rows are normal, but not five times as many as should have triggered autovacuum.
_DEAD_ROWS, _TIMES_THE_THRESHOLD = 10_000, 5


def _migrations(context: CheckContext) -> Iterator[CheckProblem]:
    try:
        found = migrate.status_by(asking(context.connection), context.shape)
    except DatabaseError as error:
        yield problem(str(error), MIGRATE)
        return
    for migration in found.pending:
        yield problem(f"migration {migration} is not applied", MIGRATE)
    if context.declared is not None:
        # Without the application, scope and views are unknown.
        yield from (problem(difference, MIGRATE) for difference in found.declaration)


def _privileges(context: CheckContext) -> Iterator[CheckProblem]:
    wanted = [(relation, each) for relation, listed in RUNTIME.items() for each in listed.split(", ")]
    relations, privileges = [list(column) for column in zip(*wanted, strict=True)]
    lacking = [
        f"{each} on {relation}"
        for relation, each in context.rows("doctor_privileges", relations=relations, privileges=privileges)
    ]
    if not context.rights.may_make_partitions:
        lacking.append("execute on make_partitions()")
    if lacking:
        yield problem(
            f"user {context.user!r} lacks {', '.join(lacking)}",
            f"as the owner of the schema, run the output of `aftercommit migrate grants {context.user} {OF_APP}`",
        )
    keeps = {each.task: each.keep_seconds for each in context.overview.upkeep}
    if keeps.get("log") is not None and not context.rights.may_drop_partitions:
        yield warning(
            f"the log has a retention time, but user {context.user!r} may not drop its old partitions",
            "run `aftercommit sweep` as the owner of the schema, for example daily by cron",
        )


def _partitions(context: CheckContext) -> Iterator[CheckProblem]:
    found = partitions.existing(context.connection, context.shape)
    yield from _strays(context, found)
    gaps = [gap for *_, gaps_of_log in context.rows("doctor_log") for gap in gaps_of_log]
    for before, after in pairwise(found):
        # There are no events between two lives of the log.
        is_between = any(low <= before.upper and after.lower <= high + 1 for low, high in gaps)
        if before.upper != after.lower and not is_between:
            yield problem(
                f"positions {before.upper} to {after.lower - 1} have no partition (after {before.name})",
                "attach the missing partition again",
            )
    following = context.overview.head + 1
    ahead = [each for each in found if each.upper > following]
    if not any(each.lower <= following for each in ahead):
        remedy = f"start a relay, or {MIGRATE}"
        yield problem(f"there is no partition for the next position, {following}", remedy)
    elif len(ahead) < partitions.AHEAD:
        yield warning(
            f"there are only {len(ahead)} of {partitions.AHEAD} partitions ahead of the tip",
            f"a relay creates them: see its log for log_partitions_not_made, or {MIGRATE}",
        )


def _strays(context: CheckContext, found: Iterable[partitions.Partition]) -> Iterator[CheckProblem]:
    log = sql.Identifier(context.shape.schema, "log").as_string()
    for (name,) in context.rows("doctor_default_partition", log=log):
        partition = sql.Identifier(context.shape.schema, name).as_string()
        yield warning(
            f"the log has a default partition, {name}: it slows down new partitions, and none can be detached",
            f"move its rows elsewhere, then: alter table {log} detach partition {partition}",
        )
    for each in found:
        if each.detaching:
            partition = sql.Identifier(context.shape.schema, each.name).as_string()
            yield warning(
                f"the detaching of {each.name} has begun and is not finished",
                f"run `aftercommit sweep` as the owner, or: alter table {log} detach partition {partition} finalize",
            )


def _autovacuum(context: CheckContext) -> Iterator[CheckProblem]:
    for name, value in context.settings("autovacuum", "track_counts").items():
        if value != "on":
            yield problem(
                f"{name} is {value}: tables grow, and everything becomes slower",
                f"alter system set {name} = on; select pg_reload_conf()",
            )
    for table, dead, threshold, seconds, enabled in context.rows("doctor_vacuum"):
        name = sql.Identifier(context.shape.schema, table).as_string()
        if not enabled:
            yield problem(f"autovacuum is switched off for {table}", f"alter table {name} reset (autovacuum_enabled)")
        if dead > max(_DEAD_ROWS, _TIMES_THE_THRESHOLD * threshold):
            last = "never" if seconds is None else f"{seconds:.0f} s ago"
            yield warning(
                f"{table} has {dead} dead rows (autovacuum should run at {threshold:.0f}; last run: {last})",
                f"end what blocks it (transactions, slots); vacuum {name}; raise autovacuum_max_workers or cost limit",
            )


def _indexes(context: CheckContext) -> Iterator[CheckProblem]:
    for index, table in context.rows("doctor_indexes"):
        name = sql.Identifier(context.shape.schema, index).as_string()
        yield problem(f"index {index} of {table} is invalid and not used", f"reindex index concurrently {name}")


def _log(context: CheckContext) -> Iterator[CheckProblem]:
    found = context.rows("doctor_log")
    if not found:
        yield problem(*empty_head(context.shape))
        return
    head, last, first, missing, gaps = found[0]
    if last is not None and (head < last or missing):
        yield problem(
            f"the head is at {head} and the log ends at {last}: positions would be used twice or skipped",
            "stop all relays; if a restore caused this, restore head and log from the same backup",
        )
    if last is None:
        return
    firsts = _sampled(first, last, gaps)
    for start, count, expected, backwards in context.rows("doctor_samples", firsts=firsts, size=SAMPLE_SIZE, last=last):
        end = min(last, start + SAMPLE_SIZE - 1)
        if count != expected:
            yield problem(
                f"positions {start} to {end} have {count} events and should have {expected}",
                "readers will stop there or miss events: restore the missing events from a backup",
            )
        if backwards:
            yield problem(
                f"between positions {start} and {end} the time of the log runs backwards",
                "the log was changed by hand: restore those rows from a backup",
            )


def _sampled(first: int, last: int, gaps: Sequence[tuple[int, int]]) -> list[int]:
    """The first positions of the samples: the newest events, and random ones in every life of the log."""
    begins = [first, *(high + 1 for _, high in gaps if high >= first)]
    ends = [*(low - 1 for low, high in gaps if high >= first), last]
    found = {max(begins[-1], last - SAMPLE_SIZE + 1)}
    for low, high in zip(begins, ends, strict=True):
        found |= {random.randint(low, max(low, high - SAMPLE_SIZE + 1)) for _ in range(SAMPLES) if low <= high}
    return sorted(each for each in found if each <= last)


MIGRATIONS = Check("migrations", "the tables match the code", _migrations)
TABLES = (
    Check("privileges", "this user may publish, relay and consume", _privileges),
    Check("partitions", "the log has partitions ahead of its tip, without a gap", _partitions),
    Check("autovacuum", "it runs and keeps up", _autovacuum),
    Check("indexes", "all are valid", _indexes),
    Check("log", "it ends at its head, and the samples have no gap", _log),
)
