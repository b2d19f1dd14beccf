"""C9 and C10: what operators see. Figures and log lines come from a real relay on a real PostgreSQL, never made up."""

import asyncio
import io
import json
import logging
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from aftercommit.backoff import Constant, Never
from aftercommit.consumer import LogWorker
from aftercommit.contrib.prometheus import PrometheusCollector, register, serve
from aftercommit.contrib.prometheus.collector import METRICS
from aftercommit.errors import DeclarationError
from aftercommit.event.envelope import Event
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transport import Transport
from aftercommit.relay.transports import LogTransport
from aftercommit.telemetry import JsonFormatter, Meter
from tests.support.programs import REPOSITORY
from tests.support.recording import RecordingTransport
from tests.support.shop import OrderPaid, OrderPlaced, Shop, shop_outbox

SEED_NAMES = {
    "outbox_pending_count": "gauge",
    "outbox_oldest_pending_age_seconds": "gauge",
    "outbox_publish_success_total": "counter",
    "outbox_publish_failed_total": "counter",
    "outbox_publish_latency_ms": "histogram",
}
NASTY = 'line one\nline two \x1b[31mred\x1b[0m "quoted" \u2028 \x00 {json: true}'


class RefusedByBroker(Exception):
    """What the transport of these tests says."""


@asynccontextmanager
async def relay_on(shop: Shop, transport: Transport, **settings: Any) -> AsyncIterator[Relay]:
    """A relay that is at work while the test goes on."""
    chosen = RelaySettings(lease_seconds=2.0, gauge_seconds=0.05, **settings)
    async with Relay(shop.outbox, shop.database, transport, settings=chosen, probe=shop.signals) as relay:
        await shop.signals.wait("relay.ready")
        yield relay


def refusing(order_id: str, text: str = "no such exchange") -> RecordingTransport:
    """A transport that refuses the events of one order."""
    return RecordingTransport(lambda record: RefusedByBroker(text) if record.aggregate_id == order_id else None)


class Scrape:
    """One scrape of one outbox, through the text that Prometheus would read."""

    def __init__(self, *sources: Any) -> None:
        registry = CollectorRegistry()
        register(registry, *sources)
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            self.families[_exposed_name(family)] = family

    def value(self, sample_name: str, **labels: str) -> float | None:
        """The value of one series; None when there is none."""
        for family in self.families.values():
            for sample in family.samples:
                if sample.name == sample_name and labels.items() <= sample.labels.items():
                    return sample.value
        return None


def _exposed_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


@pytest.mark.contract("C9")
async def test_five_metrics_have_exactly_the_agreed_names_and_types(shop: Shop) -> None:
    """C9: the names and types, from the text of a scrape while a relay runs."""
    async with relay_on(shop, LogTransport()):
        await shop.signals.wait("relay.measured")
        families = Scrape(shop.outbox).families
    assert {name: families[name].type for name in SEED_NAMES} == SEED_NAMES


@pytest.mark.contract("C9")
async def test_a_published_event_is_counted_and_timed(shop: Shop) -> None:
    """C9: success counts per type, and the histograms hold one value per event, in milliseconds and in seconds."""
    async with relay_on(shop, LogTransport()):
        shop.publish(OrderPlaced("o-1"), OrderPlaced("o-2"), OrderPaid("o-1", 5))
        await shop.signals.wait_total("relay.appended", 3)
        await shop.signals.next("relay.measured")
        await shop.signals.next("relay.measured")
        scrape = Scrape(shop.outbox)
    placed = {"outbox": "shop", "event_type": "order.placed"}
    assert scrape.value("outbox_publish_success_total", **placed) == 2
    assert scrape.value("outbox_publish_success_total", outbox="shop", event_type="order.paid") == 1
    assert scrape.value("outbox_publish_failed_total", **placed) == 0
    assert scrape.value("outbox_publish_latency_ms_count", **placed) == 2
    assert scrape.value("outbox_publish_latency_ms_bucket", le="+Inf", **placed) == 2
    assert scrape.value("outbox_publish_duration_seconds_count", **placed) == 2
    milliseconds = scrape.value("outbox_publish_latency_ms_sum", **placed)
    assert milliseconds is not None
    assert 0 < milliseconds < 120_000
    assert scrape.value("outbox_publish_duration_seconds_sum", **placed) == pytest.approx(milliseconds / 1000)
    assert scrape.value("outbox_pending_count", outbox="shop") == 0
    assert scrape.value("outbox_oldest_pending_age_seconds", outbox="shop") == 0


