"""Checks of the flow: relays and lanes, consumers, what failed, operations, retention."""

from collections.abc import Iterator

from aftercommit.operate.doctor.findings import Check, CheckContext, CheckProblem, warning
from aftercommit.operate.overview import ConsumerState, VersionWait
from aftercommit.text import plural, utc_second

_FAR_BEHIND = 10_000
_ROUND_SECONDS = 3600.0


def _relays(context: CheckContext) -> Iterator[CheckProblem]:
    seen = context.overview
    for relay in seen.relays:
        if relay.ahead_seconds:
            yield warning(
                f"the last sign of life of {relay.name} is {relay.ahead_seconds:.0f} s in the future: the clock of the "
                "database server was set back",
                "check that clock and its NTP; a relay that still runs reports again within its lease",
            )
        elif not relay.is_alive:
            yield warning(
                f"{relay.name} has been silent for {relay.silent_seconds or 0.0:.0f} s",
                "it died or lost the database: see its log; another relay takes its lanes over",
            )
    yield from context.problems("relays")
    if not seen.pending and not any(relay.is_alive for relay in seen.relays):
        yield warning("no relay is alive", "start `aftercommit relay`")


def _lanes(context: CheckContext) -> Iterator[CheckProblem]:
    seen = context.overview
    if seen.free_lanes and any(relay.is_alive for relay in seen.relays):
        have = "has" if seen.free_lanes == 1 else "have"
        yield warning(
            f"{plural(seen.free_lanes, 'lane')} {have} no holder although a relay is alive: events of such lanes wait",
            "a lease later somebody should have taken them: see the relays' logs, and start one more",
        )
    yield from context.problems("lanes")


def _consumers(context: CheckContext) -> Iterator[CheckProblem]:
    known = {consumer.name for consumer in context.overview.consumers}
    for consumer in context.overview.consumers:
        yield from _consumer(context, consumer)
    yield from (_waits(wait) for wait in context.overview.version_waits if wait.consumer not in known)
    for name in sorted(set(context.declared or ()) - known):
        yield warning(
            f"consumer {name!r} is declared and has no checkpoint: it has never run",
            f"`aftercommit worker {name}`; behind the bus, consumers need none",
        )


def _consumer(context: CheckContext, consumer: ConsumerState) -> Iterator[CheckProblem]:
    name = f"consumer {consumer.name!r}"
    behind = f"{plural(consumer.lag, 'event')} behind ({consumer.lag_seconds:.0f} s)"
    grave = list(context.problems("consumers", consumer.name))
    if context.declared is not None and consumer.name not in context.declared and consumer.holder is None:
        # What else would be wrong with it (nobody works for it) has this as its cause.
        yield warning(
            f"{name} has a checkpoint, is {behind}, and is not declared by the application",
            f"`aftercommit consumers rename {consumer.name} NEW`, or `aftercommit consumers forget {consumer.name}`; "
            "leave it, if another program declares it",
        )
        return
    yield from grave
    yield from (_waits(wait) for wait in context.overview.version_waits if wait.consumer == consumer.name)
    if consumer.paused:
        yield warning(f"{name} is paused, {behind}", f"`aftercommit consumers resume {consumer.name}`")
    elif consumer.lag > _FAR_BEHIND and not grave:
        yield warning(f"{name} is {behind}", "speed its handlers up, batch them, or give it more concurrency")


def _waits(wait: VersionWait) -> CheckProblem:
    return warning(
        f"consumer {wait.consumer!r} {wait}",
        f"start a worker (behind the bus: a relay) with code that knows it; after {utc_second(wait.until)} such "
        "events are parked",
    )


def _retention(context: CheckContext) -> Iterator[CheckProblem]:
    for each in context.overview.upkeep:
        for reason in each.kept_back:
            yield warning(
                f"{each.task.replace('_', ' ')} could not be removed although old: {reason}",
                "deal with who holds it; for the log, `aftercommit sweep --even-if-unread` drops it all the same",
            )
    ran = [each.ran_seconds_ago for each in context.overview.upkeep if each.ran_seconds_ago is not None]
    if any(relay.is_alive for relay in context.overview.relays) and ran and min(ran) > _ROUND_SECONDS:
        yield warning(
            f"the last round of retention was {min(ran):.0f} s ago although a relay is alive",
            "see the relay's log for retention_failed",
        )


FLOW = (
    Check("relays", "those on record are alive", _relays),
    Check("lanes", "none waits for a holder, and no event has waited for long", _lanes),
    Check("consumers", "all keep up", _consumers),
    Check("dead letters", "none is parked", lambda context: context.problems("dead letters")),
    Check("failed events", "there are none", lambda context: context.problems("failed events")),
    Check("operations", "none is left alone", lambda context: context.problems("operations")),
    Check("retention", "nothing is held back", _retention),
)
