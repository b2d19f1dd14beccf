"""An investigation that somebody does not let go of: its own requests come to an end, and others need not wait."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.investigations import ROOT, Service, some

# Fewer than a server process has connections: there are some left for others.
AT_ONCE = 4


@pytest.mark.thorough
@pytest.mark.contract("L12")
def test_an_investigation_that_somebody_does_not_let_go_of_is_a_503_of_its_own(investigations: Service):
    service = investigations
    held, other = service.open(), service.open()
    writer = service.client()
    with psycopg.connect(service.dsn) as holder, ThreadPoolExecutor(AT_ONCE + 1) as pool:
        holder.execute("select from investigations.investigation where id = %s for update", [held])
        lines = [some(1) for _ in range(AT_ONCE)]
        asked = [pool.submit(writer.post, f"{ROOT}/{held}/logs", json=each) for each in lines]
        closing = pool.submit(writer.post, f"{ROOT}/{held}/close")
        assert writer.post(f"{ROOT}/{other}/logs", json=some(1)).status_code == 201
        refused = [each.result() for each in (*asked, closing)]
        assert {(answer.status_code, answer.json()["error"]) for answer in refused} == {(503, "unavailable")}
        assert {answer.json()["retry_after"] for answer in refused} == {1}
        assert "Another request holds a lock on the same data" in refused[0].json()["message"]
    again = [writer.post(f"{ROOT}/{held}/logs", json=each) for each in lines]
    assert [(answer.status_code, answer.json()["stored"]) for answer in again] == [(201, 1)] * AT_ONCE
