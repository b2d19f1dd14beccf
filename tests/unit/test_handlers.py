"""Consumers and their handlers as declarations: what could not work is refused where it is written."""

import functools
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from aftercommit.backoff import Constant
from aftercommit.errors import DeclarationError, DuplicateDeclaration, UnknownEventType
from aftercommit.event.envelope import Event
from aftercommit.outbox import Outbox
from aftercommit.relay.transport import RELAY_NAME


@pytest.fixture
def outbox() -> Outbox:
    outbox = Outbox("handlers")
    for name in ("placed", "paid", "shipped"):
        outbox.declare(name)
    return outbox


def event(name: str, **payload: Any) -> Event[Any]:
    return Event(
        event_id=uuid4(),
        type=name,
        schema_version=1,
        aggregate_type="order",
        aggregate_id="o-1",
        occurred_at=datetime.now(UTC),
        correlation_id="story",
        causation_id=None,
        scope={},
        payload=payload,
        position=1,
        attempt=1,
    )


def handle(event: Event[Any]) -> None:
    """A handler like most."""


def handle_in_transaction(event: Event[Any], connection: Any) -> None:
    """A handler that writes."""


async def handle_async(event: Event[Any], connection: Any) -> None:
    """A handler that waits."""


# Names and settings.


@pytest.mark.parametrize("name", ["a", "product-index", "mail/eu:1.x_2", "x" * 100])
def test_ordinary_names_are_taken(outbox, name):
    assert outbox.consumer(name).name == name


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "ünï", "a\x00", "x" * 101, RELAY_NAME, None, 5])
def test_other_names_are_refused(outbox, name):
    with pytest.raises(DeclarationError, match=r"consumer name .* is not valid"):
        outbox.consumer(name)
    assert outbox.consumers == {}


def test_a_name_is_declared_once(outbox):
    outbox.consumer("index")

    with pytest.raises(DuplicateDeclaration, match="'index' is declared twice"):
        outbox.consumer("index")


@pytest.mark.parametrize(
    "settings",
    [
        {"retry_count": -1},
        {"timeout": 0},
        {"timeout": -1.0},
        {"concurrency": 0},
        {"ordering": "sometimes"},
        {"start": "yesterday"},
        {"inbox": False, "concurrency": 2},
    ],
)
def test_settings_that_cannot_work_are_refused(outbox, settings):
    with pytest.raises(DeclarationError, match="consumer 'index'"):
        outbox.consumer("index", **settings)
    assert outbox.consumers == {}


def test_settings_are_kept(outbox):
    consumer = outbox.consumer("index", retry_count=0, backoff=Constant(1), concurrency=4, start="latest")

    assert (consumer.retry_count, consumer.backoff, consumer.concurrency, consumer.start) == (
        0,
        Constant(1),
        4,
        "latest",
    )


# Which events a handler takes.


def test_a_handler_takes_the_types_it_names_in_any_of_the_ways_to_name_them(outbox):
    from tests.unit.payload_kinds import DataclassOrder

    ordered = outbox.declare("ordered", DataclassOrder)
    outbox.on("placed", DataclassOrder, outbox.registry.named("paid"), consumer="index")(handle)

    (handler,) = outbox.consumers["index"].handlers
    assert handler.types == {"placed", "paid", ordered.name}
    assert handler.can_handle(event("placed"))
    assert not handler.can_handle(event("shipped"))


def test_a_condition_alone_or_with_types_decides(outbox):
    consumer = outbox.consumer("index")
    consumer.on("placed", can_handle=lambda event: event.payload["large"])(handle)
    consumer.on("paid", can_handle=lambda event: event.payload["large"])(handle)
    anything = outbox.consumer("audit")
    anything.on(can_handle=lambda event: event.type.startswith("p"))(handle)

    placed = consumer.handlers[0]
    assert placed.can_handle(event("placed", large=True))
    assert not placed.can_handle(event("placed", large=False))
    assert not placed.can_handle(event("paid", large=True))
    assert anything.handlers[0].can_handle(event("paid"))
    assert not anything.handlers[0].can_handle(event("shipped"))
    assert (consumer.types, anything.types) == (["paid", "placed"], None)


def test_a_handler_for_nothing_is_refused(outbox):
    with pytest.raises(DeclarationError, match="needs event types, can_handle=…, or both"):
        outbox.consumer("index").on()(handle)


def test_a_handler_for_an_unknown_type_is_refused_and_leaves_no_consumer_behind(outbox):
    with pytest.raises(UnknownEventType, match="'plcaed'"):
        outbox.on("placed", "plcaed", consumer="index")

    assert outbox.consumers == {}


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({"events": ["placed"]}, {"events": ["placed"]}, "placed"),
        ({"events": ["placed", "paid"]}, {"events": ["shipped", "paid"]}, "paid"),
        ({"events": ["placed"]}, {"events": ["placed"], "can_handle": bool}, "placed"),
        ({"events": ["placed"], "can_handle": bool}, {"events": ["placed"]}, "placed"),
        ({"events": ["placed"]}, {"events": [], "can_handle": bool}, "any type"),
        ({"events": [], "can_handle": bool}, {"events": ["placed"]}, "any type"),
    ],
)
def test_two_handlers_of_one_consumer_may_not_want_the_same_event(outbox, first, second, shared):
    consumer = outbox.consumer("index")
    consumer.on(*first.pop("events"), **first)(handle)

    with pytest.raises(DuplicateDeclaration, match=f"already has a handler for {shared} .*handle.*its own consumer"):
        consumer.on(*second.pop("events"), **second)(handle_in_transaction)