@pytest.mark.contract("C9")
async def test_a_failed_delivery_is_counted_by_its_error_and_the_event_stays_in_the_backlog(shop: Shop) -> None:
    """C9: failures carry the class of the error; the event that waits for its retry is pending and grows older."""
    shop.outbox.backoff = Constant(600.0)
    async with relay_on(shop, refusing("o-1")):
        shop.publish(OrderPlaced("o-1"), OrderPlaced("o-2"))
        await shop.signals.wait("relay.failed")
        await shop.signals.wait_total("relay.appended", 1)
        await shop.signals.next("relay.measured")
        await shop.signals.next("relay.measured")
        scrape = Scrape(shop.outbox)
    failed = {"outbox": "shop", "event_type": "order.placed", "error_type": "RefusedByBroker"}
    assert scrape.value("outbox_publish_failed_total", **failed) == 1
    assert scrape.value("outbox_publish_success_total", event_type="order.placed") == 1
    assert scrape.value("outbox_pending_count", outbox="shop") == 1
    age = scrape.value("outbox_oldest_pending_age_seconds", outbox="shop")
    assert age is not None
    assert age > 0
    assert scrape.value("dead_letters_total", owner="@relay") == 0


@pytest.mark.contract("C9")
async def test_a_backlog_shows_while_the_transport_is_down_and_is_gone_after_it(shop: Shop) -> None:
    """C9: what was committed before the relay came is pending with its age; afterwards both gauges are zero."""
    shop.publish(*(OrderPlaced(f"o-{number}") for number in range(7)))
    async with relay_on(shop, LogTransport()):
        await shop.signals.wait_total("relay.appended", 7)
    held = refusing("none")
    shop.publish(*(OrderPlaced(f"o-{number}") for number in range(5)))
    hold = shop.signals.hold("relay.deliver")
    async with relay_on(shop, held):
        await hold.wait()
        await shop.signals.next("relay.measured")
        await shop.signals.next("relay.measured")
        waiting = Scrape(shop.outbox)
        hold.release()
        await shop.signals.wait_total("relay.appended", 12)
        await shop.signals.next("relay.measured")
        await shop.signals.next("relay.measured")
        drained = Scrape(shop.outbox)
    assert waiting.value("outbox_pending_count", outbox="shop") == 5
    assert waiting.value("outbox_oldest_pending_age_seconds", outbox="shop") != 0
    assert drained.value("outbox_pending_count", outbox="shop") == 0
    assert drained.value("outbox_oldest_pending_age_seconds", outbox="shop") == 0
    assert drained.value("outbox_publish_success_total", event_type="order.placed") == 12


async def test_consumers_show_what_they_did_and_how_far_behind_they_are(shop: Shop) -> None:
    consumer = shop.outbox.consumer("index", retry_count=0, backoff=Never())

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        if event.payload.order_id == "o-1":
            raise RefusedByBroker("not this one")

    async with relay_on(shop, LogTransport()):
        shop.publish(OrderPlaced("o-1"), OrderPlaced("o-2"), OrderPlaced("o-3"))
        await shop.signals.wait_total("relay.appended", 3)
    async with LogWorker(shop.outbox, consumer, shop.database, probe=shop.signals):
        await shop.signals.wait("consumer.idle")
    scrape = Scrape(shop.outbox)
    assert scrape.value("consumer_events_total", consumer="index", outcome="done") == 2
    assert scrape.value("consumer_events_total", consumer="index", outcome="failed") == 1
    assert scrape.value("dead_letters_total", owner="index") == 1
    assert scrape.value("consumer_position", consumer="index") == 3
    assert scrape.value("consumer_lag_events", consumer="index") == 0


def test_series_of_declared_types_and_consumers_begin_at_zero() -> None:
    outbox = shop_outbox()
    outbox.consumer("index")
    scrape = Scrape(outbox)
    for event_type in ("order.placed", "order.paid"):
        assert scrape.value("outbox_publish_success_total", event_type=event_type) == 0
        assert scrape.value("outbox_publish_failed_total", event_type=event_type) == 0
        assert scrape.value("outbox_publish_latency_ms_count", event_type=event_type) == 0
    for outcome in ("done", "skipped", "failed"):
        assert scrape.value("consumer_events_total", consumer="index", outcome=outcome) == 0
    assert scrape.value("dead_letters_total", owner="index") == 0


