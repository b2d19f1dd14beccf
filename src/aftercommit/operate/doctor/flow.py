"""Checks of the flow: relays and lanes, consumers, failures, operations, retention, service tokens."""

from collections.abc import Iterator

from aftercommit.operate.doctor.findings import Check, CheckContext, CheckProblem, problem, warning
from aftercommit.operate.health import FASTER
from aftercommit.operate.overview import ConsumerState, VersionWait
from aftercommit.text import plural, utc_second

_FAR_BEHIND = 10_000
_ROUND_SECONDS = 3600.0
_ACT_AS_USER = "act-as-user"


def _relays(context: CheckContext) -> Iterator[CheckProblem]:
    seen = context.overview
    for relay in seen.relays:
        if relay.ahead_seconds:
            yield warning(
                f"the last report of {relay.name} is {relay.ahead_seconds:.0f} s in the future: the clock of the "
                "database server was set back",
                "check that clock and its NTP; a running relay reports again within its lease",
            )
        elif not relay.is_alive:
            yield warning(
                f"{relay.name} has been silent for {relay.silent_seconds or 0.0:.0f} s",
                "it has died or lost the database: see its log. Another relay takes over its lanes",
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
            "a relay should take them within its lease: if not, see the relays' logs, and start one more",
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
            f"start `aftercommit worker {name}`; consumers behind the bus need no checkpoint",
        )


def _consumer(context: CheckContext, consumer: ConsumerState) -> Iterator[CheckProblem]:
    name = f"consumer {consumer.name!r}"
    behind = f"{plural(consumer.lag, 'event')} behind ({consumer.lag_seconds:.0f} s)"
    grave = list(context.problems("consumers", consumer.name))
    if context.declared is not None and consumer.name not in context.declared and consumer.holder is None:
        # This is also why it has no worker.
        yield warning(
            f"{name} has a checkpoint, is {behind}, and the application does not declare it",
            f"`aftercommit consumers rename {consumer.name} NEW` or `aftercommit consumers forget {consumer.name}`, "
            "or leave it if another program declares it",
        )
        return
    yield from grave
    yield from (_waits(wait) for wait in context.overview.version_waits if wait.consumer == consumer.name)
    if consumer.paused:
        yield warning(f"{name} is paused, {behind}", f"run `aftercommit consumers resume {consumer.name}`")
    elif consumer.lag > _FAR_BEHIND and not grave:
        yield warning(f"{name} is {behind}", FASTER)


def _waits(wait: VersionWait) -> CheckProblem:
    return warning(
        f"consumer {wait.consumer!r} {wait}",
        f"start a worker (behind the bus, a relay) with newer code. It parks such events at {utc_second(wait.until)}",
    )


def _retention(context: CheckContext) -> Iterator[CheckProblem]:
    for each in context.overview.upkeep:
        for reason in each.kept_back:
            yield warning(
                f"retention could not remove old {each.task.replace('_', ' ')}: {reason}",
                "resolve that first; for the log, `aftercommit sweep --even-if-unread` drops it anyway",
            )
    ran = [each.ran_seconds_ago for each in context.overview.upkeep if each.ran_seconds_ago is not None]
    if any(relay.is_alive for relay in context.overview.relays) and ran and min(ran) > _ROUND_SECONDS:
        yield warning(
            f"the last retention round was {min(ran):.0f} s ago although a relay is alive",
            "see the relay's log for retention_failed",
        )


def _service_tokens(context: CheckContext) -> Iterator[CheckProblem]:
    tokens = context.rows("service_tokens")
    states = [state for _id, _name, permissions, *_, state in tokens if _ACT_AS_USER in permissions]
    make = f"`aftercommit token create bot --may {_ACT_AS_USER} --schema {context.shape.schema}`"
    if context.users_by_header and all(state == "revoked" for state in states):
        yield problem(
            "readers are identified by the header X-User-Id, and no service token allows a program to send it: `serve` "
            "does not start, and a running server answers with 401",
            f"create one with {make} and give it to the program that sends the header",
        )
    elif "expired" in states and "valid" not in states:
        yield warning(
            "all service tokens for the header X-User-Id have expired: requests with them are answered with 401",
            f"create a new one with {make}, then revoke the old ones",
        )


FLOW = (
    Check("relays", "all known relays are alive", _relays),
    Check("lanes", "all have a holder, and no event has waited too long", _lanes),
    Check("consumers", "all keep up", _consumers),
    Check("dead letters", "none is parked", lambda context: context.problems("dead letters")),
    Check("failed events", "there are none", lambda context: context.problems("failed events")),
    Check("operations", "all running operations are driven", lambda context: context.problems("operations")),
    Check("retention", "old data was removed", _retention),
    Check("service tokens", "if programs send X-User-Id, a valid token allows it", _service_tokens),
)