def test_two_handlers_with_conditions_may_share_a_type(outbox):
    consumer = outbox.consumer("index")
    for wanted in (True, False):
        consumer.on("placed", can_handle=lambda event, wanted=wanted: event.payload["large"] is wanted)(handle)

    assert [handler.can_handle(event("placed", large=False)) for handler in consumer.handlers] == [False, True]


def test_the_same_event_may_have_a_handler_in_every_consumer(outbox):
    for name in ("index", "mail"):
        outbox.on("placed", consumer=name)(handle)

    assert sorted(outbox.consumers) == ["index", "mail"]


# How a handler is called.


def test_the_decorator_leaves_the_function_as_it_is(outbox):
    assert outbox.on("placed", consumer="index")(handle) is handle


@pytest.mark.parametrize(("function", "takes"), [(handle, False), (handle_in_transaction, True), (handle_async, True)])
def test_a_second_argument_asks_for_the_transaction(outbox, function, takes):
    outbox.on("placed", consumer="index")(function)

    assert outbox.consumers["index"].handlers[0].takes_transaction is takes


def test_a_batch_handler_says_so(outbox):
    outbox.on("placed", consumer="index", batch=True)(handle_in_transaction)

    assert outbox.consumers["index"].handlers[0].batch is True


class Indexer:
    def method(self, event: Event[Any], connection: Any) -> None:
        """A bound method."""

    async def method_async(self, event: Event[Any]) -> None:
        """A bound coroutine method."""


class CallableIndexer:
    async def __call__(self, event: Event[Any], connection: Any) -> None:
        """An object that is called."""


def configured(event: Event[Any], connection: Any, colour: str = "red") -> None:
    """A handler with a setting."""


def configured_first(colour: str, event: Event[Any]) -> None:
    """A handler whose first argument is bound."""


@pytest.mark.parametrize(
    ("function", "takes", "is_async"),
    [
        (Indexer().method, True, False),
        (Indexer().method_async, False, True),
        (CallableIndexer(), True, True),
        (configured, True, False),
        (functools.partial(configured_first, "blue"), False, False),
        (functools.partial(handle_async), True, True),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_methods_objects_and_partials_are_handlers_too(outbox, function, takes, is_async):
    outbox.on("placed", consumer="index")(function)

    consumer = outbox.consumers["index"]
    assert (consumer.handlers[0].takes_transaction, consumer.is_async) == (takes, is_async)
    assert consumer.handlers[0].function == function


def test_async_and_sync_handlers_do_not_share_a_consumer(outbox):
    outbox.on("placed", consumer="index")(handle)

    with pytest.raises(DeclarationError, match=r"mixes async and sync handlers.*handle_async"):
        outbox.on("paid", consumer="index")(handle_async)
    assert outbox.consumers["index"].is_async is False


def no_arguments() -> None: ...


def three_arguments(event: Any, connection: Any, third: Any) -> None: ...


def by_keyword(event: Any, *, connection: Any) -> None: ...


def takes_anything(*events: Any) -> None: ...


@pytest.mark.parametrize("function", [no_arguments, three_arguments, by_keyword, takes_anything])
def test_a_handler_takes_the_event_or_the_event_and_the_connection(outbox, function):
    with pytest.raises(DeclarationError, match=f"handler .*{function.__name__} of consumer 'index' needs"):
        outbox.on("placed", consumer="index")(function)
    assert outbox.consumers["index"].handlers == []
    assert outbox.consumers["index"].is_async is None


def generator(event: Any) -> Any:
    yield event


async def async_generator(event: Any) -> Any:
    yield event


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_handler_with_a_yield_would_run_nothing_and_is_refused(outbox, function):
    with pytest.raises(DeclarationError, match="is a generator"):
        outbox.on("placed", consumer="index")(function)


def test_what_cannot_be_called_is_no_handler(outbox):
    with pytest.raises(DeclarationError, match=r"'not a function'.*is not callable"):
        outbox.on("placed", consumer="index")("not a function")


def test_a_consumer_without_a_handler_is_declared_by_nobody(outbox):
    with pytest.raises(DeclarationError, match="has no handler"):
        _ = outbox.consumer("index").declared_by


# The outbox itself.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ordering": "sometimes"}, "'relaxed' or 'strict'"),
        ({"max_attempts": 0}, "must be positive"),
        ({"max_payload_bytes": 1}, "must be positive"),
        ({"numbered": "order"}, r"give a list, \['order'\]"),
        ({"indexed": "aggregate_id"}, r"give a list, \['aggregate_id'\]"),
        ({"indexed": ["colour"]}, "not a scope column, aggregate_id or created_at"),
        ({"scope": {"tenant": float}}, "use str, int or uuid.UUID"),
        ({"scope": {"Tenant": str}}, "not valid"),
        ({"scope": {"payload": str}}, "'payload' is not valid"),
        ({"scope": {"outside_transaction": str}}, "'outside_transaction' is not valid"),
        ({"scope": {"self": str}}, "'self' is not valid"),
        ({"schema": ""}, "schema name '' is not valid"),
        ({"schema": "x" * 64}, "63 bytes"),
        ({"schema": "pg_mine"}, "belongs to PostgreSQL"),
    ],
)
def test_an_outbox_that_cannot_work_is_refused(settings, words):
    with pytest.raises(DeclarationError, match=words):
        Outbox(**settings)
