"""Who is believed: a user by their own token, a program by its credential, a neighbour while there is no credential."""

import hmac
import socket
from collections.abc import Callable, Iterator

import httpx
import pytest

from aftercommit.access import service_tokens
from aftercommit.errors import Unauthorized
from aftercommit.postgres.shape import Shape
from tests.support.investigations import DEVELOPMENT, PATIENCE, TLS, eventually, serving
from tests.support.tasks import ADA, EDSGER, EVENTS, MALLORY, ROOT, Service, problem_of, signed

pytestmark = [pytest.mark.contract("T7"), pytest.mark.newest]

READ = (EVENTS, f"{ROOT}/me", ROOT, f"{ROOT}/users", f"{ROOT}/machine")
LOCAL = {"X-User-Id": str(ADA)}


@pytest.fixture(scope="module")
def tasks(development_tasks: Service) -> Service:
    """Here a header alone may name a user."""
    return development_tasks


def ask(tasks: Service, headers: dict[str, str], path: str = EVENTS, url: str | None = None) -> httpx.Response:
    with httpx.Client(base_url=url or tasks.url, timeout=PATIENCE, verify=TLS) as client:
        return client.get(path, headers=headers)


def refused(tasks: Service, headers: dict[str, str], path: str = EVENTS, url: str | None = None) -> bool:
    """Whether it is 401, with the one text that all refusals have."""
    answer = ask(tasks, headers, path, url)
    if answer.status_code == 401:
        assert problem_of(answer) == (401, "unauthorized")
        assert answer.json()["message"] == "Missing or invalid authentication token"
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    return answer.status_code == 401


def stream_is_refused(tasks: Service, headers: dict[str, str], url: str | None = None) -> bool:
    with (
        httpx.Client(base_url=url or tasks.url, timeout=PATIENCE, verify=TLS) as client,
        client.stream("GET", f"{EVENTS}/stream", headers=headers) as answer,
    ):
        return answer.status_code == 401


@pytest.fixture
def credential(tasks: Service) -> Iterator[str]:
    """A service token that may act for users; afterwards there is none again."""
    token = tasks.credential()
    yield token
    tasks.revoke(token)
    tasks.trusts_neighbours()


