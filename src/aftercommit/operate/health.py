"""Decides from an overview whether an outbox has problems: limits, and a text with a remedy for each problem.

`status` and `doctor` both use this verdict.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from aftercommit.operate.blockers import Blocker, Kind
from aftercommit.operate.overview import ConsumerState, Overview
from aftercommit.text import plural

# A replication slot that makes vacuum keep older rows than this slows every scan down.
OLD_TRANSACTIONS = 1_000_000
# How many owners of dead letters get a line of their own, those with the most letters first.
MOST_NAMED = 3
FASTER = "make its handlers faster, handle batches, or raise its concurrency"

Subject = Literal[
    "relays",
    "lanes",
    "consumers",
    "dead letters",
    "failed events",
    "operations",
    "transactions",
    "prepared transactions",
    "replication slots",
]
_HOLDERS: dict[Kind, Subject] = {
    "transaction": "transactions",
    "prepared transaction": "prepared transactions",
    "replication slot": "replication slots",
}


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """The limits of a healthy outbox; None means no limit."""

    max_age_seconds: float = 60.0
    max_lag_events: int | None = None
    max_lag_seconds: float | None = None
    max_dead_letters: int = 0
    max_transaction_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """A figure beyond its limit: the subject, a description, a remedy, and the consumer that it belongs to, if any."""

    about: Subject
    found: str
    remedy: str
    consumer: str | None = None

    def __str__(self) -> str:
        """The problem and its remedy in one line."""
        return f"{self.found}: {self.remedy}"


def problems(seen: Overview, limits: HealthLimits | None = None) -> list[HealthProblem]:
    """The problems that need an operator; empty if the outbox is healthy."""
    limits = limits or HealthLimits()
    waiting = {wait.consumer for wait in seen.version_waits}
    # A consumer that waits for newer code falls behind on purpose, and only until its deadline.
    patient = replace(limits, max_lag_events=None, max_lag_seconds=None)
    return [
        *_flow(seen, limits),
        *(
            problem
            for consumer in seen.consumers
            for problem in _consumer(consumer, patient if consumer.name in waiting else limits)
        ),
        *_dead(seen, limits),
        *_operations(seen),
        *_holders(seen, limits),
    ]


def _flow(seen: Overview, limits: HealthLimits) -> Iterator[HealthProblem]:
    if seen.pending and not any(relay.is_alive for relay in seen.relays):
        verb = "waits" if seen.pending == 1 else "wait"
        found = f"{plural(seen.pending, 'event')} {verb} and no relay is alive"
        ahead = max((relay.ahead_seconds for relay in seen.relays), default=0.0)
        clock = f", and check the clock of the database server: it was set back by {ahead:.0f} s" if ahead else ""
        yield HealthProblem("relays", found, f"start `aftercommit relay`{clock}")
    if seen.oldest_seconds > limits.max_age_seconds:
        yield HealthProblem(
            "lanes",
            f"the oldest of {plural(seen.pending, 'pending event')} has waited {seen.oldest_seconds:.0f} s, more than "
            f"{limits.max_age_seconds:g} s",
            "check the relay's log for an outage of the transport and `aftercommit dead list` for retries, or start "
            "more relays",
        )


def _consumer(consumer: ConsumerState, limits: HealthLimits) -> Iterator[HealthProblem]:
    name = f"consumer {consumer.name!r}"
    behind = f"{plural(consumer.lag, 'event')} behind ({consumer.lag_seconds:.0f} s)"
    resume = f"run `aftercommit consumers resume {consumer.name}`"
    start = f"start `aftercommit worker {consumer.name}`"
    if consumer.lost:
        yield HealthProblem(
            "consumers",
            f"{name} has read up to {consumer.position}, and the next {plural(consumer.lost, 'event')} "
            f"{_are(consumer.lost)} no longer in the log",
            "it will skip them. If it has to handle them, take them from a backup and publish them again",
            consumer.name,
        )
    if consumer.is_ahead:
        yield HealthProblem(
            "consumers",
            f"{name} has read up to {consumer.position}, past the end of the log: the log was restored, and the "
            "checkpoint was not",
            "run `aftercommit restored`: the log then continues above that position, and the consumer gets new events",
            consumer.name,
        )
    idle = consumer.paused or consumer.holder is None
    if idle and consumer.overdue_seconds > limits.max_age_seconds:
        due = f"{plural(consumer.overdue, 'dead letter')} to retry, due for {consumer.overdue_seconds:.0f} s"
        why, remedy = ("is paused", resume) if consumer.paused else ("has no worker", start)
        yield HealthProblem("consumers", f"{name} has {due}, and {why}", remedy, consumer.name)
    if consumer.lag > 0 and consumer.holder is None and not consumer.paused:
        yield HealthProblem("consumers", f"{name} is {behind} and has no worker", start, consumer.name)
    remedy = resume if consumer.paused else FASTER
    if limits.max_lag_events is not None and consumer.lag > limits.max_lag_events:
        found = f"{name} is {behind}, more than {plural(limits.max_lag_events, 'event')}"
        yield HealthProblem("consumers", found, remedy, consumer.name)
    elif limits.max_lag_seconds is not None and consumer.lag_seconds > limits.max_lag_seconds:
        found = f"{name} is {behind}, more than {limits.max_lag_seconds:g} s"
        yield HealthProblem("consumers", found, remedy, consumer.name)


def _dead(seen: Overview, limits: HealthLimits) -> Iterator[HealthProblem]:
    parked = sorted((each for each in seen.dead_letters if each.status == "parked"), key=lambda each: -each.count)
    if sum(each.count for each in parked) > limits.max_dead_letters:
        for each in parked[:MOST_NAMED]:
            found = f"{plural(each.count, 'dead letter')} of {each.owner} {_are(each.count)} parked"
            remedy = (
                f"see `aftercommit dead groups`, then run `aftercommit dead retry --consumer {each.owner}`, or discard "
                "them"
            )
            yield HealthProblem("dead letters", found, remedy)
        if others := parked[MOST_NAMED:]:
            count = sum(each.count for each in others)
            found = f"{plural(count, 'dead letter')} of {plural(len(others), 'other owner')} {_are(count)} parked"
            yield HealthProblem("dead letters", found, "see `aftercommit dead groups`")
    if seen.failed > limits.max_dead_letters:
        yield HealthProblem(
            "failed events",
            f"{plural(seen.failed, 'event')} failed for good and {_are(seen.failed)} not in the log",
            "see `aftercommit dead list` for the errors; `aftercommit dead retry --status parked` delivers them again",
        )


def _operations(seen: Overview) -> Iterator[HealthProblem]:
    for each in seen.operations:
        if not each.driven:
            yield HealthProblem(
                "operations",
                f"operation {each.id} ({each.kind} by {each.requested_by}) stopped at {each.through} of {each.total}",
                f"run `aftercommit replay resume {each.id}`, or `aftercommit replay abort {each.id}`",
            )


def holds_too_long(holder: Blocker, limits: HealthLimits) -> bool:
    """Whether it has blocked others for longer than the limits allow."""
    if holder.kind == "replication slot":
        return (holder.oldest or 0) > OLD_TRANSACTIONS
    return holder.seconds is not None and holder.seconds > limits.max_transaction_seconds


def _holders(seen: Overview, limits: HealthLimits) -> Iterator[HealthProblem]:
    for holder in seen.holders:
        if holds_too_long(holder, limits):
            yield HealthProblem(_HOLDERS[holder.kind], f"{holder} blocks {'; '.join(holder.holds)}", holder.remedy)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
