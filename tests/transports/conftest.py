"""Fixtures of the tests of transports."""

import pytest

pytest.register_assert_rewrite("aftercommit.testing.transport_suite")
