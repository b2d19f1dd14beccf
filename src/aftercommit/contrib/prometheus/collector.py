"""Meters as Prometheus metrics.

Labels are names that code declares (outbox, event type, consumer, error class), not ids of events, users or tenants, so
the number of series is bounded. `outbox_pending_count` and `outbox_publish_latency_ms` break Prometheus' naming rules;
they stay because others rely on them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aftercommit._version import __version__
from aftercommit.errors import DeclarationError, MissingExtra
from aftercommit.outbox import Outbox
from aftercommit.relay.transport import RELAY_NAME
from aftercommit.telemetry import Histogram, Meter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

OUTCOMES = ("done", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Specification:
    """A metric: its kind, its labels and its help text."""

    kind: Literal["Gauge", "Counter", "Histogram", "Info"]
    labels: tuple[str, ...]
    help: str


METRICS: Mapping[str, Specification] = {
    "outbox_pending_count": Specification("Gauge", ("outbox",), "Committed events that are not in the log yet."),
    "outbox_oldest_pending_age_seconds": Specification(
        "Gauge", ("outbox",), "Age of the oldest event that is not in the log yet; 0 when there is none."
    ),
    "outbox_publish_success_total": Specification(
        "Counter", ("outbox", "event_type"), "Events delivered and appended to the log."
    ),
    "outbox_publish_failed_total": Specification(
        "Counter", ("outbox", "event_type", "error_type"), "Failed attempts to deliver an event."
    ),
    "outbox_publish_latency_ms": Specification(
        "Histogram", ("outbox", "event_type"), "From the writing of an event to its append, in milliseconds."
    ),
    "outbox_publish_duration_seconds": Specification(
        "Histogram", ("outbox", "event_type"), "From the writing of an event to its append, in seconds."
    ),
    "dead_letters_total": Specification(
        "Counter", ("outbox", "owner"), "Events parked as dead letters, by consumer or relay."
    ),
    "consumer_events_total": Specification(
        "Counter", ("outbox", "consumer", "outcome"), "Events handled or skipped, and failed attempts."
    ),
    "consumer_position": Specification(
        "Gauge", ("outbox", "consumer"), "Position in the log up to which a consumer has handled events."
    ),
    "consumer_lag_events": Specification(
        "Gauge", ("outbox", "consumer"), "Events between a consumer and the head of the log."
    ),
    "consumer_version_wait_seconds": Specification(
        "Gauge",
        ("outbox", "consumer"),
        "How long a consumer has waited for code that knows a newer version of an event; 0 when it does not wait.",
    ),
    "aftercommit_build_info": Specification("Info", (), "The running version."),
}


class PrometheusCollector:
    """Collects the metrics of outboxes (or meters) at each scrape."""

    def __init__(self, *sources: Outbox | Meter) -> None:
        """The series of an outbox begin at zero; those of a meter begin with the first value."""
        _prometheus()
        names = [_meter_of(source).outbox for source in sources]
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(f"outbox {name!r} is given twice, so its series would clash: give it once")
        self._sources = sources

    def describe(self) -> "Iterable[Metric]":
        """All metrics without values, for the registry's check of duplicate names."""
        return _empty_page().values()

    def collect(self) -> "Iterable[Metric]":
        """All metrics with their current values."""
        page = _empty_page()
        page["aftercommit_build_info"].add_metric([], {"version": __version__})
        for source in self._sources:
            meter = _meter_of(source)
            with meter.locked():
                if isinstance(source, Outbox):
                    _begin_at_zero(source)
                _add_relay(page, meter)
                _add_consumers(page, meter)
        return page.values()


def register(registry: "CollectorRegistry", *sources: Outbox | Meter) -> PrometheusCollector:
    """Add the metrics of these outboxes to a registry. Give all outboxes of a process in one call."""
    collector = PrometheusCollector(*sources)
    try:
        registry.register(collector)
    except ValueError as problem:
        raise DeclarationError(
            f"the registry already has metrics of these names ({problem!s:.150}…): register all outboxes in one call, "
            "or use a separate registry"
        ) from problem
    return collector


def _prometheus() -> Any:
    try:
        from prometheus_client import core
    except ModuleNotFoundError as problem:
        raise MissingExtra("prometheus", "prometheus_client") from problem
    return core


def _meter_of(source: Outbox | Meter) -> Meter:
    return source if isinstance(source, Meter) else source.meter


def _empty_page() -> dict[str, Any]:
    core = _prometheus()
    return {
        name: getattr(core, f"{metric.kind}MetricFamily")(name.removesuffix("_info"), metric.help, labels=metric.labels)
        for name, metric in METRICS.items()
    }


def _begin_at_zero(outbox: Outbox) -> None:
    """A series must begin at zero, or a rate would miss its first event. Consumers may be declared at any time."""
    meter = outbox.meter
    for event_type in outbox.registry:
        meter.published[event_type.name] += 0
        # The error types are not known in advance. An empty label is the same as no label.
        meter.failed[event_type.name, ""] += 0
        meter.latency_ms.setdefault(event_type.name, Histogram())
    meter.parked[RELAY_NAME] += 0
    for consumer in outbox.consumers:
        meter.parked[consumer] += 0
        for outcome in OUTCOMES:
            meter.consumed[consumer, outcome] += 0


def _add_relay(page: dict[str, Any], meter: Meter) -> None:
    outbox = meter.outbox
    if meter.backlog_is_known:
        # A process without a relay does not measure the backlog: no value is better than a wrong one.
        page["outbox_pending_count"].add_metric([outbox], meter.pending)
        page["outbox_oldest_pending_age_seconds"].add_metric([outbox], meter.oldest_pending_seconds)
    for event_type, count in sorted(meter.published.items()):
        page["outbox_publish_success_total"].add_metric([outbox, event_type], count)
    for (event_type, error_type), count in sorted(meter.failed.items()):
        page["outbox_publish_failed_total"].add_metric([outbox, event_type, error_type], count)
    for event_type, latency in sorted(meter.latency_ms.items()):
        labels = [outbox, event_type]
        page["outbox_publish_latency_ms"].add_metric(labels, _buckets(latency, 1), latency.total)
        page["outbox_publish_duration_seconds"].add_metric(labels, _buckets(latency, 1000), latency.total / 1000)


def _add_consumers(page: dict[str, Any], meter: Meter) -> None:
    outbox = meter.outbox
    for owner, count in sorted(meter.parked.items()):
        page["dead_letters_total"].add_metric([outbox, owner], count)
    for (consumer, outcome), count in sorted(meter.consumed.items()):
        page["consumer_events_total"].add_metric([outbox, consumer, outcome], count)
    for consumer, position in sorted(meter.consumer_position.items()):
        page["consumer_position"].add_metric([outbox, consumer], position)
        page["consumer_lag_events"].add_metric(
            [outbox, consumer], max(0, meter.log_events - meter.consumer_events[consumer])
        )
    for consumer, seconds in sorted(meter.version_wait_seconds.items()):
        page["consumer_version_wait_seconds"].add_metric([outbox, consumer], seconds)


def _buckets(histogram: Histogram, divisor: int) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus expects them."""
    found, below = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        found.append(("+Inf" if bound == float("inf") else repr(bound / divisor), float(below)))
    return found
