"""Who is handed the tokens of sample users: only a browser on this machine that is meant for it."""

import pytest
from starlette.requests import Request

from systems.pages import is_local


@pytest.mark.parametrize(
    ("client", "host", "local"),
    [
        (("127.0.0.1", 5), "127.0.0.1:8090", True),
        (("::1", 5), "[::1]:8090", True),
        (("127.0.0.1", 5), "example.org", False),
        (("192.0.2.7", 5), "localhost", False),
        (("testclient", 5), "localhost", False),
        (("/run/site.socket", None), "localhost", False),
        (("", 0), "localhost", False),
        (None, "localhost", False),
    ],
)
def test_only_a_loopback_address_and_name_are_this_machine(
    client: tuple[str, int | None] | None, host: str, local: bool
) -> None:
    request = Request({"type": "http", "client": client, "headers": [(b"host", host.encode())]})
    assert is_local(request) is local
