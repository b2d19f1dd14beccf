"""What a run finds out: samples, groups of contestants measured in turns, and whether a target was met. Plain data."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one contestant. Processor times are in seconds."""

    events: int
    seconds: float
    client_cpu: float = 0.0
    server_cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    @property
    def client_microseconds(self) -> float:
        """Processor time of the client, per event."""
        return 1e6 * self.client_cpu / max(1, self.events)

    @property
    def server_microseconds(self) -> float:
        """Processor time of PostgreSQL, per event."""
        return 1e6 * self.server_cpu / max(1, self.events)


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of several rounds, and how far they lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Of one value per round."""
        listed = list(values)
        return cls(statistics.median(listed), min(listed), max(listed))


@dataclass(slots=True)
class Series:
    """All rounds of one contestant; `peer` is the language of other people's software, None for ours and for floors."""

    name: str
    peer: str | None = None
    note: str = ""
    samples: list[Sample] = field(default_factory=list)

    @property
    def rate(self) -> Spread:
        """Events per second over the rounds."""
        return Spread.of(sample.rate for sample in self.samples)

    @property
    def client_microseconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(sample.client_microseconds for sample in self.samples)

    @property
    def server_microseconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(sample.server_microseconds for sample in self.samples)

    @property
    def microseconds(self) -> float:
        """Processor time of client and server together, per event."""
        return self.client_microseconds + self.server_microseconds

    def ratio_to(self, other: "Series") -> Spread:
        """Round by round, so that a slow moment of the machine hits both sides of a ratio."""
        pairs = zip(self.samples, other.samples, strict=True)
        return Spread.of(mine.rate / theirs.rate for mine, theirs in pairs)


@dataclass(slots=True)
class Delays:
    """Times from commit to handler, in milliseconds, of all rounds of one contestant."""

    name: str
    peer: str | None = None
    note: str = ""
    rounds: list[list[float]] = field(default_factory=list)

    def percentile(self, share: float) -> Spread:
        """The percentile in each round: its median, lowest and highest."""
        return Spread.of(percentile(found, share) for found in self.rounds)


@dataclass(slots=True)
class Grown:
    """One figure at a small and at a large size, a value per round; `floor` is what is not ours, at the large size."""

    name: str
    unit: str
    small: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> Spread:
        """Large to small, round by round."""
        pairs = zip(self.small, self.large, strict=True)
        return Spread.of(large / small if small else float(large == 0) for small, large in pairs)


@dataclass(slots=True)
class Group:
    """Contestants that were measured in turns, or figures that were taken at a small and a large size.

    Ratios are told to the first of them, unless `baseline` names another. `absent` says who should have taken part,
    and why they did not. `sizes` and `floor` name the columns of what has `grown`. With `stations`, delays are the
    times at which one event passed them, all from the same start.
    """

    title: str
    unit: str
    series: list[Series] = field(default_factory=list)
    delays: list[Delays] = field(default_factory=list)
    baseline: str | None = None
    absent: dict[str, str] = field(default_factory=dict)
    grown: list[Grown] = field(default_factory=list)
    sizes: tuple[str, str] = ("small", "large")
    floor: str = ""
    stations: bool = False

    def __getitem__(self, name: str) -> Series:
        """A contestant by its name."""
        return next(each for each in self.series if each.name == name)

    def figure(self, name: str) -> Grown:
        """A figure by its name."""
        return next(each for each in self.grown if each.name == name)

    def find(self, name: str) -> Series | None:
        """A contestant by its name, if it took part."""
        return next((each for each in self.series if each.name == name), None)

    def peers(self, *, python: bool | None = None) -> list[Series]:
        """Other people's software in this group, written in Python or not."""
        return [each for each in self.series if each.peer and (python is None or (each.peer == "python") == python)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, and what was found: None where it could not be measured, and then `why` says what was missing."""

    what: str
    direction: Direction
    target: float
    found: Spread | None
    why: str = ""

    @property
    def word(self) -> str:
        """What the table says."""
        if self.found is None:
            return "not measured"
        good = self.found.median >= self.target if self.direction == "at least" else self.found.median <= self.target
        return "met" if good else "missed"


@dataclass(slots=True)
class Finding:
    """All that one case found."""

    case: str
    title: str
    about: str
    groups: list[Group] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def percentile(values: Sequence[float], share: float) -> float:
    """By rank: the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]


def against(what: str, direction: Direction, target: float, ours: Series, other: Series | None) -> Verdict:
    """A verdict on a ratio to a contestant who may be absent."""
    if other is None:
        return Verdict(what, direction, target, None, "nobody to compare with in this run")
    return Verdict(what if other.name in what else f"{what} ({other.name})", direction, target, ours.ratio_to(other))


def best(series: Iterable[Series]) -> Series | None:
    """The fastest, if there is any."""
    return max(series, key=lambda each: each.rate.median, default=None)


def as_json(value: Any) -> Any:
    """Findings as plain data for the record, with the figures that are derived from them."""
    if isinstance(value, Group):
        return _group(value)
    if isinstance(value, Verdict):
        return {**_fields(value), "verdict": value.word}
    if hasattr(value, "__dataclass_fields__"):
        return _fields(value)
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def _fields(value: Any) -> dict[str, Any]:
    return {name: as_json(getattr(value, name)) for name in value.__dataclass_fields__}


def _group(group: Group) -> dict[str, Any]:
    baseline = group.find(group.baseline or group.series[0].name) if group.series else None
    return {
        "title": group.title,
        "unit": group.unit,
        "baseline": baseline.name if baseline is not None else None,
        "absent": group.absent,
        "series": [_series(series, baseline) for series in group.series],
        "delays": [_delays(delays) for delays in group.delays],
        "grown": [_grown(grown) for grown in group.grown],
        "sizes": list(group.sizes),
        "floor": group.floor,
        "stations": group.stations,
    }


def _series(series: Series, baseline: Series | None) -> dict[str, Any]:
    return {
        "name": series.name,
        "peer": series.peer,
        "note": series.note,
        "per_second": as_json(series.rate),
        "to_baseline": as_json(series.ratio_to(baseline)) if baseline is not None else None,
        "client_cpu_microseconds": round(series.client_microseconds, 2),
        "server_cpu_microseconds": round(series.server_microseconds, 2),
        "cpu_to_baseline": round(series.microseconds / baseline.microseconds, 4) if baseline is not None else None,
        "rounds": as_json(series.samples),
    }


def _grown(grown: Grown) -> dict[str, Any]:
    return {
        "name": grown.name,
        "unit": grown.unit,
        "small": as_json(Spread.of(grown.small)),
        "large": as_json(Spread.of(grown.large)),
        "ratio": as_json(grown.ratio),
        "floor": as_json(Spread.of(grown.floor)) if grown.floor else None,
    }


def _delays(delays: Delays) -> dict[str, Any]:
    return {
        "name": delays.name,
        "peer": delays.peer,
        "note": delays.note,
        "p50": as_json(delays.percentile(0.50)),
        "p99": as_json(delays.percentile(0.99)),
        "rounds": [
            {"p50": as_json(percentile(each, 0.50)), "p99": as_json(percentile(each, 0.99))} for each in delays.rounds
        ],
    }
