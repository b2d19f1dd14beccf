"""The test kit: what your tests may use. Never imported by production code.

`World` and `AsyncWorld` are what tests work with; the pytest plugin makes one per test (`aftercommit_world`,
`aftercommit_async_world`), each with a database of its own. The suites that your own transport or adapter has to pass
are in `transport_suite` and `outbox_suite`, which need pytest and are imported by their own names.
"""

from aftercommit.testing.deliver_twice import Deliveries
from aftercommit.testing.drain import Drained
from aftercommit.testing.expectations import Expected
from aftercommit.testing.faults import Faults
from aftercommit.testing.points import POINTS, Points, SimulatedCrash, crash_environment, crash_from_environment
from aftercommit.testing.postgres import PostgresServerForTests
from aftercommit.testing.published import Published
from aftercommit.testing.signals import Signals
from aftercommit.testing.spy import Attempt
from aftercommit.testing.tables import Letter
from aftercommit.testing.transports import RecordingTransport, TransportFaults, UnreliableTransport
from aftercommit.testing.world import AsyncWorld, World

__all__ = [
    "POINTS",
    "AsyncWorld",
    "Attempt",
    "Deliveries",
    "Drained",
    "Expected",
    "Faults",
    "Letter",
    "Points",
    "PostgresServerForTests",
    "Published",
    "RecordingTransport",
    "Signals",
    "SimulatedCrash",
    "TransportFaults",
    "UnreliableTransport",
    "World",
    "crash_environment",
    "crash_from_environment",
]
