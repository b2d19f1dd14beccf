"""The log transport keeps the promises that every transport makes."""

import pytest

from aftercommit.testing.transport_suite import TransportSuite
from tests.transports.databases import LogHarness


@pytest.fixture
def transport_harness(database: str) -> LogHarness:
    return LogHarness(database)


class TestLog(TransportSuite):
    """With the relay's append, which is its delivery."""


async def test_the_log_transport_carries_nothing() -> None:
    """So the relay need not load payloads for it."""
    from aftercommit.relay.transports import LogTransport

    transport = LogTransport()
    assert not transport.capabilities.carries
    assert list(await transport.deliver([])) == []