def test_a_process_that_does_not_look_at_the_backlog_says_nothing_about_it() -> None:
    meter = Meter("shop")
    assert Scrape(meter).value("outbox_pending_count") is None
    meter.on_backlog(3, 1.5)
    assert Scrape(meter).value("outbox_pending_count", outbox="shop") == 3


def test_several_outboxes_share_a_scrape_and_none_is_given_twice() -> None:
    one, two = Meter("one"), Meter("two")
    one.on_failed("a.b", "ValueError")
    two.on_failed("a.b", "ValueError")
    scrape = Scrape(one, two)
    assert [scrape.value("outbox_publish_failed_total", outbox=name) for name in ("one", "two")] == [1, 1]
    with pytest.raises(DeclarationError, match="'one' is given twice"):
        PrometheusCollector(one, one)


def test_registering_again_says_how_to_do_it_right() -> None:
    registry = CollectorRegistry()
    register(registry, Meter("one"))
    with pytest.raises(DeclarationError, match="register all outboxes in one call"):
        register(registry, Meter("two"))


async def test_no_id_of_an_event_or_a_tenant_is_ever_a_label(shop: Shop) -> None:
    shop.outbox.consumer("index")
    async with relay_on(shop, refusing("o-secret")):
        shop.publish(OrderPlaced("o-secret"), OrderPlaced("o-2"), tenant_id="tenant-secret")
        await shop.signals.wait("relay.failed")
        await shop.signals.wait_total("relay.appended", 1)
    families = Scrape(shop.outbox).families
    labels = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert labels == {"outbox", "event_type", "error_type", "le", "owner", "consumer", "outcome", "version"}
    assert "secret" not in str(families)


# Prometheus' own linter has these rules. Two of the agreed names break one each, and nothing else may.
ALLOWED = {
    "outbox_pending_count: a gauge must not end in _count",
    "outbox_publish_latency_ms: use seconds, not ms",
}
NOT_BASE_UNITS = {"ms": "seconds", "milliseconds": "seconds", "minutes": "seconds", "kb": "bytes", "percent": "ratio"}


