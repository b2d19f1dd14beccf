"""The guards of a running service with several server processes: forged tokens, tokens that end, limits that add up."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from aftercommit.access import service_tokens
from aftercommit.access.rate_limiter import ASK_SECONDS
from aftercommit.access.revocation import revoke
from aftercommit.access.token_keys import TOKEN_KEYS_VARIABLE
from aftercommit.client.sse_decoder import SseDecoder, SseMessage, SsePlace, SseRetry
from systems.investigations.events import outbox
from tests.support.investigations import (
    KEY_SET,
    PATIENCE,
    ROOT,
    SECRET,
    TLS,
    WORKERS,
    Service,
    eventually,
    is_let_in_everywhere,
    line,
    serving,
)

pytestmark = pytest.mark.newest

REFUSED = {"error": "unauthorized", "message": "Missing or invalid authentication token"}
LIMIT = 100
PROCESSES = 2
# What the clocks of issuer and server may differ by; a token is good for so long after its time.
LEEWAY = 30
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ISSUER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC_PEM = ISSUER.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
SHARED = base64.urlsafe_b64decode(SECRET["k"] + "=")


@pytest.fixture(scope="module")
def processes(investigations: Service) -> Iterator[tuple[str, str]]:
    """The addresses of two more server processes on the same database; they know an RSA key, too."""
    told = json.loads(KEY_SET)
    told["keys"].append({"kid": "rsa", "alg": "RS256", "pem": PUBLIC_PEM.decode()})
    with ExitStack() as stack:
        urls = [
            stack.enter_context(serving(investigations.dsn, workers=1, **{TOKEN_KEYS_VARIABLE: json.dumps(told)}))[1]
            for _ in range(2)
        ]
        yield urls[0], urls[1]


def claims(**changed: Any) -> dict[str, Any]:
    """What a good token says, but for this; what is None is left out."""
    told = json.loads(KEY_SET)
    whole = {
        "iss": told["issuer"],
        "aud": told["audience"],
        "sub": "mallory",
        "iat": int(time.time()),
        "exp": int(time.time()) + 600,
        "permissions": ["investigation:create", "investigation:*:read", "investigation:*:write"],
        **changed,
    }
    return {name: value for name, value in whole.items() if value is not None}


def compact(header: dict[str, Any], signed_with: bytes | None, **changed: Any) -> str:
    """A token put together by hand: libraries refuse to make such."""
    parts = [part(json.dumps(told).encode()) for told in (header, claims(**changed))]
    signature = hmac.digest(signed_with, ".".join(parts).encode(), hashlib.sha256) if signed_with is not None else b""
    return ".".join([*parts, part(signature)])


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def shared(key_id: str | None = "test", headers: dict[str, Any] | None = None, **changed: Any) -> str:
    """Signed with the shared secret of the service."""
    told = {**({"kid": key_id} if key_id is not None else {}), **(headers or {})}
    return jwt.encode(claims(**changed), SHARED, "HS256", told)


def attacks() -> dict[str, str]:
    """Tokens that nobody was given."""
    good = shared()
    head, body, signature = good.split(".")
    return {
        "no signature": compact({"alg": "none", "typ": "JWT"}, None),
        "no signature, with a key": compact({"alg": "none", "kid": "test"}, None),
        "no signature, written otherwise": compact({"alg": "nOnE", "kid": "rsa"}, None),
        "signature left out": f"{head}.{body}.",
        "public key as a secret": compact({"alg": "HS256", "kid": "rsa"}, PUBLIC_PEM),
        "public key as a secret, other key": compact({"alg": "HS256", "kid": "test"}, PUBLIC_PEM),
        "empty secret": compact({"alg": "HS256", "kid": "test"}, b""),
        "key of a stranger": jwt.encode(claims(), STRANGER, "RS256", {"kid": "rsa"}),
        "key of a stranger in the header": jwt.encode(
            claims(), STRANGER, "RS256", {"kid": "rsa", "jwk": json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(STRANGER))}
        ),
        "key elsewhere": shared("elsewhere", {"jku": "http://127.0.0.1:1/keys.json"}),
        "key that is a path": compact({"alg": "HS256", "kid": "../../../../dev/null"}, b""),
        "key that is a statement": shared("test' or '1'='1"),
        "key that is no text": compact({"alg": "HS256", "kid": ["test"]}, SHARED),
        "no key named": shared(None),
        "algorithm of another key": compact({"alg": "RS256", "kid": "test"}, SHARED),
        "critical header": shared(headers={"crit": ["exp"]}),
        "expired": shared(exp=int(time.time()) - 600),
        "without end": shared(exp=None),
        "end that is no number": compact({"alg": "HS256", "kid": "test"}, SHARED, exp="never"),
        "not yet": shared(nbf=int(time.time()) + 600),
        "other audience": shared(aud="somebody-else"),
        "no audience": shared(aud=None),
        "other issuer": shared(iss="somebody-else"),
        "no issuer": shared(iss=None),
        "no subject": shared(sub=None),
        "other claims under the signature": f"{head}.{part(json.dumps(claims(sub='root')).encode())}.{signature}",
        "one character less": good[:-1],
        "twice": f"{good}.{signature}",
        "service token that nobody made": "act_" + "a" * 12 + "_" + "b" * 43,
    }


@pytest.mark.thorough
@pytest.mark.contract("L8")
def test_forged_tokens_are_401_everywhere_and_all_alike(investigations: Service, processes: tuple[str, str]) -> None:
    case = investigations.open()
    investigations.write(case, line("secret"))
    tag = investigations.logs(case).headers["ETag"]
    with httpx.Client(base_url=processes[0], timeout=PATIENCE) as attacker:
        rsa_token = jwt.encode(claims(sub="known"), ISSUER, "RS256", {"kid": "rsa"})
        for good in (shared(sub="known"), rsa_token):
            assert attacker.get(f"{ROOT}/{case}/logs", headers=bearer(good)).status_code == 200
        for name, token in attacks().items():
            for method, path, body in (
                ("GET", f"{ROOT}/{case}/logs", None),
                ("HEAD", f"{ROOT}/{case}/logs", None),
                ("GET", f"{ROOT}/{case}/logs/stream", None),
                ("GET", f"{ROOT}/{case}", None),
                ("GET", ROOT, None),
                ("POST", f"{ROOT}/{case}/logs", line("forged")),
                ("POST", f"{ROOT}/{case}/close", None),
            ):
                headers = {**bearer(token), "If-None-Match": tag}
                answer = attacker.request(method, path, json=body, headers=headers)
                assert answer.status_code == 401, (name, method, path)
                assert method == "HEAD" or answer.json() == REFUSED, (name, method, path)
        # Where a token may be in a URL it ends up in logs and histories.
        answer = attacker.get(f"{ROOT}/{case}/logs", params={"access_token": shared(), "token": shared()})
        assert answer.status_code == 401
    assert investigations.client().get(f"{ROOT}/{case}").json()["status"] == "open"
    assert [log["message"] for log in investigations.logs(case).json()["logs"]] == ["secret"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def streams(urls: tuple[str, ...], case: str, token: str) -> Iterator[list[Iterator[SseMessage | SsePlace | SseRetry]]]:
    """A stream from each of these processes, open and read from."""
    with ExitStack() as stack:
        found = []
        for url in urls:
            answer = stack.enter_context(
                httpx.stream("GET", f"{url}{ROOT}/{case}/logs/stream", headers=bearer(token), timeout=2 * PATIENCE)
            )
            assert answer.status_code == 200, answer.read()
            told = decoded(answer)
            assert isinstance(next(told), SseRetry)
            found.append(told)
        yield found


def decoded(answer: httpx.Response) -> Iterator[SseMessage | SsePlace | SseRetry]:
    decoder = SseDecoder()
    return (each for piece in answer.iter_bytes() for each in decoder.decode(piece))


def ending(told: Iterator[SseMessage | SsePlace | SseRetry]) -> str:
    """What a stream says last, once the server has ended it."""
    messages = [each for each in told if isinstance(each, SseMessage)]
    assert messages[-1].event == "bye"
    return str(json.loads(messages[-1].data)["reason"])


def refused(url: str, case: str, token: str) -> bool | None:
    return httpx.get(f"{url}{ROOT}/{case}/logs", headers=bearer(token), timeout=PATIENCE).status_code == 401 or None


@pytest.mark.contract("L8", "L11")
@pytest.mark.thorough
def test_a_revoked_token_ends_its_streams_in_every_process_and_others_go_on(
    investigations: Service, processes: tuple[str, str]
) -> None:
    case = investigations.open()
    investigations.write(case, line("before"))
    urls = (*processes, investigations.url, investigations.url)
    lost = investigations.token(f"investigation:{case}:read", user="careless")
    kept = investigations.token(f"investigation:{case}:read", user="careful")
    with streams(urls, case, lost) as ended, streams(urls, case, kept) as unhurt:
        with psycopg.connect(investigations.dsn, autocommit=True) as connection:
            revoke(connection, outbox.shape, "user", "careless", by="tests", reason="lost")
        assert [ending(told) for told in ended] == ["unauthorized"] * len(urls)
        for url in urls:
            # Behind one of the addresses are two processes, and the other one may be about to hear of it.
            eventually(lambda url=url: refused(url, case, lost))  # type: ignore[misc]
        investigations.write(case, line("after"))
        for told in unhurt:
            assert "after" in next(each.data for each in told if isinstance(each, SseMessage) and "after" in each.data)


@pytest.mark.contract("L8", "L11")
def test_a_service_token_that_is_revoked_ends_its_streams_in_every_process(
    investigations: Service, processes: tuple[str, str]
) -> None:
    case = investigations.open()
    urls = (*processes, investigations.url)
    with psycopg.connect(investigations.dsn, autocommit=True) as connection:
        made = service_tokens.create(connection, outbox.shape, "bot", [f"investigation:{case}:read"])
        for url, workers in zip(urls, (1, 1, WORKERS), strict=True):
            is_let_in_everywhere(url, f"{ROOT}/{case}/logs", bearer(made.token), workers)
        with streams(urls, case, made.token) as ended:
            assert service_tokens.revoke(connection, outbox.shape, made.id)
            assert [ending(told) for told in ended] == ["unauthorized"] * len(urls)
    for url in urls:
        eventually(lambda url=url: refused(url, case, made.token))  # type: ignore[misc]


@pytest.mark.thorough
@pytest.mark.contract("L8", "L11")
def test_a_token_that_expires_ends_its_streams_in_every_process(
    investigations: Service, processes: tuple[str, str]
) -> None:
    case = investigations.open()
    for seconds in (4, 16, 64):
        end = int(time.time()) + seconds
        brief = shared(exp=end - LEEWAY, iat=end - LEEWAY - 60, sub="brief")
        with ExitStack() as stack:
            try:
                ended = stack.enter_context(streams((*processes, investigations.url), case, brief))
            except AssertionError:
                # Only one that ended before all streams were open may be refused; then one that lasts longer.
                if time.time() < end:
                    raise
                continue
            assert [ending(told) for told in ended] == ["unauthorized"] * 3
        break
    else:
        raise AssertionError("a minute was not enough to open three streams")
    for url in (*processes, investigations.url):
        assert refused(url, case, brief)


class Asked(NamedTuple):
    """How a request was answered, and how long that took."""

    status: int
    seconds: float


def ask(client: httpx.Client, url: str, case: str) -> Asked:
    began = time.monotonic()
    answer = client.get(f"{url}{ROOT}/{case}/logs?limit=10")
    return Asked(answer.status_code, time.monotonic() - began)


def asked_in_turn(url: str, case: str, token: str, times: int) -> list[Asked]:
    with httpx.Client(headers=bearer(token), timeout=PATIENCE) as client:
        return [ask(client, url, case) for _ in range(times)]


def asked_at_once(urls: list[str], case: str, token: str, times: int) -> list[Asked]:
    """So many requests at each address, all at once."""
    limits = httpx.Limits(max_connections=times * len(urls))
    with (
        httpx.Client(headers=bearer(token), timeout=PATIENCE, limits=limits, verify=TLS) as client,
        ThreadPoolExecutor(times * len(urls)) as pool,
    ):
        return list(pool.map(lambda url: ask(client, url, case), urls * times))


def trial(service: Service, asks: Callable[[str], list[Asked]]) -> None:
    """Within its minute, no more than the bound passes of a new user's requests.

    Where the database takes longer than `ASK_SECONDS`, a process decides alone, and the bound is another one. So more
    may pass only if a request took that long; then the trial is repeated.
    """
    for _ in range(5):
        began = time.monotonic()
        asked = asks(service.token("investigation:*:read", user=f"in-a-minute-{uuid4()}"))
        if time.monotonic() - began >= 60:
            continue
        passed = sum(each.status == 200 for each in asked)
        assert passed >= LIMIT
        if passed <= LIMIT + PROCESSES - 1:
            return
        assert max(each.seconds for each in asked) >= ASK_SECONDS, f"{passed} passed"
    raise AssertionError("five times the machine was too slow for the trial")


@pytest.mark.contract("L9", "E6")
def test_what_one_process_let_through_counts_in_the_others(investigations: Service, processes: tuple[str, str]) -> None:
    case = investigations.open()
    here, there = processes

    def asks(token: str) -> list[Asked]:
        first = asked_in_turn(here, case, token, 60)
        assert {each.status for each in first} == {200}
        return first + asked_in_turn(there, case, token, 60) + asked_in_turn(here, case, token, 60)

    trial(investigations, asks)


@pytest.mark.contract("L9", "E6")
def test_bursts_of_forty_at_once_over_two_processes_pass_no_more_than_the_bound(
    investigations: Service, processes: tuple[str, str]
) -> None:
    """With P processes at most `limit + (P - 1) * share`, and the share of a limit of 100 is one request."""
    case = investigations.open()

    def asks(token: str) -> list[Asked]:
        asked = [each for _ in range(6) for each in asked_at_once([*processes], case, token, 20)]
        assert {each.status for each in asked} == {200, 429}
        return asked

    trial(investigations, asks)
