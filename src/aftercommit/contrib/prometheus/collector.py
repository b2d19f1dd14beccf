"""Meters as Prometheus metrics, under the agreed names.

Labels are names that code declares (outbox, event type, consumer, class of error), never an id of an event, a
user or a tenant: the number of series is bounded by the code. `outbox_pending_count` and
`outbox_publish_latency_ms` break Prometheus' naming rules and are kept because others rely on them.
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
    """What a metric is: its kind, its labels, and the sentence that Prometheus shows with it."""

    kind: Literal["Gauge", "Counter", "Histogram", "Info"]
    labels: tuple[str, ...]
    help: str


METRICS: Mapping[str, Specification] = {
    "outbox_pending_count": Specification("Gauge", ("outbox",), "Events that are committed and not in the log yet."),
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
        "Counter",
        ("outbox", "owner"),
        "Events parked as dead letters, by the consumer or relay that did.",
    ),
    "consumer_events_total": Specification(
        "Counter",
        ("outbox", "consumer", "outcome"),
        "Events handled or skipped, and failed attempts.",
    ),
    "consumer_position": Specification(
        "Gauge", ("outbox", "consumer"), "Position in the log up to which a consumer is through."
    ),
    "consumer_lag_events": Specification(
        "Gauge", ("outbox", "consumer"), "Events between a consumer and the head of the log."
    ),
    "consumer_version_wait_seconds": Specification(
        "Gauge",
        ("outbox", "consumer"),
        "How long a consumer has waited for code that knows a newer version of an event; 0 when it does not.",
    ),
    "aftercommit_build_info": Specification("Info", (), "The version that runs."),
}


class PrometheusCollector:
    """Collects the figures of some outboxes (or bare meters) at each scrape."""

    def __init__(self, *sources: Outbox | Meter) -> None:
        """Series of an outbox begin at zero, as it knows what may come; those of a meter when it comes."""
        _prometheus()
        names = [_meter_of(source).outbox for source in sources]
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(f"outbox {name!r} is given twice, and its series would clash: give it once")
        self._sources = sources

    def describe(self) -> "Iterable[Metric]":
        """Every metric without figures: what else in a registry would clash with it."""
        return _empty_page().values()

    def collect(self) -> "Iterable[Metric]":
        """The figures of this moment."""
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
    """Add the figures of these outboxes to a registry; all outboxes of a process go into one call."""
    collector = PrometheusCollector(*sources)
    try:
        registry.register(collector)
    except ValueError as problem:
        raise DeclarationError(
            f"the registry has metrics of these names already ({problem!s:.150}…): register all outboxes in "
            "one call, or give them a registry of their own"
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
    """Series that begin at zero show their first event as a rise; consumers may be declared at any time."""
    meter = outbox.meter
    for event_type in outbox.registry:
        meter.published[event_type.name] += 0
        # Which errors will come is not known. An empty label counts as none: this is the series without it.
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
        # A process without a relay does not look at the backlog: no figure is better than a wrong one.
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
    """Counts up to each bound, as Prometheus wants them: rising, and ending with all."""
    found, below = [], 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        found.append(("+Inf" if bound == float("inf") else repr(bound / divisor), float(below)))
    return found
