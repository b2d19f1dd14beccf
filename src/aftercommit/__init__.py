"""Transactional outbox, ordered event log and live feeds for PostgreSQL.

The path of an event, and the package of each step:

    event       types, payloads, the envelope
    outbox      publish: write an event in your transaction
    relay       deliver it to a transport and append it to the log
    consumer    handle it, with its database changes in one transaction

    outbox = Outbox(scope={"tenant_id": str})

    @outbox.event("order.placed", aggregate="order", key="order_id")
    @dataclass
    class OrderPlaced: ...

    with psycopg.connect(dsn) as connection:
        connection.execute("insert into orders …")
        outbox.publish(connection, OrderPlaced(…), tenant_id="acme")

    @outbox.on(OrderPlaced, consumer="order-totals")
    async def count(event, connection): ...

    async with Engine(outbox, Database(dsn)): ...
"""

from typing import TYPE_CHECKING

from aftercommit._version import __version__
from aftercommit.backoff import Backoff, ByError, Constant, Exponential, Never
from aftercommit.consumer import Done, Outcome, Park, Retry, WorkerSettings
from aftercommit.engine import Engine
from aftercommit.errors import AftercommitError, ContractViolation
from aftercommit.event.correlation import checked_correlation, correlation
from aftercommit.event.definition import EventType
from aftercommit.event.envelope import Draft, Event, Record
from aftercommit.event.identity import uuid7
from aftercommit.event.json_rules import text_problem
from aftercommit.lazy import lazy
from aftercommit.outbox import Outbox, Receipt
from aftercommit.outbox.handlers import Consumer
from aftercommit.postgres.database import Database
from aftercommit.postgres.shape import DeclaredView, Shape
from aftercommit.relay import Relay, RelaySettings
from aftercommit.relay.transport import Capabilities, Failure, Transport
from aftercommit.relay.transports import LogTransport
from aftercommit.schema.retention import Retention
from aftercommit.service import Probe, Service, Waker, until_one_ends
from aftercommit.telemetry import JsonFormatter, log_event

if TYPE_CHECKING:
    from aftercommit.application import Application, Companions, Serving
else:
    __getattr__ = lazy(__name__, {"aftercommit.application": ("Application", "Companions", "Serving")})

__all__ = [
    "AftercommitError",
    "Application",
    "Backoff",
    "ByError",
    "Capabilities",
    "Companions",
    "Constant",
    "Consumer",
    "ContractViolation",
    "Database",
    "DeclaredView",
    "Done",
    "Draft",
    "Engine",
    "Event",
    "EventType",
    "Exponential",
    "Failure",
    "JsonFormatter",
    "LogTransport",
    "Never",
    "Outbox",
    "Outcome",
    "Park",
    "Probe",
    "Receipt",
    "Record",
    "Relay",
    "RelaySettings",
    "Retention",
    "Retry",
    "Service",
    "Serving",
    "Shape",
    "Transport",
    "Waker",
    "WorkerSettings",
    "__version__",
    "checked_correlation",
    "correlation",
    "log_event",
    "text_problem",
    "until_one_ends",
    "uuid7",
]
