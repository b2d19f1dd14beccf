"""Checks of the flow: relays and lanes, consumers, what failed, operations, retention."""

from collections.abc import Iterator

from aftercommit.doctor.findings import Case, Check, Trouble, problem, warning
from aftercommit.postgres.overview import ConsumerState

_OLD_SECONDS = 60.0
_FAR_BEHIND = 10_000
_ROUND_SECONDS = 3600.0


def _relays(case: Case) -> Iterator[Trouble]:
    seen = case.overview
    alive = [relay for relay in seen.relays if relay.is_alive]
    for relay in seen.relays:
        if not relay.is_alive:
            yield warning(
                f"{relay.name} has been silent for {relay.silent_seconds:.0f} s",
                "it died or lost the database: see its log; another relay takes its lanes over",
            )
    if not alive:
        kind = problem if seen.pending else warning
        yield kind(f"no relay is alive, and {seen.pending} events wait", "start `aftercommit relay`")


def _lanes(case: Case) -> Iterator[Trouble]:
    seen = case.overview
    if seen.free_lanes and any(relay.is_alive for relay in seen.relays):
        yield problem(
            f"{seen.free_lanes} lanes have no holder although a relay is alive: their events wait",
            "a lease later somebody should have taken them: see the relays' logs, and start one more",
        )
    if seen.oldest_seconds > _OLD_SECONDS:
        yield problem(
            f"the oldest of {seen.pending} pending events has waited {seen.oldest_seconds:.0f} s",
            "see the relay's log for an outage of the transport, or `aftercommit dead list` for what is retried",
        )


def _consumers(case: Case) -> Iterator[Trouble]:
    known = {consumer.name for consumer in case.overview.consumers}
    for consumer in case.overview.consumers:
        yield from _consumer(case, consumer)
    for name in sorted(set(case.declared or ()) - known):
        yield warning(
            f"consumer {name!r} is declared and has no checkpoint: it has never run",
            f"`aftercommit worker {name}`; behind the bus, consumers need none",
        )


def _consumer(case: Case, consumer: ConsumerState) -> Iterator[Trouble]:
    name = f"consumer {consumer.name!r}"
    behind = f"{consumer.lag} events behind ({consumer.lag_seconds:.0f} s)"
    orphaned = case.declared is not None and consumer.name not in case.declared and consumer.holder is None
    if orphaned:
        yield warning(
            f"{name} has a checkpoint, is {behind}, and is not declared by the application",
            f"`aftercommit consumers rename {consumer.name} NEW`, or `aftercommit consumers forget {consumer.name}`; "
            "leave it, if another program declares it",
        )
    elif consumer.paused:
        yield warning(f"{name} is paused, {behind}", f"`aftercommit consumers resume {consumer.name}`")
    elif consumer.lag and consumer.holder is None:
        yield problem(f"{name} is {behind} and nobody works for it", f"start `aftercommit worker {consumer.name}`")
    elif consumer.lag > _FAR_BEHIND:
        yield warning(f"{name} is {behind}", "speed its handlers up, batch them, or give it more concurrency")


def _dead_letters(case: Case) -> Iterator[Trouble]:
    for each in case.overview.dead_letters:
        if each.status == "parked":
            yield problem(
                f"{each.count} dead letters of {each.owner} are parked",
                f"`aftercommit dead groups`, then `aftercommit dead retry` or `discard` (--consumer {each.owner})",
            )


def _failed(case: Case) -> Iterator[Trouble]:
    if case.overview.failed:
        yield problem(
            f"{case.overview.failed} events failed for good and are not in the log",
            "`aftercommit dead list` says why; `aftercommit dead retry` puts them back",
        )


def _operations(case: Case) -> Iterator[Trouble]:
    for each in case.overview.operations:
        if not each.driven:
            yield problem(
                f"nobody drives operation {each.id} ({each.kind} by {each.requested_by}): it stands at {each.through} "
                f"of {each.total}",
                f"`aftercommit replay resume {each.id}`, or `aftercommit replay abort {each.id}`",
            )


def _retention(case: Case) -> Iterator[Trouble]:
    for each in case.overview.upkeep:
        for reason in each.kept_back:
            yield warning(
                f"{each.task.replace('_', ' ')} could not be removed although old: {reason}",
                "deal with who holds it; for the log, `aftercommit sweep --even-if-unread` drops it all the same",
            )
    ran = [each.ran_seconds_ago for each in case.overview.upkeep if each.ran_seconds_ago is not None]
    if any(relay.is_alive for relay in case.overview.relays) and ran and min(ran) > _ROUND_SECONDS:
        yield warning(
            f"the last round of retention was {min(ran):.0f} s ago although a relay is alive",
            "see the relay's log for retention_failed",
        )


FLOW = (
    Check("relays", "those on record are alive", _relays),
    Check("lanes", "none waits for a holder, and no event has waited for long", _lanes),
    Check("consumers", "all keep up", _consumers),
    Check("dead letters", "none is parked", _dead_letters),
    Check("failed events", "there are none", _failed),
    Check("operations", "none is left alone", _operations),
    Check("retention", "nothing is held back", _retention),
)