@pytest.mark.thorough
def test_without_a_credential_a_neighbour_is_believed_and_nobody_who_only_looks_like_one(tasks: Service):
    for path in READ:
        assert ask(tasks, LOCAL, path).status_code == 200
    assert ask(tasks, LOCAL, f"{ROOT}/me").json()["name"] == "Ada"
    port = tasks.url.rsplit(":", 1)[1]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST", "127.0.0.9"):
        assert not refused(tasks, {**LOCAL, "Host": host}), host
    for host in (
        *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", f"evil.example:{port}", "128.0.0.1"),
        *("127.0.0.1@evil.example", "localhost:1:2", "[::1", "0.0.0.0", "[::2]", "localhosts", ""),
    ):
        assert refused(tasks, {**LOCAL, "Host": host}), host
    for name, value in (
        ("Forwarded", "for=127.0.0.1"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Host", "localhost"),
        ("X-Forwarded-Proto", "http"),
        ("x-forwarded-anything", ""),
        ("X-Real-IP", "127.0.0.1"),
        ("Via", "1.1 proxy"),
        ("CF-Connecting-IP", "127.0.0.1"),
        ("True-Client-IP", "127.0.0.1"),
        ("X-Forwarded", "for=127.0.0.1"),
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://localhost.evil.example"),
    ):
        for path in READ:
            assert refused(tasks, {**LOCAL, name: value}, path), name
        assert stream_is_refused(tasks, {**LOCAL, name: value}), name
    assert not refused(tasks, {**LOCAL, "Origin": tasks.url})


def test_a_neighbour_of_a_development_server_hears_what_its_request_lacks(
    tasks: Service, request: pytest.FixtureRequest
):
    for path in READ:
        assert refused(tasks, {}, path)
        assert "Add the header X-User-Id" in ask(tasks, {}, path).json()["details"]["hint"]
        assert "details" not in ask(tasks, {"Authorization": "Bearer x"}, path).json()
        assert "details" not in ask(tasks, {"X-Forwarded-For": "127.0.0.1"}, path).json()
    credential: str = request.getfixturevalue("credential")
    eventually(lambda: refused(tasks, LOCAL) or None)
    for path in READ:
        assert "X-User-Id alone is not accepted" in ask(tasks, LOCAL, path).json()["details"]["hint"]
        assert "details" not in ask(tasks, {"Authorization": f"Bearer {credential}"}, path).json()


@pytest.mark.thorough
def test_a_neighbour_that_shows_a_wrong_credential_is_refused_whatever_it_names(tasks: Service):
    """Also when the header cannot be read: who is not believed is not told what else is wrong."""
    made_up = f"act_{'a' * 12}_{'b' * 43}"
    for wrong in (
        *("Bearer", "", "Basic YWRhOmFkYQ==", "bearer nonsense", f"Bearer {made_up}", "Bearer act_x"),
        *(f"Bearer {signed(ADA)}x", f"Bearer {signed(ADA, lifetime=1)[:-3]}abc", "Bearer a.b.c"),
        *(f"Bearer {signed(ADA, issuer='somebody')}", f"Bearer {signed(ADA, audience='elsewhere')}"),
    ):
        for named in ({}, LOCAL, {"X-User-Id": "nobody"}, {"X-User-Id": ""}):
            for path in READ:
                assert refused(tasks, {"Authorization": wrong, **named}, path), (wrong, named, path)
    assert stream_is_refused(tasks, {"Authorization": "Bearer x", **LOCAL})


@pytest.mark.thorough
def test_a_user_is_believed_by_a_token_of_their_own_and_is_nobody_else(tasks: Service):
    own = {"Authorization": f"Bearer {signed(EDSGER)}"}
    for headers in (
        own,
        {**own, "X-User-Id": str(EDSGER)},
        {**own, "X-Forwarded-For": "203.0.113.7", "Host": "x.example"},
    ):
        assert ask(tasks, headers, f"{ROOT}/me").json()["user_id"] == EDSGER
    assert refused(tasks, {**own, "X-User-Id": str(ADA)})
    assert problem_of(ask(tasks, {**own, "X-User-Id": "edsger"})) == (400, "bad_request")
    # Somebody whom the site knows by a name is no user here; nor is a number that is written otherwise.
    for name in ("ada", "0", "03", "-3", "3.0", "３", " 3", str(2**63), "user:3"):
        assert refused(tasks, {"Authorization": f"Bearer {signed(name)}"}), name
        assert refused(tasks, {"Authorization": f"Bearer {signed(name)}", "X-User-Id": "3"}), name


def test_with_a_credential_a_program_acts_for_anybody_and_neighbours_are_not_believed(tasks: Service, credential: str):
    program = {"Authorization": f"Bearer {credential}"}
    for user, name in ((ADA, "Ada"), (EDSGER, "Edsger"), (MALLORY, "Mallory")):
        named = {**program, "X-User-Id": str(user)}
        assert ask(tasks, named, f"{ROOT}/me").json()["name"] == name
        # It is the credential that counts, and not where it comes from.
        elsewhere = {**named, "X-Forwarded-For": "203.0.113.7", "Host": "tasks.example"}
        assert ask(tasks, elsewhere).status_code == 200
    for path in READ:
        assert refused(tasks, program, path), path
        assert refused(tasks, LOCAL, path), path
    assert stream_is_refused(tasks, LOCAL)
    for text in ("x", "0", "", "1, 2"):
        assert problem_of(ask(tasks, {**program, "X-User-Id": text})) == (400, "bad_request")
    changed = credential[:-1] + ("a" if credential[-1] != "a" else "b")
    for wrong in (changed, credential[:-1], credential + "a", credential.upper(), credential[4:]):
        for named in LOCAL, {"X-User-Id": "x"}:
            assert refused(tasks, {"Authorization": f"Bearer {wrong}", **named}), wrong
    assert ask(tasks, {"Authorization": f"Bearer {signed(EDSGER)}"}).status_code == 200


def test_a_credential_for_something_else_acts_for_nobody(tasks: Service, credential: str):
    reading = tasks.credential("reader", "tasks:*:read", "*")
    for named in ({}, LOCAL):
        assert refused(tasks, {"Authorization": f"Bearer {reading}", **named})
    redeemed = httpx.post(
        f"{tasks.url}{ROOT}/link-codes/redeem",
        json={"code": "x"},
        headers={"Authorization": f"Bearer {reading}"},
        timeout=PATIENCE,
    )
    assert problem_of(redeemed) == (401, "unauthorized")


@pytest.mark.thorough
def test_a_credential_that_is_revoked_ends_what_it_opened_and_one_that_is_made_ends_neighbours(tasks: Service):
    """Streams that were opened on trust alone end as soon as trust is not enough any more, and the other way round."""

    def ends(headers: dict[str, str], change: Callable[[], object]) -> str:
        with (
            httpx.Client(base_url=tasks.url, timeout=PATIENCE, verify=TLS) as client,
            client.stream("GET", f"{EVENTS}/stream", headers=headers) as answer,
        ):
            assert answer.status_code == 200
            lines = answer.iter_lines()
            assert next(lines).startswith("retry")
            change()
            return "\n".join(lines)

    made: list[str] = []
    assert '"unauthorized"' in ends(LOCAL, lambda: made.append(tasks.credential()))
    acting = {"Authorization": f"Bearer {made[0]}", **LOCAL}
    assert '"unauthorized"' in ends(acting, lambda: tasks.revoke(made[0]))
    tasks.trusts_neighbours()


@pytest.mark.thorough
def test_from_another_machine_nobody_is_believed_without_a_credential(tasks: Service, credential: str):
    address = own_address()
    with serving(tasks.dsn, workers=1, host="0.0.0.0", kind=DEVELOPMENT) as (_, url):
        port = url.rsplit(":", 1)[1]
        outside = f"http://{address}:{port}"
        for headers in (LOCAL, {**LOCAL, "Host": "localhost"}, {**LOCAL, "Host": f"127.0.0.1:{port}"}):
            for path in READ:
                assert refused(tasks, headers, path, outside), (headers, path)
            assert stream_is_refused(tasks, headers, outside)
        redeemed = httpx.post(f"{outside}{ROOT}/link-codes/redeem", json={"code": "x"}, timeout=PATIENCE)
        assert problem_of(redeemed) == (401, "unauthorized")
        own = {"Authorization": f"Bearer {signed(EDSGER)}"}
        assert ask(tasks, own, f"{ROOT}/me", outside).json()["user_id"] == EDSGER
        # Also in development: it can be reached from elsewhere.
        assert refused(tasks, LOCAL, url=f"http://127.0.0.1:{port}")


def own_address() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        # Nothing is sent: the system only chooses the address from which it would be.
        try:
            asking.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has no network but its own")
        return str(asking.getsockname()[0])


def test_secrets_are_compared_by_their_hashes_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    """Two digests of one length, by a comparison that does not stop at the first difference; also of unknown tokens."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return same(one, other)

    same = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    known = service_tokens.ServiceTokens(Shape())
    for token in (f"act_{'a' * 12}_{'b' * 43}", f"act_{'c' * 12}_{'d' * 43}"):
        with pytest.raises(Unauthorized):
            known.verify(token)
    assert [len(each) for pair in compared for each in pair] == [32] * 4
