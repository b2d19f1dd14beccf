"""The TypeScript client in Node against the real system: a relay and two server processes."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.investigations import ROOT, Service, line, some
from tools import web

pytestmark = pytest.mark.contract("L13")

BEGINNING = "1970-01-01T00:00:00.000Z#000"


class Program:
    """A running client, and what it said so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.said: list[dict[str, Any]] = []

    def until(self, enough: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Read on until it has said enough. The test's own timeout is the deadline."""
        assert self._process.stdout is not None
        while not enough(self.said):
            told = self._process.stdout.readline()
            assert told, f"the client ended after {self.said[-3:]}"
            self.said.append(json.loads(told))

    def seqs(self) -> list[int]:
        return [each["seq"] for each in self.said if "seq" in each]

    def states(self) -> list[str]:
        return [each["state"] for each in self.said if "state" in each]


@pytest.fixture(scope="session")
def programs() -> str:
    """The client as a program, built once."""
    return str(web.build_tests() / "client" / "test" / "program.mjs")


@contextmanager
def following(program: str, service: Service, case: str, token: str, **settings: str) -> Iterator[Program]:
    """A client on the logs of an investigation, ended with the block."""
    told = {"FEED": f"{service.url}{ROOT}/{case}/logs", "TOKEN": token, "AFTER": BEGINNING, **settings}
    command = [*web.node(), program]
    with subprocess.Popen(command, env={**os.environ, **told}, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Program(process)
        finally:
            process.terminate()


@pytest.mark.thorough
@pytest.mark.parametrize("streams", ["yes", "no"])
def test_every_line_comes_once_and_in_order(programs: str, investigations: Service, streams: str):
    case = investigations.open()
    investigations.write(case, *some(1500))
    token = investigations.token(f"investigation:{case}:read")
    with following(programs, investigations, case, token, STREAMS=streams) as client:
        client.until(lambda said: len(client.seqs()) >= 1500)
        investigations.write(case, *some(25, "live"))
        client.until(lambda said: len(client.seqs()) >= 1525)
        assert client.seqs() == list(range(1, 1526))
        assert client.states()[-1] == ("streaming" if streams == "yes" else "polling")
        assert not [each for each in client.said if "gap" in each]


@pytest.mark.thorough
def test_filters_are_the_servers(programs: str, investigations: Service):
    case = investigations.open()
    investigations.write(case, line("a"), line("b", level="ERROR"), line("c"))
    token = investigations.token(f"investigation:{case}:read")
    with following(programs, investigations, case, token, FILTERS='{"minLevel": "ERROR"}') as client:
        client.until(lambda said: bool(client.seqs()))
        investigations.write(case, line("d"), line("e", level="ERROR"))
        client.until(lambda said: len(client.seqs()) == 2)
        assert client.seqs() == [2, 5]


@pytest.mark.thorough
def test_who_may_not_read_is_refused_for_good(programs: str, investigations: Service):
    case = investigations.open()
    token = investigations.token("investigation:another:read")
    with following(programs, investigations, case, token) as client:
        client.until(lambda said: any("refused" in each for each in said))
        assert client.said[-1] == {"refused": "forbidden", "status": 403}
