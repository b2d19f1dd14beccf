"""The test kit for your own tests.

Tests work with a `World` or `AsyncWorld`. The pytest plugin makes one per test (`aftercommit_world`,
`aftercommit_async_world`), each with its own database. `TransportSuite` and `PublishSuite` are the tests that your own
transport or adapter must pass; they need pytest.
"""

from typing import TYPE_CHECKING

from aftercommit.lazy import lazy
from aftercommit.testing.deliver_twice import Deliveries
from aftercommit.testing.drain import Drained
from aftercommit.testing.expectations import Expected
from aftercommit.testing.fault_proxy import CommitWatch, FaultProxy, NetworkFaults, ProxiedConnection
from aftercommit.testing.faults import Faults
from aftercommit.testing.points import POINTS, Plan, Points, SimulatedCrash, crash_environment, crash_from_environment
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.published import Published
from aftercommit.testing.signals import Hold, Signals
from aftercommit.testing.spy import Attempt
from aftercommit.testing.tables import Letter
from aftercommit.testing.transports import RecordingTransport, TransportFaults, UnreliableTransport
from aftercommit.testing.world import AsyncWorld, World

if TYPE_CHECKING:
    from aftercommit.testing.django import django_dsn, use_django_database
    from aftercommit.testing.outbox_suite import PublishSuite
    from aftercommit.testing.publish_harness import Caller, PublishHarness
    from aftercommit.testing.publish_stage import create_suite_tables
    from aftercommit.testing.transport_harness import Received, TransportHarness
    from aftercommit.testing.transport_suite import TransportSuite
else:
    __getattr__ = lazy(
        __name__,
        {
            "aftercommit.testing.django": ("django_dsn", "use_django_database"),
            "aftercommit.testing.outbox_suite": ("PublishSuite",),
            "aftercommit.testing.publish_harness": ("Caller", "PublishHarness"),
            "aftercommit.testing.publish_stage": ("create_suite_tables",),
            "aftercommit.testing.transport_harness": ("Received", "TransportHarness"),
            "aftercommit.testing.transport_suite": ("TransportSuite",),
        },
    )

__all__ = [
    "POINTS",
    "AsyncWorld",
    "Attempt",
    "Caller",
    "CommitWatch",
    "Deliveries",
    "Drained",
    "Expected",
    "FaultProxy",
    "Faults",
    "Hold",
    "Letter",
    "NetworkFaults",
    "Plan",
    "Points",
    "PostgresServerForTests",
    "ProxiedConnection",
    "PublishHarness",
    "PublishSuite",
    "Published",
    "Received",
    "RecordingTransport",
    "Signals",
    "SimulatedCrash",
    "TransportFaults",
    "TransportHarness",
    "TransportSuite",
    "UnreliableTransport",
    "World",
    "crash_environment",
    "crash_from_environment",
    "create_suite_tables",
    "django_dsn",
    "use_django_database",
]