def lint(family: Metric) -> Iterator[str]:
    name = _exposed_name(family)
    words = name.split("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or "__" in name:
        yield f"{name}: lower-case words and single underscores"
    if not family.documentation.endswith("."):
        yield f"{name}: the help must be a sentence"
    if family.type != "counter" and name.endswith("_total"):
        yield f"{name}: only a counter may end in _total"
    if family.type in ("gauge", "counter") and words[-1] in ("count", "sum", "bucket"):
        yield f"{name}: a {family.type} must not end in _{words[-1]}"
    if family.type in words:
        yield f"{name}: the type does not belong in the name"
    for word in NOT_BASE_UNITS.keys() & set(words):
        yield f"{name}: use {NOT_BASE_UNITS[word]}, not {word}"


def test_names_follow_the_rules_of_prometheus_but_for_the_two_that_were_agreed_before() -> None:
    outbox = shop_outbox()
    outbox.meter.on_backlog(1, 1.0)
    outbox.meter.on_progress("index", 1, 2, 1)
    families = Scrape(outbox).families
    assert families.keys() == METRICS.keys()
    assert {complaint for family in families.values() for complaint in lint(family)} == ALLOWED


def test_the_figures_can_be_read_as_openmetrics_too() -> None:
    """Prometheus asks for OpenMetrics first, whose parser is stricter about names."""
    outbox = shop_outbox()
    outbox.meter.on_backlog(2, 1.0)
    registry = CollectorRegistry()
    register(registry, outbox)
    families = {family.name: family for family in parse_openmetrics(generate_openmetrics(registry).decode())}
    assert families["outbox_pending_count"].samples[0].value == 2
    assert "outbox_publish_success" in families


async def test_metrics_are_served_on_loopback() -> None:
    server = serve(0, shop_outbox())
    try:
        assert server.url.startswith("http://127.0.0.1:")
        with await asyncio.to_thread(urllib.request.urlopen, server.url, timeout=60) as response:
            text = response.read().decode()
    finally:
        server.stop()
    assert 'outbox_publish_success_total{event_type="order.placed",outbox="shop"} 0.0' in text
    assert "process_cpu_seconds_total" in text


class Lines(logging.Handler):
    """Log lines as a process would write them, each read back as the JSON that it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = io.StringIO()
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream.write(self.format(record) + "\n")

    def named(self, event: str) -> list[dict[str, Any]]:
        """The lines of one name; every line must be one JSON object."""
        lines = [json.loads(line) for line in self.stream.getvalue().split("\n") if line]
        return [line for line in lines if line["event"] == event]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What aftercommit logs during the test."""
    handler, logger = Lines(), logging.getLogger("aftercommit")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.contract("C10")
async def test_publishing_and_delivering_are_logged_under_the_agreed_names(shop: Shop, lines: Lines) -> None:
    """C10: `outbox_enqueued` when it is written, `outbox_publish_succeeded` when it is in the log, with its id."""
    event_id = str(shop.place("o-1"))
    async with relay_on(shop, LogTransport()):
        await shop.signals.wait_total("relay.appended", 1)
    (enqueued,) = lines.named("outbox_enqueued")
    assert enqueued["event_id"] == event_id
    assert enqueued["event_type"] == "order.placed"
    assert enqueued["outbox"] == "shop"
    assert enqueued["correlation_id"] == event_id
    assert enqueued["level"] == "info"
    (succeeded,) = lines.named("outbox_publish_succeeded")
    assert succeeded["event_id"] == event_id
    assert succeeded["outbox"] == "shop"
    assert succeeded["transport"] == "log"
    assert succeeded["position"] == 1


@pytest.mark.contract("C10")
async def test_a_rolled_back_publish_may_be_logged_but_its_delivery_never_is(shop: Shop, lines: Lines) -> None:
    """C10: `outbox_enqueued` speaks of the write; only what was committed is ever said to have succeeded."""
    with shop.connect() as connection:
        shop.outbox.publish(connection, OrderPlaced("gone"), tenant_id="acme")
        connection.rollback()
    kept = str(shop.place("kept"))
    async with relay_on(shop, LogTransport()):
        await shop.signals.wait_total("relay.appended", 1)
    assert [line["event_id"] for line in lines.named("outbox_publish_succeeded")] == [kept]


@pytest.mark.contract("C10")
async def test_failures_and_dead_letters_are_logged_as_one_json_line_each_whatever_the_error_says(
    shop: Shop, lines: Lines
) -> None:
    """C10: `outbox_publish_failed` per attempt, `outbox_dead_lettered` at the end; no error text breaks a line."""
    shop.outbox.max_attempts = 2
    shop.outbox.backoff = Constant(0.01)
    event_id = str(shop.place("o-1"))
    async with relay_on(shop, refusing("o-1", NASTY)):
        await shop.signals.wait("relay.failed", 2)
    first, second = lines.named("outbox_publish_failed")
    for attempt, line in ((1, first), (2, second)):
        assert line["event_id"] == event_id
        assert line["event_type"] == "order.placed"
        assert line["outbox"] == "shop"
        assert line["attempt"] == attempt
        assert line["error_class"] == "RefusedByBroker"
        assert line["error"].startswith("line one\nline two \x1b[31mred")
        assert line["level"] == "warning"
    assert first["retry_in"] == 0.01
    assert second["retry_in"] is None
    (dead,) = lines.named("outbox_dead_lettered")
    assert dead["event_id"] == event_id
    assert dead["level"] == "error"
    assert "\x1b" not in lines.stream.getvalue()
    assert shop.value("select status from outbox") == "failed"


@pytest.mark.contract("C10")
async def test_a_consumer_that_gives_up_logs_the_dead_letter_with_its_name(shop: Shop, lines: Lines) -> None:
    """C10: `outbox_dead_lettered` also for what a consumer parks."""
    consumer = shop.outbox.consumer("index", retry_count=0, backoff=Never())

    @consumer.on(OrderPlaced)
    async def handle(event: Event[OrderPlaced]) -> None:
        raise RefusedByBroker(NASTY)

    event_id = str(shop.place("o-1"))
    async with relay_on(shop, LogTransport()):
        await shop.signals.wait_total("relay.appended", 1)
    async with LogWorker(shop.outbox, consumer, shop.database, probe=shop.signals):
        await shop.signals.wait("consumer.failed")
    (dead,) = lines.named("outbox_dead_lettered")
    assert (dead["event_id"], dead["consumer"]) == (event_id, "index")


def test_the_guide_lists_every_metric_with_its_labels() -> None:
    guide = (REPOSITORY / "docs" / "guides" / "observability.md").read_text()
    for name, metric in METRICS.items():
        labels = ", ".join(metric.labels) or "version"
        kind = "gauge" if metric.kind == "Info" else metric.kind.lower()
        assert f"| `{name}` | {kind} | {labels} |" in guide
