"""Rates and quantiles, computed from two samples of a meter."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from aftercommit.operate.overview import Overview
from aftercommit.telemetry import LATENCY_BUCKETS_MS, Meter

WINDOW_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts of a meter at one time."""

    at: float
    published: int
    handled: int
    failed: int
    latency: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Totals since the process started, and present rates."""

    published: int
    publish_rate: float
    handled: int
    handle_rate: float
    failed: int
    p50_ms: float | None
    p99_ms: float | None
    # Without consumers there is nothing to handle.
    has_consumers: bool = True


def sample(meter: Meter, at: float) -> Sample:
    """Read the meter."""
    with meter.locked():
        columns = zip(*(each.counts for each in meter.latency_ms.values()), strict=True)
        return Sample(
            at,
            published=sum(meter.published.values()),
            handled=sum(count for (_, outcome), count in meter.consumed.items() if outcome == "done"),
            failed=sum(count for (_, outcome), count in meter.consumed.items() if outcome == "failed")
            + sum(meter.failed.values()),
            latency=tuple(sum(column) for column in columns),
        )


def compare(before: Sample, now: Sample) -> Figures:
    """Totals of the later sample, rates and latency between the two."""
    seconds = max(now.at - before.at, 1e-9)
    earlier = before.latency or (0,) * len(now.latency)
    recent = [late - early for late, early in zip(now.latency, earlier, strict=True)]
    return Figures(
        published=now.published,
        publish_rate=(now.published - before.published) / seconds,
        handled=now.handled,
        handle_rate=(now.handled - before.handled) / seconds,
        failed=now.failed,
        p50_ms=quantile(recent, 0.5),
        p99_ms=quantile(recent, 0.99),
    )


def quantile(counts: Sequence[int], share: float, bounds: Sequence[float] = LATENCY_BUCKETS_MS) -> float | None:
    """The value below which this share of the counts lies, interpolated within its bucket; None without counts."""
    total = sum(counts)
    if total == 0:
        return None
    wanted = share * total
    for index, below in enumerate(accumulate(counts)):
        if below >= wanted and counts[index]:
            if index == len(bounds):
                return bounds[-1]
            lower = bounds[index - 1] if index else 0.0
            inside = (wanted - (below - counts[index])) / counts[index]
            return lower + (bounds[index] - lower) * inside
    return bounds[-1]


class RateWindow:
    """Keeps samples of the last seconds, so that rates are current but do not jump."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._samples: deque[Sample] = deque([sample(meter, time.monotonic())])

    def figures(self) -> Figures:
        """The figures now."""
        now = sample(self._meter, time.monotonic())
        self._samples.append(now)
        while len(self._samples) > 2 and now.at - self._samples[1].at >= WINDOW_SECONDS:
            self._samples.popleft()
        return compare(self._samples[0], now)


class RateTracker:
    """Events in and out per second, computed from successive overviews: for processes that have no meter."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Overview]] = deque()

    def of(self, seen: Overview, at: float) -> Overview:
        """The overview with the rates of the last seconds. The first one keeps its own, of the last minute."""
        last = self._looks[-1][1] if self._looks else seen
        if (seen.outbox, _life(seen)) != (last.outbox, _life(last)) or seen.head < last.head:
            # Another life of the log: earlier overviews cannot be compared with it.
            self._looks.clear()
        self._looks.append((at, seen))
        while len(self._looks) > 2 and at - self._looks[1][0] >= WINDOW_SECONDS:
            self._looks.popleft()
        began, first = self._looks[0]
        if at <= began:
            return seen
        delivered = seen.head - first.head
        # Events in = events out + growth of the backlog.
        published = delivered + (seen.pending + seen.failed) - (first.pending + first.failed)
        return replace(seen, published_rate=max(0.0, published / (at - began)), delivered_rate=delivered / (at - began))


def _life(seen: Overview) -> int:
    return seen.life.number if seen.life is not None else 0
