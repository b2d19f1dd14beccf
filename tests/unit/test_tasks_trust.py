"""Who is believed, decided without a server: whether a request is a neighbour's, and which user a header names."""

import pytest

from aftercommit.access.bearer import BearerAccess
from aftercommit.access.permissions import Permissions
from aftercommit.access.reader import Reader
from aftercommit.access.trusted import TrustedUsers, is_local, is_program, user_in
from aftercommit.errors import Unauthorized
from aftercommit.http.errors import Problem

pytestmark = pytest.mark.contract("T7")

HOST = {"host": "127.0.0.1:8090"}


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_this_machine(peer: str):
    assert is_local(HOST, peer)


@pytest.mark.parametrize(
    "peer",
    [None, "", "10.0.0.1", "192.0.2.2", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1", "localhost", "/run/socket", "1"],
)
def test_anything_else_is_not(peer: str | None):
    assert not is_local(HOST, peer)


@pytest.mark.parametrize("origin", ["http://localhost:8090", "http://127.0.0.1", "https://[::1]:443"])
def test_a_page_of_this_machine_may_ask(origin: str):
    assert is_local({**HOST, "origin": origin}, "127.0.0.1")


@pytest.mark.parametrize("text", ["1", "17", str(2**63 - 1), " 17 ", "\t17"])
def test_a_user_is_a_positive_integer(text: str):
    assert user_in(text) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "0", "01", "-1", "+1", "1.0", "1e3", "x", "１", "1 2", "1,1", str(2**63), "9" * 30]
)
def test_anything_else_is_400_and_named(text: str):
    with pytest.raises(Problem) as refused:
        user_in(text)
    assert (refused.value.status, refused.value.code) == (400, "bad_request")
    assert refused.value.details == {"X-User-Id": text[:60]}


async def test_outside_development_a_neighbour_is_nobody_whatever_it_says():
    users = TrustedUsers(BearerAccess(None))
    for peer in ("127.0.0.1", "::1", None):
        with pytest.raises(Unauthorized):
            await users.reader(None, {**HOST, "x-user-id": "17"}, peer)
    assert not users.still_valid(Reader("17", Permissions(), None, None, ""))


async def test_without_a_database_no_credential_can_be_made_and_neighbours_stay_believed():
    users = TrustedUsers(BearerAccess(None), development=True)
    reader = await users.reader(None, {**HOST, "x-user-id": "17"}, "127.0.0.1")
    assert (reader.user, reader.token_id, reader.service) == ("17", None, None)
    assert users.still_valid(reader)
    for headers, peer in (({**HOST, "x-user-id": "17"}, "10.0.0.1"), (HOST, "127.0.0.1"), ({"x-user-id": "17"}, "::1")):
        with pytest.raises(Unauthorized):
            await users.reader(None, headers, peer)
    with pytest.raises(Unauthorized):
        await users.reader("Bearer x", {**HOST, "x-user-id": "17"}, "127.0.0.1")


def test_a_program_is_who_shows_a_service_token_with_the_permission_by_its_name():
    assert not is_program(Reader("17", Permissions(("act-as-user",)), "jti", None, ""))
    assert not is_program(Reader("service:x", Permissions(("*",)), "x", None, "", service="x"))
    assert is_program(Reader("service:x", Permissions(("act-as-user",)), "x", None, "", service="x"))
