"""How long to wait before the next attempt. A policy maps an attempt and its error to seconds, or to giving up."""

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aftercommit.errors import DeclarationError

logger = logging.getLogger("aftercommit.backoff")

LONGEST_DELAY = 365 * 86400.0


class Backoff(Protocol):
    """Seconds until the next attempt after `attempt` failed ones (1 is the first), or None to give up at once."""

    def __call__(self, attempt: int, error: BaseException) -> float | None:
        """The delay in seconds, or None to give up."""
        ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """`base * factor**(attempt-1)`, at most `maximum`, spread downwards by `jitter` (0.5 = between 50 % and 100 %)."""

    base: float = 1.0
    factor: float = 2.0
    maximum: float = 300.0
    jitter: float = 0.5
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse numbers that make no usable delay."""
        finite = all(math.isfinite(number) for number in (self.base, self.factor, self.maximum, self.jitter))
        if not finite or self.base <= 0 or self.factor < 1 or self.maximum < self.base or not 0 <= self.jitter <= 1:
            raise DeclarationError(
                f"{self!r} is not a usable backoff: it needs base > 0, factor >= 1, maximum >= base, 0 <= jitter <= 1"
            )

    def __call__(self, attempt: int, error: BaseException) -> float | None:
        """The delay with jitter; never None."""
        # Compared in logarithms: with many attempts the power itself would overflow before the maximum is applied.
        grown = math.log(self.base) + (attempt - 1) * math.log(self.factor)
        delay = self.maximum if grown >= math.log(self.maximum) else self.base * self.factor ** (attempt - 1)
        return delay * (1 - self.jitter * self.random())


@dataclass(frozen=True, slots=True)
class Constant:
    """The same delay every time."""

    seconds: float

    def __call__(self, attempt: int, error: BaseException) -> float | None:
        """The constant delay."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class Never:
    """Give up at once: the first failure is final."""

    def __call__(self, attempt: int, error: BaseException) -> float | None:
        """None, always."""
        return None


@dataclass(frozen=True, slots=True)
class ByError:
    """A policy per error class. The most specific class wins; all other errors use `otherwise`."""

    policies: Mapping[type[BaseException], Backoff]
    otherwise: Backoff = field(default_factory=Exponential)

    def __call__(self, attempt: int, error: BaseException) -> float | None:
        """The delay of the policy declared for the nearest ancestor of the error's class."""
        for ancestor in type(error).__mro__:
            if ancestor in self.policies:
                return self.policies[ancestor](attempt, error)
        return self.otherwise(attempt, error)


def bounded(seconds: float) -> float:
    """The delay, limited to what the database can add to its clock."""
    return min(max(0.0, float(seconds)), LONGEST_DELAY)


def delay_after(policy: Backoff, attempt: int, error: BaseException) -> float | None:
    """The policy's delay, bounded. If the policy itself raises, the default policy is used."""
    try:
        delay = policy(attempt, error)
        return None if delay is None else bounded(delay)
    except Exception as problem:  # noqa: BLE001 - a policy's bug must stop neither relay nor consumer
        logger.error("backoff_policy_failed", extra={"policy": repr(policy), "error": repr(problem)})
        return Exponential()(attempt, error)
