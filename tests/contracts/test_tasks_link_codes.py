"""Codes by which a bot learns whose chat it is in: good once, not for long, for one program, and not to be guessed."""

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from systems.tasks.api.part import REDEMPTIONS
from tests.support.investigations import PATIENCE, TLS
from tests.support.tasks import EDSGER, GRACE, ROOT, Service, problem_of

pytestmark = [pytest.mark.contract("T7"), pytest.mark.newest]

CODE = re.compile(r"[0-9A-HJKMNP-TV-Z]{4}(-[0-9A-HJKMNP-TV-Z]{4}){2}")


@pytest.fixture(scope="module")
def tasks(development_tasks: Service) -> Service:
    """Here a header alone may name a user."""
    return development_tasks


def make(tasks: Service, user: int) -> dict[str, Any]:
    answer = tasks.as_user(user).post(f"{ROOT}/me/link-codes")
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def redeem(tasks: Service, code: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    path = f"{tasks.url}{ROOT}/link-codes/redeem"
    return httpx.post(path, json={"code": code}, headers=named, timeout=PATIENCE, verify=TLS)


@contextmanager
def patience_anew(tasks: Service) -> Iterator[str]:
    """A program of its own, for which nothing has been counted yet."""
    token = tasks.credential("patient")
    try:
        yield f"Bearer {token}"
    finally:
        tasks.revoke(token)
        tasks.trusts_neighbours()


@pytest.fixture
def bot(tasks: Service) -> Iterator[str]:
    """What a program shows that redeems codes for one test. What is redeemed without is counted for all tests at once,
    and others do that too.
    """
    with patience_anew(tasks) as credential:
        yield credential


def test_a_code_is_good_once_and_says_whose_it_was(tasks: Service):
    made = make(tasks, EDSGER)
    assert CODE.fullmatch(made["code"])
    assert made["start"] == f"/start {made['code']}"
    left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=9) < left <= timedelta(minutes=10, seconds=5)
    answer = redeem(tasks, made["code"])
    assert (answer.status_code, answer.json()) == (200, {"user_id": EDSGER, "name": "Edsger"})
    again, wrong = redeem(tasks, made["code"]), redeem(tasks, "0000-0000-0000")
    assert problem_of(again) == (404, "not_found")
    assert again.json() == wrong.json()


@pytest.mark.thorough
def test_a_code_is_read_as_people_write_it(tasks: Service, bot: str):
    for written in (str.lower, lambda code: code.replace("-", ""), lambda code: f" {code.replace('0', 'o')} "):
        assert redeem(tasks, written(make(tasks, EDSGER)["code"]), Authorization=bot).status_code == 200


@pytest.mark.thorough
def test_a_new_code_ends_the_one_before_and_nobody_elses(tasks: Service, bot: str):
    other = make(tasks, GRACE)["code"]
    first, second = make(tasks, EDSGER)["code"], make(tasks, EDSGER)["code"]
    assert problem_of(redeem(tasks, first, Authorization=bot)) == (404, "not_found")
    assert redeem(tasks, second, Authorization=bot).json()["user_id"] == EDSGER
    assert redeem(tasks, other, Authorization=bot).json()["user_id"] == GRACE


def test_a_code_that_is_too_old_is_as_good_as_none(tasks: Service, bot: str):
    code = make(tasks, EDSGER)["code"]
    tasks.connection().execute("update tasks.link_codes set expires_at = clock_timestamp() where user_id = 3")
    late, never = (redeem(tasks, each, Authorization=bot) for each in (code, "1111-1111-1111"))
    assert problem_of(late) == (404, "not_found")
    assert late.json() == never.json()


def test_of_two_who_show_a_code_at_once_exactly_one_wins(tasks: Service, bot: str):
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            code = make(tasks, EDSGER)["code"]
            shown = [pool.submit(redeem, tasks, code, Authorization=bot) for _ in range(4)]
            answers = [each.result() for each in shown]
            assert sorted(answer.status_code for answer in answers) == [200, 404, 404, 404]


@pytest.mark.thorough
def test_what_is_stored_is_a_hash_and_the_code_is_in_no_log(tasks: Service):
    code = make(tasks, EDSGER)["code"]
    [(stored,)] = tasks.rows("select code_hash from tasks.link_codes where user_id = %s", EDSGER)
    assert bytes(stored) == hashlib.sha256(code.replace("-", "").encode()).digest()
    redeem(tasks, code)
    assert code not in str(tasks.server)
    assert code.replace("-", "") not in str(tasks.server)


@pytest.mark.thorough
def test_codes_are_redeemed_by_programs_alone(tasks: Service):
    code = make(tasks, EDSGER)["code"]
    assert problem_of(redeem(tasks, code, Authorization=tasks.as_user(EDSGER).headers["authorization"])) == (
        403,
        "forbidden",
    )
    for headers in ({"Host": "evil.example"}, {"X_Forwarded_For": "127.0.0.1"}, {"Origin": "https://evil.example"}):
        assert problem_of(redeem(tasks, code, **headers)) == (401, "unauthorized")
    assert problem_of(redeem(tasks, code, Authorization="Bearer wrong")) == (401, "unauthorized")
    with patience_anew(tasks) as credential:
        assert problem_of(redeem(tasks, code)) == (401, "unauthorized")
        assert redeem(tasks, code, Authorization=credential).json()["user_id"] == EDSGER


@pytest.mark.thorough
def test_whoever_guesses_is_told_to_wait(tasks: Service):
    with patience_anew(tasks) as credential, httpx.Client(timeout=PATIENCE, verify=TLS) as client:
        headers = {"Authorization": credential}
        path = f"{tasks.url}{ROOT}/link-codes/redeem"
        answers = [
            client.post(path, json={"code": f"{number:012d}"}, headers=headers)
            for number in range(3 * REDEMPTIONS.requests)
        ]
        limited = [answer for answer in answers if answer.status_code == 429]
        assert {answer.status_code for answer in answers} == {404, 429}
        # Two processes, each with a share of one request. Who is slow gets some more, as time goes on.
        minutes = 1 + int(sum((answer.elapsed for answer in answers), timedelta()) / timedelta(minutes=1))
        assert len(answers) - len(limited) <= minutes * (REDEMPTIONS.requests + 1)
        assert problem_of(limited[-1]) == (429, "rate_limit_exceeded")
        assert int(limited[-1].headers["Retry-After"]) == limited[-1].json()["retry_after"] > 0
        if minutes == 1:
            # A right code does not get through either.
            assert client.post(path, json={"code": make(tasks, EDSGER)["code"]}, headers=headers).status_code == 429


def test_a_body_that_is_no_code_is_400(tasks: Service):
    with patience_anew(tasks) as credential:
        for body in (
            b"",
            b"{}",
            b'{"code": ""}',
            b'{"code": 7}',
            b'{"code": "x", "user_id": 1}',
            b"[]",
            b'{"code": "' + b"x" * 65 + b'"}',
        ):
            answer = httpx.post(
                f"{tasks.url}{ROOT}/link-codes/redeem",
                content=body,
                headers={"Authorization": credential},
                timeout=PATIENCE,
            )
            assert problem_of(answer) == (400, "bad_request"), body
