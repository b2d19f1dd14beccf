"""When an outbox needs a person: limits, and what is beyond them in words, each with its remedy. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from aftercommit.postgres.overview import ConsumerState, Overview

# Rows that a replication slot keeps from vacuum for longer than this make every scan slower.
OLD_TRANSACTIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still all right; None leaves a figure out of it."""

    max_age: float = 60.0
    max_lag: int | None = None
    max_lag_seconds: float | None = None
    max_dead: int = 0
    max_transaction: float = 300.0


def problems(seen: Overview, limits: Limits | None = None) -> list[str]:
    """What an operator should look at, in words; nothing when all is well."""
    limits = limits or Limits()
    return [
        *_flow(seen, limits),
        *(problem for consumer in seen.consumers for problem in _consumer(consumer, limits)),
        *_dead(seen, limits),
        *_operations(seen),
        *_holders(seen, limits),
    ]


def _flow(seen: Overview, limits: Limits) -> Iterator[str]:
    if seen.pending and not any(relay.is_alive for relay in seen.relays):
        yield f"{seen.pending} events wait and no relay is alive: start `aftercommit relay`"
    if seen.oldest_seconds > limits.max_age:
        remedy = "a broken transport, a retry that waits, or too few relays: see the relay's log"
        yield f"the oldest event has waited {seen.oldest_seconds:.0f} s, more than {limits.max_age:g} s: {remedy}"


def _consumer(consumer: ConsumerState, limits: Limits) -> Iterator[str]:
    name, behind = f"consumer {consumer.name!r}", f"{consumer.lag} events behind ({consumer.lag_seconds:.0f} s)"
    resume = f"`aftercommit consumers resume {consumer.name}`"
    remedy = resume if consumer.paused else "speed its handlers up, batch them, or give it more concurrency"
    if consumer.lag > 0 and consumer.holder is None and not consumer.paused:
        yield f"{name} is {behind} and nobody works for it: start `aftercommit worker`"
    if limits.max_lag is not None and consumer.lag > limits.max_lag:
        yield f"{name} is {behind}, more than {limits.max_lag} events: {remedy}"
    elif limits.max_lag_seconds is not None and consumer.lag_seconds > limits.max_lag_seconds:
        yield f"{name} is {behind}, more than {limits.max_lag_seconds:g} s: {remedy}"


def _dead(seen: Overview, limits: Limits) -> Iterator[str]:
    parked = [each for each in seen.dead_letters if each.status == "parked"]
    count = sum(each.count for each in parked)
    if count > limits.max_dead:
        owners = ", ".join(f"{each.owner}: {each.count}" for each in parked)
        yield f"{count} dead letters are parked ({owners}): see `aftercommit dead groups`, then retry or discard them"
    if seen.failed > limits.max_dead:
        yield f"{seen.failed} events failed for good and are not in the log: see `aftercommit dead list`"


def _operations(seen: Overview) -> Iterator[str]:
    for each in seen.operations:
        if not each.driven:
            yield (
                f"operation {each.id} ({each.kind}, {each.through} of {each.total}) is under way and nobody drives it: "
                f"`aftercommit replay resume {each.id}`, or `aftercommit replay abort {each.id}`"
            )


def _holders(seen: Overview, limits: Limits) -> Iterator[str]:
    for holder in seen.holders:
        slot = holder.kind == "replication slot" and (holder.oldest or 0) > OLD_TRANSACTIONS
        if slot or (holder.seconds is not None and holder.seconds > limits.max_transaction):
            yield f"{holder} holds up {'; '.join(holder.holds)}: {holder.remedy}"
